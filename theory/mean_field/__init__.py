"""The exact large-width recursion of the forward and the backward pass, finite-width corrections, and laws of text."""
