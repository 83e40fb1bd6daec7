"""The theory of attention with random weights and of cross-attention, token by token or for groups of tokens."""
