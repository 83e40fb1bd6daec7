"""Second derivatives of the loss: first optimizer steps, and problems for Hessian and Gauss-Newton products."""
