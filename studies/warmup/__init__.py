"""The paper's training experiments (sections 3.2 and 4.1): translation models with and without warm-up."""
