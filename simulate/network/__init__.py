"""Sampling of random networks: engines for weight matrices, random number streams, and forward and backward passes."""
