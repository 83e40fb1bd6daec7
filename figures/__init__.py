"""Draw figures of claims, predictions and samples: each module draws data frames as matplotlib figures."""
