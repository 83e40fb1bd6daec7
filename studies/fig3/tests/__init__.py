"""Tests of the study of Fig. 3."""
