"""Many draws of many networks: cells, blocks, and the folder they land in."""
