"""The paper's pre-training experiment (section 4.1, Fig. 5): masked language models with and without warm-up."""
