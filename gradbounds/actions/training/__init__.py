"""What `gradbounds train` does."""
