"""Claims and verdicts on translation models and on modules of any kind."""
