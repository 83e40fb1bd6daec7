"""The mean over the output matrix of the Hessian below it: `python -m studies mean_hessian`."""
