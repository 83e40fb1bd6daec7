"""The first step of training: the effect of one optimizer step on the logits and the loss of a random stack."""
