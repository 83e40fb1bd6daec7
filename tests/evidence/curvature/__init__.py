"""Evidence on the curvature of stacks."""
