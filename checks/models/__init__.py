"""The judgement of any PyTorch module: alarms, scaling exponents, and comparisons with theory or another module."""
