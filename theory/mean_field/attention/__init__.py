"""The rules of random attention and of cross-attention to an encoder, for all tokens or for groups of tokens."""
