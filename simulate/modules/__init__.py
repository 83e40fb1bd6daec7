"""Measurements of any `torch.nn.Module`: its layers, hooks on them, exact tests, and optimizer steps."""
