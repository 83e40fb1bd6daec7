"""What keeps a checkout: results that are committed, and the pages made of them. Nothing here is installed."""
