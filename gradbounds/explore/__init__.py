"""The interactive page, served by a local server or written as one file with all its answers."""
