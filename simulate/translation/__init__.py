"""The paper's encoder-decoders on text."""
