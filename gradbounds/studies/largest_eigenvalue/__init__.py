"""Largest eigenvalues of the Hessian beside theory: `make evidence PART=hessian-eigenvalue`."""
