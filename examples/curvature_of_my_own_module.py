"""The curvature of my own module
==============================

How curved is the loss of my module before its first step of training? Trace and largest eigenvalue of the Hessian, with
`curvlinops <https://curvlinops.readthedocs.io>`_: ``pip install 'gradbounds[studies]'``.
"""

# %%
# Any module, any loss and one batch do. Dropout must be off, and attention and norms must be plain operations: fused
# ones have no second derivative, or a wrong one.

import torch
from curvlinops import GGNLinearOperator, HessianLinearOperator, hutchinson_trace
from scipy.sparse.linalg import eigsh
from torch import nn

torch.manual_seed(0)
width, classes, examples = 16, 10, 32
block = lambda: nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))  # noqa: E731
model = nn.Sequential(block(), block(), nn.Linear(width, classes)).double()
batch = [(torch.randn(examples, width).double(), torch.randint(classes, (examples,)))]
parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

# %%
# The Hessian is the Gauss-Newton matrix plus a part that vanishes with the loss's slope at the logits.

for name, kind in (("Hessian", HessianLinearOperator), ("Gauss-Newton", GGNLinearOperator)):
    matrix = kind(model, nn.CrossEntropyLoss(), parameters, batch)
    trace = float(hutchinson_trace(matrix, num_matvecs=32))
    (largest,) = eigsh(matrix.to_scipy(), k=1, which="LA", tol=1e-3, return_eigenvectors=False)
    print(f"{name:12} trace {trace:.3g}, largest eigenvalue {largest:.3g}, 2/largest {2 / largest:.3g}")

# %%
# Gradient descent on this batch leaves the quadratic model's bounds above the rate 2/largest. What theory says of the
# Gauss-Newton matrix of stacks, ``python -m studies hessian stack`` in a checkout shows.
