"""A context manager that restores a measured module: weights, gradients, modes and random generators."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch import nn

from simulate.modules.factories import seeded
from simulate.modules.unregistered import held_tensors


@contextmanager
def kept_state(module: nn.Module, seed: int) -> Iterator[None]:
    """Undo every change of a module at the end of a `with` block, and seed torch's generators within it.

    Weights, buffers, gradients, training mode and random generators are restored. This takes the memory of a second
    copy of all weights and buffers. Code that `torch.compile` compiled runs uncompiled: compiling the hooks takes
    minutes.
    """
    parameters = [*module.parameters(), *(tensor for _, tensor in held_tensors(module))]
    values = [parameter.detach().clone() for parameter in parameters]
    gradients = [parameter.grad for parameter in parameters]
    flags = [parameter.requires_grad for parameter in parameters]
    modes = [(part, part.training) for part in module.modules()]
    buffers = [
        (part, name, buffer, buffer.detach().clone())
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - it belongs to the user
    try:
        for parameter in parameters:
            # A gradient that the user holds is put aside, not added to.
            parameter.grad = None
        with (
            seeded(seed),
            torch.enable_grad(),
            torch.compiler.set_stance("force_eager") if "torch._dynamo.eval_frame" in sys.modules else nullcontext(),
        ):
            yield
    finally:
        with torch.no_grad():
            for parameter, value, gradient, flag in zip(parameters, values, gradients, flags, strict=True):
                if not torch.equal(parameter, value):
                    parameter.copy_(value)
                parameter.requires_grad_(flag)
                parameter.grad = gradient
            for part, name, buffer, content in buffers:
                if not torch.equal(buffer, content):
                    buffer.copy_(content)
                part._buffers[name] = buffer
        for part, mode in modes:
            part.training = mode
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
