"""Masked language models as BERT, in both placements, and the text that they are trained on."""
