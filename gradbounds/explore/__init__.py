"""The interactive page: served on this machine, or one file that contains its answers."""
