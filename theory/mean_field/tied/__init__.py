"""Tied embeddings: the loss, and a gradient that has overlaps of order one with the stream."""
