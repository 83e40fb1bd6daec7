"""The first optimizer step of any PyTorch module: critical rates, and the contribution of each parameter group.

Parameters move to θ − η u, and the loss is that of one batch, with the same random numbers for every η. Derivatives use
backward passes only, which more operations support than forward mode.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from simulate.curvature.first_step import Direction, break_even_rate, direction
from simulate.curvature.problems import plain_operations
from simulate.modules.factories import Called, Loss, Made, ProbeError, seeded
from simulate.modules.layers import LayerList, layer_lists

WHOLE = "all"
"""The name of the group of all parameters that a step updates."""

# A loss that is linear in the output has no Gauss-Newton matrix; what rounding leaves of it is below this share of the
# gain over a rate of first order.
_ROUNDING = 1e-6


def one_step(
    one: Made, optimizers: Sequence[str], seed: int, layers: Sequence[str] = (), depth: int = 0
) -> list[dict[str, Any]]:
    """Measure the first optimizer step of a module, by optimizer and group of parameters.

    Args:
        one: module, batch and loss.
        optimizers: names among "sgd", "adam" (ε → 0), "polar" and "muon"; the last two update only matrices, without
            embeddings.
        seed: random seed of module and loss.
        layers: glob patterns of the layers' names.
        depth: number of layers.

    Returns:
        One row per optimizer and group ("all", every layer, and every other submodule with its own parameters): gain
        g·u, curvature u'Gu of this group's step alone with the Gauss-Newton matrix of loss and output (NaN if the loss
        is linear in the output, or the output contains no tensor), and share, this group's share of u'Gu of the whole
        step. The group "all" also has hessian, u'Hu (NaN without a second derivative), break_even_rate (NaN if none is
        found within 40 passes) with the number of forward passes, and loss.

    Raises:
        ProbeError: as `module_direction` and `ParameterLine`.
    """
    path = ParameterLine(one, seed)
    groups = _groups(one.module, layer_lists(one.module, layers, depth), path.gradient)
    rows = []
    for optimizer in optimizers:
        u = module_direction(one.module, path.gradient, optimizer)
        rows += [{"optimizer": optimizer} | row for row in step_rows(path, u, groups)]
    return rows


def module_direction(module: nn.Module, gradient: Mapping[str, Tensor], optimizer: str) -> Direction:
    """Return the first update u of torch's own optimizer class for a module's parameters, by their names.

    "polar" and "muon" update only matrices, (d_out, d_in) as in torch.nn; embeddings and other parameters stay
    unchanged.

    Raises:
        ProbeError: the module has no matrix for "polar" or "muon".
        ValueError: an unknown optimizer.
    """
    chosen = dict(gradient)
    if optimizer in ("polar", "muon"):
        tables = {id(layer.weight) for layer in module.modules() if isinstance(layer, nn.Embedding)}
        kept = {name for name, p in module.named_parameters() if p.ndim == 2 and id(p) not in tables}
        chosen = {name: g for name, g in gradient.items() if name in kept}
        if not chosen:
            raise ProbeError(f"module {type(module).__name__!r} must have matrices for {optimizer}, and has none")
    # In double precision no square of a gradient is 0 that is not.
    taken = direction({name: g.double() for name, g in chosen.items()}, optimizer, turned=False)
    return {name: step.to(gradient[name].dtype) for name, step in taken.items()}


class ParameterLine:
    """The loss of a module as a function of the learning rate along a step, and its gradient before the step.

    Args:
        one: module, batch and loss; the gradients of the module's parameters are cleared at the end.
        seed: random seed of module and loss.

    Raises:
        ProbeError: module or loss fails, or has no gradient.
    """

    def __init__(self, one: Made, seed: int) -> None:
        self.seed = seed
        self.one = replace(one, loss=self._same_draws(one.loss))
        with self._fixed():
            loss = self.one.backward()
        named = dict(one.module.named_parameters())
        self.loss = float(loss.detach())
        self.gradient: Direction = {n: p.grad.detach().clone() for n, p in named.items() if p.grad is not None}
        one.module.zero_grad(set_to_none=True)
        self.held = {name: p.detach() for name, p in named.items()}
        # A norm's running means are of the module, and every pass begins with the same ones.
        self.buffers = {name: b.detach() for name, b in one.module.named_buffers()}

    def _fixed(self) -> AbstractContextManager[None]:
        return seeded(self.seed + 1)

    def _same_draws(self, loss: Loss) -> Loss:
        def of(output: Any) -> Tensor:
            with self._fixed():
                return loss(output)

        return of

    def output(self, moved: Mapping[str, Tensor]) -> Any:
        """Return the module's output with some parameters replaced, by name."""
        buffers = {name: b.clone() for name, b in self.buffers.items()}
        tensors = {f"module.{name}": value for name, value in {**self.held, **buffers, **moved}.items()}
        with self._fixed():
            return torch.func.functional_call(Called(self.one.module), tensors, ({"inputs": self.one.inputs},))

    def loss_of(self, output: Any) -> Tensor:
        """Return the loss of an output, with the same labels and random numbers at each call."""
        return self.one.loss(output).reshape(())

    def at(self, u: Direction, rate: float) -> float:
        """Return the loss at the parameters θ − rate u."""
        with torch.no_grad():
            return float(self.loss_of(self.output({name: self.held[name] - rate * step for name, step in u.items()})))


