"""Several steps of training."""
