"""Attention that is more than a mean over tokens: sampled, in closed form, and to an encoder."""
