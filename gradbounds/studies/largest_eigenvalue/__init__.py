"""The Hessian's largest eigenvalue at large width: its residual's spectrum by a Dyson equation, beside Gauss-Newton.

`make evidence PART=hessian-eigenvalue` measures it beside networks.
"""
