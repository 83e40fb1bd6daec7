"""Figures of training at initialization: rates of the first step, and several steps at any width."""
