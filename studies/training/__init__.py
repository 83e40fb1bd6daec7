"""Several steps of training, of networks whose matrices are drawn or known only by what they have done so far."""
