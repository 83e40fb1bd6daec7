"""One page on which theory answers: served on this machine, or one file with answers that were made beforehand."""
