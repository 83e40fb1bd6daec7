"""The comparison of claims and theory with sampled networks: estimates, verdicts and their report."""
