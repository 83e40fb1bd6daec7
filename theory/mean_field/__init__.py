"""The exact large-width recursion of forward and backward pass, and the laws beside it."""
