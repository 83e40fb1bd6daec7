"""Pictures of claims, predictions and samples: data frames in, matplotlib Figures out, a module for each."""
