"""Tests of theory.configurations."""
