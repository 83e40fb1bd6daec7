"""What the paper claims and what is derived for it, in sympy."""
