"""Verdicts on PyTorch modules of any kind: alarms, exponents, and comparison with theory or a reference."""
