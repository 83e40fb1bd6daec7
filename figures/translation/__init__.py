"""Pictures of translation models: at initialization, and in training."""
