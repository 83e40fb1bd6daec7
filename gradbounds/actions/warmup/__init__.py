"""`gradbounds reproduce warmup`."""
