"""The judgement, from samples, of claims about the networks of the paper and networks without its assumptions."""
