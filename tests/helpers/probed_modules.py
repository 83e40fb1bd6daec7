"""Modules to probe: residual layers of our own, and encoders of `torch.nn` with a fault planted in one layer."""

import torch
from torch import nn

from simulate.modules.catalogue import BUILTINS

FAULTS = ("ten times the initialization", "not a number", "no norm", "detached branch", "no residual")


def planted(name, fault, layer):
    """The factory of a built-in encoder whose layer (from 1) has the fault."""

    def factory(width, depth):
        module, batch = BUILTINS[name].factory(width, depth)
        one = module.body.layers[layer - 1]
        pre = name == "encoder-pre"
        if fault == "ten times the initialization":
            with torch.no_grad():
                one.linear2.weight.mul_(10)
        elif fault == "not a number":
            with torch.no_grad():
                one.linear1.weight[0, 0] = torch.nan
        elif fault == "no norm":
            one.norm2 = nn.Identity()
        elif fault == "detached branch":
            feed_forward = one._ff_block
            one._ff_block = lambda x: feed_forward(x).detach()
        elif fault == "no residual":

            def forward(x, *_, **__):
                if pre:
                    return one._ff_block(one.norm2(x + one._sa_block(one.norm1(x), None, None)))
                return one.norm2(one._ff_block(one.norm1(x + one._sa_block(x, None, None))))

            one.forward = forward
        return module, batch

    return factory


def one_module(width, depth):
    """Linear layers with a residual connection, in a list; a tensor goes in."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(width, width)

        def forward(self, x):
            return x + self.inner(x)

    body = nn.Sequential(*(Layer() for _ in range(depth)))

    def batch(seed):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(2, 3, width, generator=generator), lambda y: y.square().mean()

    return body, batch
