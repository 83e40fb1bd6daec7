"""First optimizer steps of networks and modules, and products with the Hessian and the Gauss-Newton matrix."""
