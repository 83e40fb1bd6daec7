"""Tests of the theory of the first step."""
