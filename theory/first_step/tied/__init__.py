"""The first step where inputs are rows of the output matrix, so that gradients and motion have overlaps with tokens."""
