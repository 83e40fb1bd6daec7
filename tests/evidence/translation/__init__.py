"""Evidence from translation models on a text."""
