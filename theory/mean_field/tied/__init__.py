"""The backward pass with tied embeddings, where the loss's gradient overlaps with the residual stream in order one."""
