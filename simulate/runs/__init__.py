"""Sampling of many random networks: configurations, blocks of draws, and the run folder that stores them."""