def _groups(module: nn.Module, lists: Sequence[LayerList], gradient: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Group a module's parameter names by layer, or by the submodule that holds them."""
    layers = [name for part in lists for name in part.names]
    groups: dict[str, list[str]] = {}
    for name in gradient:
        layer = next((path for path in layers if name.startswith(f"{path}.")), None)
        groups.setdefault(layer or name.rpartition(".")[0] or type(module).__name__, []).append(name)
    return groups


def step_rows(path: ParameterLine, u: Direction, groups: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Return the rows of one optimizer's step: one for the whole step, and one for each group that it updates."""
    stepped = {name: [p for p in members if p in u] for name, members in groups.items()}
    stepped = {name: members for name, members in stepped.items() if members}
    gains = {n: float(sum((path.gradient[p].double() * u[p]).sum() for p in members)) for n, members in stepped.items()}
    gain = sum(gains.values())
    curvatures, shares = _gauss_newton(path, u, stepped)
    scale = gain**2 / max(abs(path.loss), 1e-30)
    if not curvatures.get(WHOLE, 0.0) > _ROUNDING * scale:
        curvatures = shares = {}
    missing = float("nan")
    curvature, hessian = curvatures.get(WHOLE, missing), _hessian(path, u)
    rate, passes = missing, 0
    if 0 < gain < float("inf"):
        guesses = (2 * gain / curved for curved in (curvature, hessian) if curved > 0)
        guess = next(guesses, max(abs(path.loss), 1e-30) / gain)
        rate, passes = break_even_rate(lambda eta: path.at(u, eta), path.loss, gain, guess)
    whole = {
        "group": WHOLE, "gain": gain, "curvature": curvature, "share": 1.0, "hessian": hessian,
        "break_even_rate": rate, "passes": passes, "loss": path.loss,
    }  # fmt: skip
    rest = [
        {"group": n, "gain": gains[n], "curvature": curvatures.get(n, missing), "share": shares.get(n, missing)}
        for n in stepped
    ]
    return [whole, *rest]


def _gauss_newton(
    path: ParameterLine, u: Direction, groups: Mapping[str, Sequence[str]]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return u'Gu of each group's step alone and of the whole step, and each group's share of the latter.

    With w_a the change of the output along the step of group a, and H the Hessian of the loss with respect to the
    output, these are w_a·H w_a and w_a·H w / (w·H w). Both are empty if the output contains no tensor, or an operation
    has no second derivative.
    """
    step = next(iter(u.values()))
    etas = {name: torch.zeros((), dtype=step.dtype, device=step.device, requires_grad=True) for name in groups}
    moved = {p: path.held[p] - etas[name] * u[p] for name, members in groups.items() for p in members}
    try:
        with plain_operations():
            leaves, form = pytree.tree_flatten(path.output(moved))
            places = [k for k, z in enumerate(leaves) if isinstance(z, Tensor) and z.requires_grad]
            if not places:
                return {}, {}
            # What is linear in cotangents v is differentiated by them: a Jacobian product by two backward passes.
            v = [torch.zeros_like(leaves[k], requires_grad=True) for k in places]
            paired = torch.stack([(a * leaves[k]).sum() for a, k in zip(v, places, strict=True)]).sum()
            slopes = torch.autograd.grad(paired, list(etas.values()), create_graph=True, allow_unused=True)
            moves = {
                name: _products(slope, v) for name, slope in zip(etas, slopes, strict=True) if slope is not None
            }  # fmt: skip
            moves = {WHOLE: [torch.stack(parts).sum(0) for parts in zip(*moves.values(), strict=True)]} | moves
            z = [leaves[k].detach().requires_grad_() for k in places]
            leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            for k, output in zip(places, z, strict=True):
                leaves[k] = output
            first = torch.autograd.grad(
                path.loss_of(pytree.tree_unflatten(leaves, form)), z, create_graph=True, allow_unused=True
            )  # fmt: skip
            bent = {name: _second(first, z, w) for name, w in moves.items()}
    except (RuntimeError, NotImplementedError):
        return {}, {}
    # A step goes along −u, and squares do not mind.
    curvatures = {name: _dot(moves[name], bent[name]) for name in moves}
    total = curvatures[WHOLE]
    shares = {name: _dot(w, bent[WHOLE]) / total if total else float("nan") for name, w in moves.items()}
    return curvatures, shares


def _products(slope: Tensor, v: Sequence[Tensor]) -> list[Tensor]:
    products = torch.autograd.grad(slope, list(v), retain_graph=True, allow_unused=True)
    return [torch.zeros_like(a) if w is None else w.detach() for a, w in zip(v, products, strict=True)]


def _second(first: Sequence[Tensor | None], z: Sequence[Tensor], w: Sequence[Tensor]) -> list[Tensor]:
    """Multiply w by the Hessian with respect to z, given the gradient with respect to z; zeros for a linear loss."""
    parts = [(a * b).sum() for a, b in zip(first, w, strict=True) if a is not None and a.requires_grad]
    if not parts:
        return [torch.zeros_like(output) for output in z]
    products = torch.autograd.grad(torch.stack(parts).sum(), list(z), retain_graph=True, allow_unused=True)
    return [torch.zeros_like(a) if b is None else b for a, b in zip(z, products, strict=True)]


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return float(sum((x.double() * y.double()).sum() for x, y in zip(a, b, strict=True)))


def _hessian(path: ParameterLine, u: Direction) -> float:
    """Return u'Hu with the loss's Hessian along a step; NaN if an operation has no second derivative."""
    step = next(iter(u.values()))
    eta = torch.zeros((), dtype=step.dtype, device=step.device, requires_grad=True)
    try:
        with plain_operations():
            loss = path.loss_of(path.output({name: path.held[name] - eta * v for name, v in u.items()}))
            (slope,) = torch.autograd.grad(loss, eta, create_graph=True)
            (curvature,) = torch.autograd.grad(slope, eta)
    except (RuntimeError, NotImplementedError):
        return float("nan")
    return float(curvature)
