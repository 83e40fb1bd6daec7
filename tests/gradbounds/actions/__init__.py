"""Tests of what single commands do."""
