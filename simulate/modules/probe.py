"""Measure any `torch.nn.Module` at initialization: activations, gradients and weights of its layers.

A factory makes a module of a width and a depth. The module is made anew for every seed, runs once forward and once
backward, and is measured by hooks on its layers.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import isfinite
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from simulate.modules.boundaries import unseen_layers, with_boundaries
from simulate.modules.exact_tests import ExactTests, exact_tests
from simulate.modules.factories import Factory, Made, check_sizes, of_every_module, seeded
from simulate.modules.hooks import ModuleRecorder, first_not_finite
from simulate.modules.layers import LayerList, layer_lists, place_of, token_axis, watched_members

# So many modules of every width and depth are asked for the response of their layers, and for what learns later.
_ASKED = 1
# Entries of what begins at 0 when it has moved: any size will do.
_MOVED = 0.02
# Entries this many times the median one are no draw; and how near gradients are that are the same.
_GARBAGE, _LOOKED_AT, _EQUAL = 1e6, 65_536, 1e-3
ROUNDED = 2.0**-23
"""The share of a layer's largest product gradient x weight below which another may be a rounding error. The share is
the spacing of single precision.

Gates of experts that cannot learn have 1e-8, and the weakest gates that learn have 1e-4.
"""

COLUMNS = ["width", "depth", "seed", "part", "layer", "parameter", "quantity", "value"]

ALONE = (0, 0)
"""The width and the depth of a single module in the table."""


@dataclass(frozen=True, slots=True, eq=False)
class Probed:
    """The measured numbers of one PyTorch module, or of modules of several widths and depths.

    Attributes:
        frame: one row per configuration, seed, layer and quantity: width, depth, seed (0, 1, ...), part (the name of
            the layer's list), layer (1, 2, ...; 0 outside of layers), parameter (its name in the layer, or ""),
            quantity, value. Quantities of a layer's output: hidden_energy (mean square), energy_spread (the standard
            deviation of the tokens' mean squares divided by their mean: 0 after a norm), stream_cosine (cosine between
            a token's input and output), stream_coefficient (<x, y>/<x, x> of input and output over all tokens, each
            minus the mean of its coordinates) with coefficient_error (its standard deviation if the layer added a
            random direction), and gradient_sq (squared norm of the loss gradient; 0 if no gradient arrives). Quantities
            of the first layer: input_energy (mean square of its input), input_tokens (number of tokens in all samples)
            and input_positions (in one sample). For one seed only, scale_response (d ln |y|^2/d ln |x|^2: 0 after a
            norm, 1 for an empty branch). Quantity of a list: layers (their number). Quantity of a submodule: identity
            (1 for an nn.Identity). Quantities of a parameter: gradient and weight (Frobenius norms), ratio (gradient /
            weight), entries (their number), far_entry (the largest entry divided by the median one, if that is
            implausibly large), alike (1 if entries along an axis are equal and have equal gradients), frozen (1 without
            requires_grad), shared (1 if it has two names), embedding (1 for an nn.Embedding's weight), idle (1 for an
            expert without tokens). If the gradient is 0, for one seed only, gradient_later (the gradient's norm after
            all parameters that are 0 and get a gradient have moved); if the gradient may be rounding (`ROUNDED`),
            gradient_double (in double precision). Quantity of the whole module: loss. One module has width and depth 0
            (`ALONE`), and its matrices have shortest, the smaller of both lengths; the layers of its first list have
            energy_smaller_ends (`simulate.modules.branch_ends.smaller_ends`).
        notes: remarks on frozen, unused and shared parameters, and on layers that ran more than once, one line each.
        tests: the exact tests of the first module, of the first width and depth.
        unseen: the reason why no layer was measured, by the name of the list; the key is "" for a module without lists.
        dtype_change: relative root mean square difference of one module's output from its output in single precision; 0
            for a module in single precision, and NaN if it was not compared.
        dtype: data type of one module's parameters, such as "bfloat16".
        unscaled: names of the matrices that end branches without the factor 1/sqrt(2L), which are made smaller for
            energy_smaller_ends.
        names: names of one module's layers, by list and number.
        config: the fields of one module's attribute `config`, as in models of transformers; empty without one.
        words: length of the sequences of token ids in one module's inputs; 0 without token ids.
    """

    frame: pd.DataFrame
    notes: tuple[str, ...]
    tests: ExactTests
    unseen: Mapping[str, str] = field(default_factory=dict)
    dtype_change: float = 0.0
    dtype: str = ""
    unscaled: tuple[str, ...] = ()
    names: Mapping[tuple[str, int], str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    words: int = 0


_ENDS = {
    "unused": " has no gradient", "idle": " did not run on this batch, unlike other modules of its list",
    "without tokens": " ran on this batch, but its output is not used, unlike other modules of its list",
}  # fmt: skip


def probe(
    factory: Factory,
    *,
    widths: Sequence[int],
    depths: Sequence[int],
    seeds: int,
    seed: int = 0,
    layers: Sequence[str] = (),
    device: str = "cpu",
    alone: bool = False,
    on_module: Callable[[int, int], None] | None = None,
) -> Probed:
    """Measure the modules that a factory makes for several widths, depths and seeds.

    Only one module is in memory at a time.

    Args:
        factory: `factory(width, depth)` returns a module and a function `batch(seed)`, which returns the module's
            inputs (a tensor, a tuple of arguments, or a dict of keyword arguments) and a function from its output to a
            scalar loss.
        widths: widths of the modules, passed to the factory.
        depths: depths of the modules, passed to the factory.
        seeds: number of modules per width and depth.
        seed: root seed; torch's global generators are set from it, and restored at the end.
        layers: glob patterns of the layers' names, such as "encoder.layers.*"; layers are found automatically if left
            out.
        device: the device of module and batch.
        alone: whether the factory's modules have no width and depth, and may be without a list of layers.
        on_module: progress callback, called as on_module(done, total) after each module.

    Raises:
        ValueError: an argument is outside its range; the factory, its module or its loss fails, or gives no gradient;
            or there is no list of layers.
    """
    check_sizes(widths, depths, seeds, seed, device)
    rows: list[tuple[Any, ...]] = []
    notes: dict[str, None] = {}
    tests: list[ExactTests] = []
    unseen: dict[str, str] = {}
    measure = partial(_one, layers, tests, unseen, alone)
    every = of_every_module(
        measure, factory, product(widths, depths), seeds, seed=seed, device=device, on_module=on_module
    )
    for (width, depth, number), (module_rows, module_notes) in every:
        rows += [(width, depth, number, *row) for row in module_rows]
        notes |= dict.fromkeys(module_notes)
    return Probed(frame_of(rows), tuple(notes), tests[0], unseen)


def frame_of(rows: Sequence[tuple[object, ...]]) -> pd.DataFrame:
    """Return measured rows as a data frame whose texts are Python strings, because pandas selects these faster.

    The columns are `COLUMNS`.
    """
    return pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(("part", "parameter", "quantity"), object))


def _one(
    globs: Sequence[str],
    tests: list[ExactTests],
    unseen: dict[str, str],
    alone: bool,
    built: Made,
    seed: int,
    size: tuple[int, int],
    number: int,
) -> tuple[list[tuple[Any, ...]], list[str]]:
    lists = with_boundaries(built, found_layers(built.module, globs, size[1], needed=not alone), seed)
    rows = measured(built, lists, asked=number < _ASKED)
    unseen |= unseen_layers(lists, rows[0])
    if not tests:
        tests.append(exact_tests(built, lists))
    return rows


def found_layers(module: nn.Module, globs: Sequence[str], depth: int, *, needed: bool) -> list[LayerList]:
    """Return the lists of layers in a module; an empty list if there are none and none is required.

    Raises:
        ValueError: as `layer_lists`, if globs are given or a list is needed.
    """
    try:
        return layer_lists(module, globs, depth)
    except ValueError:
        if globs or needed:
            raise
        return []


def measured(built: Made, lists: Sequence[LayerList], *, asked: bool) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Run a module forward and backward once, and return its measured numbers and notes.

    The numbers are the rows of `Probed.frame` from the column `part` on.

    Args:
        built: module and batch; the parameters have gradients afterwards.
        lists: the module's lists of layers.
        asked: whether scale_response and gradient_later are measured too.

    Raises:
        ProbeError: module or loss fails.
    """
    module = built.module
    recorder = ModuleRecorder(lists, token_axis(module), respond=asked)
    with recorder, watched_members(lists) as idle:
        loss = built.backward()
    rows = [("", 0, "", "loss", loss.detach().float().reshape(())), *recorder.rows()]
    rows += [(part.name, 0, "", "layers", loss.new_tensor(len(part.layers)).float()) for part in lists]
    rows += [
        (part.name, number, name, "identity", loss.new_ones(()).float())
        for part in lists
        for number, layer in enumerate(part.layers, 1)
        for name, inner in layer.named_modules()
        if isinstance(inner, nn.Identity) and name
    ]
    weights, notes = _parameters(module, lists, idle)
    rows += weights
    if asked:
        rows += _later(built, lists)
    # One transfer for all numbers.
    values = torch.stack([row[-1].to(loss.device) for row in rows]).tolist()
    numbers = [(*row[:-1], value) for row, value in zip(rows, values, strict=True)]
    if not all(isfinite(row[4]) for row in numbers if row[3] in ("loss", "hidden_energy")):
        numbers += _broken(built, lists)
    norms = {row[:3]: row[4] for row in numbers if row[3] == "weight"}
    numbers += _in_double(built, lists, norms, {row[:3]: row[4] for row in numbers if row[3] == "gradient"})
    # Biases that begin at 0 have no ratio.
    ratios = [(*r[:3], "ratio", r[4] / norms[r[:3]]) for r in numbers if r[3] == "gradient" and norms[r[:3]] > 0]
    return numbers + ratios, [*notes, *recorder.notes()]


