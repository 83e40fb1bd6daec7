"""Theory against samples and slow networks, for every kind of stack."""
