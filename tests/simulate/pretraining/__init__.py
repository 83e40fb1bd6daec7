"""Tests of simulate.pretraining."""
