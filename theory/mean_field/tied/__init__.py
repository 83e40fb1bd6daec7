"""The backward pass with tied embeddings, where gradients correlate strongly with the residual stream."""
