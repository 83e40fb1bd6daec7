"""Test the modules that are called a norm: does their output depend on the scale of their input?"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from simulate.modules.layers import tensor_of

_EPSILONS = ("eps", "variance_epsilon", "epsilon")
_FACTOR = 2.0
# How far sizes of rows may be from one another in parts.
_ALIKE = 0.01
# So many times its input, no epsilon counts.
_FAR = 1e4


def norms_of(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the innermost submodules whose class or name says that they are a norm.

    They are yielded with their names.

    Modules of `torch.nn` of another kind under a norm's name (Identity, Dropout) are left out, and so are
    parametrizations that normalize a weight.
    """
    for name, part in module.named_modules():
        if ".parametrizations." in f".{name}.":
            continue
        kind = type(part).__name__.lower()
        by_name = "norm" in name.rpartition(".")[2].lower() and not type(part).__module__.startswith("torch.")
        if (says_norm(part) or by_name) and "identity" not in kind and not list(part.children()):
            yield name, part


def says_norm(part: nn.Module) -> bool:
    """Return whether the name of a module's class or of a base class contains "norm" or "rms"."""
    return any(word in kind.__name__.lower() for kind in type(part).__mro__ for word in ("norm", "rms"))


def norm_response(part: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, float]:
    """Measure how a norm's output depends on the scale of its input, compared with the effect of its epsilon.

    Returns:
        "norm_response": ln(|f(2x) - f(0)|²/|f(x) - f(0)|²)/ln 4, 0 for a norm, 1 for the identity. "norm_epsilon": the
        same number for x/sqrt(v + ε), where v is each row's variance, or its mean square if the norm divides by it.
        "norm_share": the factor by which epsilon reduces the output's mean
        square, minus 1: ε/v if all rows have the same v. "norm_divided": the v with this share. Batch and instance
        norms of `torch.nn` are not run again, because they may use stored statistics; their "norm_response" equals
        "norm_epsilon". "norm_far": the response at 10^4 x, where epsilon is negligible. "norm_backward": root mean
        square over samples of g·x, for the gradient g of <f(x), u> with a random direction u. It is divided by its
        value for a random g, and is 0 for a norm except for its epsilon. "norm_gain": the root mean square of
        f(x) - f(0), corrected for epsilon, if half of the rows have the same. The result is empty if the first input is
        not a tensor or has no entries.
    """
    x = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
    if x is None or tensor_of(x) is None or not x.numel():
        return {}
    if isinstance(part, nn.modules.batchnorm._NormBase):
        answers = _epsilon_alone(_variance_of(part, x.detach()), part.eps)
        return {"norm_response": answers["norm_epsilon"], **answers}

    def run(given: Tensor) -> Tensor | None:
        named = {name: given if value is x else value for name, value in kwargs.items()}
        return tensor_of(part.forward(*(given if value is x else value for value in args), **named))

    def at(scale: float) -> Tensor | None:
        return run(scale * x)

    with torch.no_grad():
        try:
            once, twice, nowhere = at(1.0), at(_FACTOR), at(0.0)
            far = at(_FAR), at(_FAR * _FACTOR)
        except (RuntimeError, TypeError, ValueError):
            return {}
        if once is None or twice is None or nowhere is None or _is_by_entry(x, run) or _is_off(part, x, once):
            return {}
        # A shift stays; without an epsilon nothing is known at 0.
        shift = torch.nan_to_num(nowhere.double(), 0.0, 0.0, 0.0)
        energies = [float((y.double() - shift).square().sum()) for y in (once, twice, *far) if y is not None]
        if not (all(map(math.isfinite, energies[:2])) and min(energies[:2]) > 0):
            return {}
        values = x.detach().double()
        centred = isinstance(part, nn.LayerNorm) or "layer" in type(part).__name__.lower()
        divided = values.var(-1, correction=0) if centred else values.square().mean(-1)
    epsilon = next((float(e) for key in _EPSILONS if isinstance(e := getattr(part, key, None), float)), 0.0)
    if epsilon == 0.0 and isinstance(part, nn.RMSNorm):
        epsilon = torch.finfo(x.dtype).eps
    response = math.log(energies[1] / energies[0]) / math.log(_FACTOR**2)
    answers = {"norm_response": response, **_epsilon_alone(divided, epsilon)}
    if len(energies) == 4 and all(0 < energy < math.inf for energy in energies[2:]):
        answers["norm_far"] = math.log(energies[3] / energies[2]) / math.log(_FACTOR**2)
    return answers | _gain(once.double() - shift, answers["norm_share"]) | _backward(x, run)


