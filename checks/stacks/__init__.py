"""Tests of claims on the paper's networks, and on networks with dropped assumptions, by samples."""
