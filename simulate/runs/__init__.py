"""Sampling of many random networks: configurations, blocks of draws, sweeps, and the run folders that store them."""
