"""What at initialization tells the largest stable rate: `python -m studies stable_rate`."""
