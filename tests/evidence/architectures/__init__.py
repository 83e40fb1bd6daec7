"""Evidence on today's architectures."""
