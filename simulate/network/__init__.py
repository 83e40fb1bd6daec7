"""Sample random networks: their weight matrices, random numbers, and forward and backward passes."""
