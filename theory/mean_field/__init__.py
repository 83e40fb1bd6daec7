"""Mean-field theory of random Transformers: the large-width recursion, finite-width corrections, and laws of text."""
