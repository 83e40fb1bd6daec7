"""The mean over the output matrix of the Hessian below it: `make evidence PART=mean-hessian`."""
