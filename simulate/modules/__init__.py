"""Any `torch.nn.Module` at initialization: its layers, hooks on them, and what they measure."""
