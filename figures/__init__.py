"""Figures of claims, predictions and samples: each module draws matplotlib Figures from data frames."""
