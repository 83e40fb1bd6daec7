"""What at initialization tells the largest stable rate: `make evidence PART=stable-rate`."""
