"""Claims on the paper's stacks and their relaxations, judged on samples."""
