"""Slow networks, written again from definitions."""