def _is_by_entry(x: Tensor, run: Callable[[Tensor], Tensor | None]) -> bool:
    """Return whether an output depends only on the same entry of the input, as for a tanh that replaces a norm."""
    plain = x.detach().clone(memory_format=torch.contiguous_format)
    other = plain.clone()
    other.view(-1)[0] = _FAR * (1 + plain.view(-1)[0].abs())
    before, after = run(plain), run(other)
    if before is None or after is None or before.shape != x.shape or before.numel() < 2:
        return False
    changed = (before != after).flatten()
    # The identity answers to every scale, which is no tanh.
    bounded = bool(after.flatten()[0].abs() < _ALIKE * other.view(-1)[0])
    return bounded and bool(changed[0]) and not bool(changed[1:].any())


def _is_off(part: nn.Module, x: Tensor, y: Tensor) -> bool:
    """Return whether all weights are 0 and output equals input, as in a branch that training switches on."""
    weights = list(part.parameters())
    return bool(weights) and not any(bool(weight.any()) for weight in weights) and torch.equal(x, y)


def _gain(y: Tensor, share: float) -> dict[str, float]:
    sizes = y.square().mean(-1).flatten().sqrt().sort().values
    low, middle, high = (float(sizes[int(part * (len(sizes) - 1))]) for part in (0.25, 0.5, 0.75))
    return {"norm_gain": middle * (1 + share) ** 0.5} if high - low < _ALIKE * middle else {}


def _backward(x: Tensor, run: Callable[[Tensor], Tensor | None]) -> dict[str, float]:
    with torch.enable_grad(), suppress(RuntimeError, TypeError, ValueError):
        given = x.detach().clone().requires_grad_()
        y = run(given)
        if y is None or not y.requires_grad:
            return {}
        chosen = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y)
        (gradient,) = torch.autograd.grad(y, given, chosen, allow_unused=True)
        if gradient is None:
            return {}
        slope, values = (part.double().reshape(len(x) if x.ndim > 1 else 1, -1) for part in (gradient, x.detach()))
        along = (slope * values).sum(-1).square().sum()
        most = (slope.square().sum(-1) * values.square().sum(-1)).sum()
        return {"norm_backward": float((along * slope.shape[-1] / most) ** 0.5)} if most > 0 else {}
    return {}


def _epsilon_alone(divided: Tensor, epsilon: float) -> dict[str, float]:
    """Return the entries "norm_epsilon", "norm_divided" and "norm_share" of `norm_response` for x/sqrt(v + ε).

    Rows of x with equal gains have outputs of mean square v/(v + ε), each with its own v > 0. The mean over rows is not
    the output of the mean v, because one row may hold most of x. The entries are 0 if no row has v > 0.
    """
    divided = divided.double()[divided > 0]
    if not divided.numel():
        return {"norm_epsilon": 0.0, "norm_divided": 0.0, "norm_share": 0.0}
    once, twice = (float((square * divided / (square * divided + epsilon)).mean()) for square in (1.0, _FACTOR**2))
    share = float((epsilon / (divided + epsilon)).mean()) / once
    mean = epsilon / share if share else float(divided.mean())
    return {"norm_epsilon": math.log(twice / once) / math.log(_FACTOR**2), "norm_divided": mean, "norm_share": share}


def _variance_of(part: nn.modules.batchnorm._NormBase, x: Tensor) -> Tensor:
    """Return the variance by which a batch or instance norm divides.

    It is averaged over channels, because the variances of few values scatter.
    """
    kept = part.running_var
    batch = isinstance(part, nn.modules.batchnorm._BatchNorm)
    if kept is not None and not part.training:
        return kept.double().mean().reshape(1)
    axes = [axis for axis in range(x.ndim) if axis != 1] if batch else list(range(min(2, x.ndim - 1), x.ndim))
    return x.double().var(axes, correction=0).mean().reshape(1)
