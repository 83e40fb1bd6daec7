"""Tests of what is derived from the paper and beside it."""
