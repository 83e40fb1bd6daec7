"""Fig. 3 of the paper: translation models at initialization on two line-aligned texts."""
