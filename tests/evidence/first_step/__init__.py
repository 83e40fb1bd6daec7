"""Evidence on the first step of training, and on the rates of many."""
