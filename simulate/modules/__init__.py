"""Measure any `torch.nn.Module`: its layers, activations and gradients, with exact tests and optimizer steps."""
