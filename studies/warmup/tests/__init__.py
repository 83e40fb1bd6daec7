"""Tests of the study of warm-up."""
