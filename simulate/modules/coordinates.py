"""Take optimizer steps of modules of several sizes, and split the change of every output into its two causes.

A module f has weights W and inputs x, with index 0 before the first step and k after k steps. The change of its output
is f(W_k, x_k) - f(W_0, x_0) = [f(W_k, x_0) - f(W_0, x_0)] + [f(W_k, x_k) - f(W_k, x_0)]. The first part is the own
change, caused by the module's own update: for a matrix (W_k - W_0) x_0. The second part is the passed-on change, caused
by the changed input: W_k (x_k - x_0). With the first inputs, the own change is linear in the learning rate of the first
step, and its exponent in the width is the same at every learning rate. (Everett et al. 2024 separate (W_k - W_0) (x_k -
x_0) from both; here it belongs to the passed-on change.) If a module has several weights, the own change of one weight
is the difference that its update alone makes.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from simulate.counts import check_count
from simulate.modules.factories import Factory, Made, check_sizes, of_every_module, seeded
from simulate.modules.layers import tensor_of
from simulate.modules.optimizer_watch import OptimizerWatch, shortened
from simulate.modules.own_changes import (
    Move,
    RandomState,
    Start,
    draws_nothing,
    moves_of,
    own_changes,
    random_state,
)
from simulate.modules.scalars import unwatched
from simulate.modules.step_optimizers import OptimizerFactory, Stepper, stepper_of
from simulate.modules.tensor_sizes import Size, numbers_of, root_mean_squares
from simulate.modules.weight_places import Owner, PlaceWatcher, WeightPlaces, named_places

COLUMNS = ["width", "depth", "seed", "step", "place", "parameter", "quantity", "value"]
Row = tuple[int, int, int, int, str, str, str, float]
"""A row of measurements with the columns `COLUMNS`."""

MOST_STEPS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Stepped:
    """The measurements from optimizer steps of modules with several widths and depths.

    Attributes:
        rows: one row per width, depth, seed (0, 1, ...), step (0 before the first), place (a module's name), parameter
            (its name in the module, or "") and quantity. Quantities of a module: coordinates (mean |y| of its output),
            passed (root mean square of f(W_k, x_k) - f(W_k, x_0)), and before the first step inputs (mean |x|),
            multiplier and input_multiplier (scalars that multiply its output and its input), logit_scale and key_size
            (of attention). Quantities of a weight: own (root mean square change of the first output by its update),
            before the first step weight (root mean square entry), and for the step that follows rate (learning rate of
            its parameter group), gradient (root mean square entry) and once damping (for Adam and similar optimizers:
            the mean of eps/(sqrt(v) + eps)). Quantity of the whole module: loss.
        owners: for every (width, depth), the uses of weights in the order of the forward pass.
        order: for every (width, depth), the modules in the order in which they begin, with the last length of their
            output.
        steppers: the class of every weight's optimizer, by weight.
        alarms: faults of the optimizer or a step, each with its (width, depth), kind, names of weights, and text.
        notes: remarks, one line each.
        steps: the requested number of steps.
        seeds: number of modules of every size.
    """

    rows: tuple[Row, ...]
    owners: Mapping[tuple[int, int], tuple[Owner, ...]]
    order: Mapping[tuple[int, int], Mapping[str, int]]
    steppers: Mapping[str, str]
    alarms: tuple[tuple[tuple[int, int], str, tuple[str, ...], str], ...]
    notes: tuple[str, ...]
    steps: int
    seeds: int

    def to_frame(self) -> pd.DataFrame:
        """Return all measurements of the optimizer steps as a data frame with the columns `COLUMNS`."""
        return pd.DataFrame(self.rows, columns=COLUMNS)

    def coordinates(self) -> pd.DataFrame:
        """Return the mean absolute output of every submodule with a matrix, at every step, for a figure.

        It is the mean |y| of the output y, as data for `figures.probe.coordinates`.

        Returns:
            Columns place, width, step, value, sem: mean and standard error over seeds, at the greatest depth.
        """
        frame = self.to_frame()
        frame = frame[(frame["quantity"] == "coordinates") & (frame["depth"] == frame["depth"].max())]
        places = {owner.place for owners in self.owners.values() for owner in owners if len(owner.shape) > 1}
        values = frame[frame["place"].isin(places)].groupby(["place", "width", "step"], sort=False)["value"]
        return pd.DataFrame({"value": values.mean(), "sem": values.sem()}).reset_index()


def coordinate_steps(
    factory: Factory, optimizer: OptimizerFactory, *, name: str = "optimizer", widths: Sequence[int],
    depths: Sequence[int], steps: int, seeds: int, seed: int = 0, device: str = "cpu",
    on_module: Callable[[int, int], None] | None = None,
) -> Stepped:  # fmt: skip
    """Take optimizer steps of modules of several widths and depths, and measure the change of every output.

    Every width is measured at the greatest depth, and every depth at the greatest width.

    K steps take about 1 + K forward and K backward passes. After every step, each submodule with weights runs once
    more, and once for each weight if it has several (biases excepted). Weights, and inputs and outputs of such
    submodules, are in memory twice. All steps use one batch and the same random numbers. Multipliers and attention
    scales are measured in the first module of a size.

    Args:
        factory: the function of a width and a depth, as in `simulate.probe`.
        optimizer: function of a module, and of `width` and `depth` if it has such parameters, that returns a
            torch.optim.Optimizer, several, or (optimizer, schedule).
        name: the optimizer's name.
        widths: widths of the modules.
        depths: depths of the modules.
        steps: number of steps, at least 1.
        seeds: number of modules of every size.
        seed: root seed.
        device: the device of module and batch.
        on_module: progress callback, called as on_module(done, total) after each module.

    Raises:
        ValueError: an argument is outside its range.
        ProbeError: factory, optimizer, module or loss fails.
    """
    check_count("steps", steps, 1)
    if steps > MOST_STEPS:
        raise ValueError(f"steps must be at most {MOST_STEPS}, got {steps!r}.")
    check_sizes(widths, depths, seeds, seed, device)
    rows, notes = list[Row](), dict[str, None]()
    alarms = dict[tuple[tuple[int, int], str, tuple[str, ...], str], None]()
    places: dict[tuple[int, int], WeightPlaces] = {}
    steppers = dict[str, str]()

    def measure(built: Made, own_seed: int, size: tuple[int, int], _: int) -> _Steps:
        module = _Steps(built, own_seed, places.get(size))
        module.take(stepper_of(name, optimizer, built.module, {"width": size[0], "depth": size[1]}), steps)
        return module

    sizes = step_sizes(widths, depths)
    every = of_every_module(measure, factory, sizes, seeds, seed=seed, device=device, on_module=on_module)
    for (width, depth, number), module in every:
        rows += [(width, depth, number, *row) for row in module.rows]
        alarms |= {((width, depth), *alarm): None for alarm in module.alarms}
        notes |= dict.fromkeys(module.notes)
        places.setdefault((width, depth), module.places())
        steppers |= module.steppers
    owners = {size: of_size.owners for size, of_size in places.items()}
    order = {size: of_size.order for size, of_size in places.items()}
    return Stepped(tuple(rows), owners, order, steppers, tuple(alarms), tuple(notes), steps, seeds)


def step_sizes(widths: Sequence[int], depths: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs (width, depth): every width at the greatest depth, and every other depth at the greatest width."""
    widths, depths = (sorted(set(values)) for values in (widths, depths))
    return [(width, depths[-1]) for width in widths] + [(widths[-1], depth) for depth in depths[:-1]]


class _Steps:
    """Optimizer steps of one module, measured by hooks on all its submodules.

    Args:
        built: module, batch and loss.
        seed: random seed of every step.
        places: uses of weights in another module of the same size; None finds them in the first pass.
    """

    def __init__(self, built: Made, seed: int, places: WeightPlaces | None) -> None:
        self._built, self._seed = built, seed
        self._names = named_places(built.module)
        self._places = places
        # Until they are known, every module may use weights.
        self._by_place = dict.fromkeys(self._names.values(), list[Owner]()) if places is None else places.by_place()
        self._parameters = list(built.module.named_parameters())
        self._first = {name: parameter.detach().clone() for name, parameter in self._parameters}
        self._names_of = {id(parameter): name for name, parameter in self._parameters}
        self._step, self._asking = 0, False
        self._moves: dict[str, Move] = {}
        self._means: dict[int, tuple[Tensor, int, Tensor]] = {}
        self._copies: dict[int, tuple[Tensor, int, Tensor]] = {}
        self._given: list[tuple[tuple[Any, ...], dict[str, Any], RandomState | None]] = []
        self._calls: dict[str, int] = {}
        self._starts: dict[tuple[str, int], Start] = {}
        self._inside: dict[str, dict[str, Tensor]] = {}
        self._values: dict[tuple[str, str, str], list[Tensor | Size]] = {}
        self.rows: list[tuple[Any, ...]] = []
        self.alarms: list[tuple[str, tuple[str, ...], str]] = []
        self.notes: list[str] = []
        self.steppers: Mapping[str, str] = {}

    def take(self, stepper: Stepper, steps: int) -> None:
        """Take the optimizer steps; afterwards, this object holds the measured rows.

        Raises:
            ProbeError: module, loss or optimizer fails.
        """
        sizes = root_mean_squares(list(self._first.values()))
        self.rows += [(0, name, "", "weight", size) for name, size in zip(self._first, sizes, strict=True)]
        watch = OptimizerWatch(stepper, self._parameters, self._first)
        handles = [handle for part in self._names for handle in self._measured(part)]
        try:
            self._take(watch, steps)
        finally:
            for handle in handles:
                handle.remove()
        self.rows += [(step, name, "", quantity, value) for step, name, quantity, value in watch.rows]
        self.alarms = [*watch.alarms, *self.alarms]
        self.notes += watch.notes
        frozen = [name for name, parameter in self._parameters if not parameter.requires_grad]
        self.notes += [f"frozen: {shortened(frozen)}"] if frozen else []
        self.steppers = watch.steppers

    def _take(self, watch: OptimizerWatch, steps: int) -> None:
        for step in range(steps + 1):
            self._step = step
            last = step == steps
            self._asking = False
            watcher = PlaceWatcher(self._built.module) if self._places is None else None
            with seeded(self._seed + 1):
                loss = self._built.fresh().forward()[1] if last else self._built.fresh().backward(watcher)
            # Passes that an optimizer makes are none of these.
            self._asking = True
            self._means.clear()
            self._copies.clear()
            if watcher is not None:
                self._know(watcher.places())
            if step == 0:
                self.rows[:0] = [(0, name, "", quantity, value) for name, quantity, value in self.places().scalars]
            if not self._kept(loss.detach()) or last:
                return
            watch.step()
            self._moves = moves_of(dict(self._parameters), self._first)
            watch.look(self._moves)
            self._built.module.zero_grad(set_to_none=True)

    def places(self) -> WeightPlaces:
        """Return the uses of weights, as the first pass has shown.

        Raises:
            RuntimeError: no pass was run yet.
        """
        if self._places is None:
            raise RuntimeError("places must be asked for after a pass")
        return self._places

    def _know(self, places: WeightPlaces) -> None:
        """Keep from the first pass only the measurements of modules that use weights."""
        self._places, self._by_place = places, places.by_place()
        self._starts = {at: start for at, start in self._starts.items() if at[0] in self._by_place}
        self._values = {
            key: values for key, values in self._values.items() if key[0] in self._by_place or key[2] != "inputs"
        }

    def _measured(self, part: nn.Module) -> list[Any]:
        name = self._names[part]

        def enters(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._asking or self._step or name not in self._by_place:
                return
            with torch.no_grad(), unwatched() if self._places is None else nullcontext():
                state = None if draws_nothing(part) else random_state([*args, *kwargs.values()])
                given = tuple(map(self._copied, args)), {key: self._copied(value) for key, value in kwargs.items()}
                self._given.append((*given, state))

        def leaves(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if not self._asking:
                with torch.no_grad(), unwatched() if self._places is None else nullcontext():
                    self._left(name, part, [*args, *kwargs.values()], output)

        before = part.register_forward_pre_hook(enters, with_kwargs=True)
        return [before, part.register_forward_hook(leaves, with_kwargs=True)]

    def _left(self, name: str, part: nn.Module, inputs: list[Any], output: Any) -> None:
        given = self._given.pop() if self._step == 0 and name in self._by_place else None
        y = tensor_of(output)
        if y is None:
            return
        self._put((name, "", "coordinates"), self._mean(y))
        if name in self._by_place:
            if not self._step and (x := tensor_of(inputs)) is not None:
                self._put((name, "", "inputs"), self._mean(x))
            call = self._calls[name] = self._calls.get(name, 0) + 1
            if given is not None:
                self._starts[name, call] = Start(given[0], given[1], self._copy(y), given[2])
            else:
                self._changes(name, part, y, call)

    def _mean(self, x: Tensor) -> Tensor:
        """Return mean |x|, computed once if x is the output of one module and the input of others."""
        return _known(self._means, x, lambda: x.float().abs().mean())

    def _copy(self, x: Tensor) -> Tensor:
        """Return a copy of a tensor's current values; a tensor that several modules receive is copied once."""
        return _known(self._copies, x, x.clone)

    def _copied(self, value: Any) -> Any:
        return self._copy(value) if isinstance(value, Tensor) else tree_map_only(Tensor, self._copy, value)

    def _put(self, key: tuple[str, str, str], value: Tensor | Size) -> None:
        """Store a mean or the size of a difference under its key."""
        self._values.setdefault(key, []).append(value)

    def _changes(self, name: str, part: nn.Module, y: Tensor, call: int) -> None:
        """Measure how updates change a module's first output, and which change is passed on."""
        start = self._starts.get((name, call))
        if start is None:
            return
        owners = self._by_place[name]
        moves = {owner.parameter: self._moves[owner.weight] for owner in owners if owner.weight in self._moves}
        if (firsts := self._inside.get(name)) is None:
            firsts = {of: self._first[self._names_of[id(weight)]] for of, weight in part.named_parameters()}
            self._inside[name] = firsts
        self._asking = True
        try:
            passed, sizes = own_changes(part, [owner.parameter for owner in owners], firsts, moves, start, y)
        finally:
            self._asking = False
        if passed is not None:
            self._put((name, "", "passed"), passed)
        for parameter, size in sizes.items():
            self._put((name, parameter, "own"), size)

    def _kept(self, loss: Tensor) -> bool:
        """Store the measurements of a pass as rows, and return whether all of them are finite."""
        # One transfer for all numbers; modules that run several times have several.
        several = [part for parts in self._values.values() for part in parts]
        numbers = iter(numbers_of([loss.reshape(()), *(x.norm if isinstance(x, Size) else x for x in several)]))
        values = {("", "", "loss"): next(numbers)}
        for key, parts in self._values.items():
            squares = [next(numbers) ** 2 / part.count if isinstance(part, Size) else next(numbers) for part in parts]
            values[key] = fmean(squares) ** 0.5 if isinstance(parts[0], Size) else fmean(squares)
        self._values, self._calls = {}, {}
        self._given.clear()
        if not all(map(isfinite, values.values())):
            wrong = [key for key, value in values.items() if not isfinite(value) and key[2] != "passed"]
            places = [place for place in self.places().order if any(key[0] == place for key in wrong)]
            # What ends first, of modules that are not finite, is the innermost one.
            where = next((key[0] for key in wrong if key[0]), places[0] if places else "") or "the loss"
            when = "before the first step" if not self._step else f"after step {self._step}"
            self.alarms.append(("non-finite", (), f"{when} {where} is not finite"))
            return False
        self.rows += [(self._step, *key, value) for key, value in values.items()]
        return True


def _known(values: dict[int, tuple[Tensor, int, Tensor]], x: Tensor, make: Callable[[], Tensor]) -> Tensor:
    """Return the stored value for the current numbers of a tensor, or compute and store it."""
    # What inference mode makes does not count its changes.
    changes = -1 if x.is_inference() else x._version
    known = values.get(id(x))
    if known is None or known[0] is not x or known[1] != changes or changes < 0:
        known = values[id(x)] = x, changes, make()
    return known[2]
