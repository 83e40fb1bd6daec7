"""Products with Hessian and Gauss-Newton matrix, and spectra from them."""
