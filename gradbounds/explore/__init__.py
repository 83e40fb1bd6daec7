"""Interactive page of the theory: served on this machine, or one file with answers that were computed beforehand."""
