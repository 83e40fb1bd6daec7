"""Spectra and largest eigenvalues of the Hessian and the Gauss-Newton matrix at initialization."""
