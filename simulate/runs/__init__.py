"""Sample many random networks: configurations, blocks of networks, sweeps, and the folders that store them."""
