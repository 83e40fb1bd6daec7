"""What is too heavy for the suite."""