def _broken(built: Made, lists: Sequence[LayerList]) -> list[tuple[str, int, str, str, float]]:
    """Return the place where numbers stop being finite: value 1 if a submodule's input was not finite, else 0."""
    where = first_not_finite(built.module, lambda: built.fresh().forward())
    if where is None:
        return []
    name, given = where
    of_layer = {layer: (part.name, number) for part in lists for number, layer in enumerate(part.names, 1)}
    return [(*((*of_layer[name], "") if name in of_layer else place_of(name, of_layer)), "not_finite", float(given))]


def _parameters(
    module: nn.Module, lists: Sequence[LayerList], idle: Mapping[nn.Parameter, tuple[str, int, str]]
) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Return the norms of every parameter and of its gradient, with further marks, and notes on unusual parameters."""
    of_layer = {name: (part.name, number) for part in lists for number, name in enumerate(part.names, 1)}
    places: dict[int, list[tuple[str, int, str]]] = {}
    parameters: dict[int, nn.Parameter] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        parameters[id(parameter)] = parameter
        places.setdefault(id(parameter), []).append(place_of(name, of_layer))
    # What is said of a parameter, and in which layers of which list.
    silent: dict[tuple[str, str, str], list[int]] = {}
    notes = []
    known = list(parameters.values())
    weights = dict(zip(parameters, map(_norm, known), strict=True))
    of_gradient = {id(p): _norm(p.grad) for p in known if p.grad is not None}
    embeddings = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    rows: list[tuple[Any, ...]] = []
    for key, parameter in parameters.items():
        place, *others = places[key]
        if others:
            notes.append(f"shared: {_place_text(place)} is also {', '.join(map(_place_text, others))}")
        rows += [(*place, "weight", weights[key]), (*place, "entries", weights[key].new_tensor(parameter.numel()))]
        marks = {"shared": bool(others), "embedding": key in embeddings}
        rows += [(*place, mark, torch.ones_like(weights[key])) for mark, true in marks.items() if true]
        if not parameter.requires_grad:
            silent.setdefault(("frozen", place[0], place[2]), []).append(place[1])
            rows.append((*place, "frozen", torch.ones_like(weights[key])))
        elif parameter in idle and not (key in of_gradient and bool(of_gradient[key] > 0)):
            what = "idle" if key not in of_gradient else "without tokens"
            silent.setdefault((what, idle[parameter][0], idle[parameter][2]), []).append(idle[parameter][1])
            rows.append((*place, "idle", torch.ones_like(weights[key])))
        elif key not in of_gradient:
            silent.setdefault(("unused", place[0], place[2]), []).append(place[1])
        else:
            rows.append((*place, "gradient", of_gradient[key]))
            if _stay_equal(parameter.detach(), parameter.grad):
                rows.append((*place, "alike", torch.ones_like(weights[key])))
        if (times := _far_entry(parameter.detach())) > _GARBAGE:
            rows.append((*place, "far_entry", weights[key].new_tensor(times)))
    for (what, part, name), numbers in silent.items():
        place_text = _place_text((part, _run(list(dict.fromkeys(numbers))), name))
        notes.append(f"{what}: {place_text}{_ENDS.get(what, '')}")
    return rows, notes


def _in_double(
    built: Made, lists: Sequence[LayerList], norms: Mapping[Any, float], gradients: Mapping[Any, float]
) -> list[tuple[Any, ...]]:
    """Recompute in double precision the gradients of layers' parameters that may be rounding errors.

    A gradient may be rounding if its norm times the weight's norm is far below the largest such product in its layer.
    The result is empty if the module cannot run in double precision.
    """
    effects = {at: gradient * norms[at] for at, gradient in gradients.items() if at[1]}
    largest: dict[Any, float] = {}
    for at, effect in effects.items():
        largest[at[:2]] = max(effect, largest.get(at[:2], 0.0))
    small = {at for at, effect in effects.items() if 0 < effect < ROUNDED * largest[at[:2]]}
    if not small:
        return []
    of_layer = {name: (part.name, number) for part in lists for number, name in enumerate(part.names, 1)}
    with suppress(Exception), seeded(0):
        # Somebody else's module or loss may name its own dtype, and cannot be run in another.
        module = deepcopy(built.module).double()
        module.zero_grad(set_to_none=True)
        double = tree_map(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, built.inputs)
        replace(built, module=module, inputs=double).backward()
        known = {place_of(name, of_layer): p.grad for name, p in module.named_parameters() if p.grad is not None}
        return [(*at, "gradient_double", float(known[at].norm())) for at in small if at in known]
    return []


def _later(built: Made, lists: Sequence[LayerList]) -> list[tuple[Any, ...]]:
    """Return the gradients of layers' parameters with gradient 0, after parameters that begin at 0 have moved.

    A weight before a matrix of 0 gets a gradient as soon as that matrix moves; a weight before two such factors in a
    row never does. Parameters are moved repeatedly until no further parameter gets a gradient; at the end they are 0
    again.
    """
    parameters = dict(built.module.named_parameters())
    of_layers = tuple(f"{name}." for part in lists for name in part.names)
    silent = {
        k: p for k, p in parameters.items() if k.startswith(of_layers) and p.grad is not None and not _any(p.grad)
    }
    moved: list[nn.Parameter] = []
    while not all(_any(p.grad) for p in silent.values()):
        beginning = [p for p in parameters.values() if _any(p.grad) and not _any(p)]
        if not beginning:
            break
        with torch.no_grad():
            for parameter in beginning:
                nn.init.normal_(parameter, std=_MOVED)
        moved += beginning
        built.module.zero_grad(set_to_none=False)
        built.backward()
    with torch.no_grad():
        for parameter in moved:
            parameter.zero_()
    of_layer = {name: (part.name, number) for part in lists for number, name in enumerate(part.names, 1)}
    later = {k: p.grad for k, p in silent.items() if p.grad is not None}
    return [(*place_of(k, of_layer), "gradient_later", _norm(gradient)) for k, gradient in later.items()]


def _stay_equal(weight: Tensor, gradient: Tensor | None) -> bool:
    """Return whether entries along an axis are equal and get equal gradients, so that no step separates them."""
    for axis in range(weight.ndim if gradient is not None and not gradient.is_sparse else 0):
        # Most weights differ between their first two entries already.
        several = weight.shape[axis] > 1 and torch.equal(weight.select(axis, 0), weight.select(axis, 1))
        if several and gradient is not None and torch.equal(weight, weight.narrow(axis, 0, 1).expand_as(weight)):
            first = gradient.narrow(axis, 0, 1)
            if bool(first.any()) and bool(((gradient - first).abs() <= _EQUAL * first.abs().max()).all()):
                return True
    return False


def _far_entry(weight: Tensor) -> float:
    """Return the largest entry of a weight divided by the median of its nonzero entries (from a sample of entries)."""
    if not weight.numel():
        return 0.0
    largest = max(abs(float(end)) for end in weight.aminmax())
    sample = weight.flatten()[:: max(1, weight.numel() // _LOOKED_AT)].abs().float()
    sample = sample[sample > 0]
    return largest / float(sample.median()) if isfinite(largest) and len(sample) > 1 else 0.0


def _any(values: Tensor | None) -> bool:
    return values is not None and bool(values.any())


def _norm(values: Tensor) -> Tensor:
    """Return the norm of a tensor in single precision, summed in single precision or better."""
    dtype = torch.promote_types(values.dtype, torch.float32)
    values = values.coalesce().values() if values.is_sparse else values
    norm = torch.linalg.vector_norm(values.detach(), dtype=dtype).float()
    # The squares of 1e20 are beyond single precision, and the norm is not.
    return norm if bool(norm.isfinite()) else torch.linalg.vector_norm(values.detach(), dtype=torch.float64).float()


def _run(numbers: Sequence[int]) -> str:
    """Describe layer numbers in words, consecutive ones as a range."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"s {numbers[0]} to {numbers[-1]}"
    return f"{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _place_text(place: tuple[str, int | str, str]) -> str:
    part, number, name = place
    where = number if isinstance(number, str) else f" {number}"
    return f"{name} of layer{where} of {part}" if part else name
