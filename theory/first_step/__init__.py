"""The first step of training: what one step of an optimizer does to the logits and the loss of a random stack."""
