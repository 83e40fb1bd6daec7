"""The Hessian's largest eigenvalue at large width: its residual's spectrum by a Dyson equation, beside Gauss-Newton."""
