"""Judges of the claims on the paper's networks and their relaxations, from samples."""
