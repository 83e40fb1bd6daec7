"""The judges, which test claims about the paper's networks, and about networks without its assumptions, by samples."""
