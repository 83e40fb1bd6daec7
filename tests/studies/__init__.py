"""Tests of simulate.translation."""
