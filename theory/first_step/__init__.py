"""Predict the effect of the first optimizer step on the logits and the loss of a random Transformer stack."""
