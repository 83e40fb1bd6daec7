"""Tests of theory.mean_field.attention."""
