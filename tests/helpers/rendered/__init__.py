"""Tables of the pages, each from committed numbers or from theory."""
