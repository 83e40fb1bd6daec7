"""Steps that torch's optimizers take on a module itself, each from its initial parameters: the search's slow twin."""

import copy

import torch

from simulate.modules.factories import call


def losses_of_steps(made, optimizer, rates):
    """The loss after one step with each of some rates; Muon steps what it can, matrices that are no embedding."""
    module = copy.deepcopy(made.module)
    start = copy.deepcopy(module.state_dict())
    made.loss(call(module, made.inputs)).backward()
    tables = {id(one.weight) for one in module.modules() if isinstance(one, torch.nn.Embedding)}
    stepped = [p for p in module.parameters() if p.grad is not None]
    found = []
    for rate in rates:
        module.load_state_dict(start)
        if optimizer == "sgd":
            taken = torch.optim.SGD(stepped, lr=rate)
        elif optimizer == "adam":
            taken = torch.optim.Adam(stepped, lr=rate, eps=1e-300)
        else:
            matrices = [p for p in stepped if p.ndim == 2 and id(p) not in tables]
            taken = torch.optim.Muon(matrices, lr=rate, weight_decay=0.0)
        taken.step()
        with torch.no_grad():
            found.append(float(made.loss(call(module, made.inputs))))
    return found


def doubled(factory):
    """A factory of the same modules and batches in double precision."""

    def wrapped(width, depth):
        module, batch = factory(width, depth)

        def of(seed):
            inputs, loss = batch(seed)
            return inputs.double() if inputs.is_floating_point() else inputs, loss

        return module.double(), of

    return wrapped
