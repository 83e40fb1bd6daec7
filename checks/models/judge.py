"""The function `probe`: it measures and judges one module, modules of several sizes, or optimizer steps."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from checks.fits import LEAST_POINTS
from checks.models.alarm import WHOLE_MODEL, Alarm, alarms_by_cause, of_weights
from checks.models.coordinate_causes import causes
from checks.models.coordinate_exponents import Against, Exponent, exponents, probe_grid
from checks.models.exact_alarms import exact_alarms, said
from checks.models.health import alarms as layer_alarms, kinds_of_layers
from checks.models.initialization import against_description, against_initialization
from checks.models.layer_tables import (
    ROLES,
    against_theory,
    checked_roles,
    layers_table,
    probe_exponents,
)
from checks.models.questions import Question, check_question
from checks.models.reference import FILE, Reference, against_reference, compare_modules, reference_of
from checks.models.report import ALWAYS, ProbeReport
from checks.models.sections import steps_notes
from checks.models.streams import learning_later, no_residual_anywhere, normed_residuals, other_depths
from checks.models.whole_model import entry_notes, loss_alarms, parts_of, profile, whole_model_alarms
from simulate import Probed, probe as probe_sizes
from simulate.modules.catalogue import BUILTINS, known, made_one, makes_one, takes_width_alone
from simulate.modules.coordinates import Stepped, coordinate_steps
from simulate.modules.factories import Factory, name_of, seeded
from simulate.modules.one_module import PARTS, batch_and_loss, is_module, one_module
from simulate.modules.one_step import one_step
from simulate.modules.step_optimizers import optimizer_factory
from theory import Stack
from theory.stack.parametrizations import PARAMETRIZATIONS, Parametrization

# Of these no number of a pass is asked.
_OF_WEIGHTS = ("copies", "structure", "bias")


def probe(
    factory: Any, batch: Any = None, *, loss: Callable[[Any], Any] | None = None, trained: bool = False,
    widths: Sequence[int] = (), depths: Sequence[int] = (), seeds: int = 8, seed: int = 0, layers: Sequence[str] = (),
    device: str = "cpu", stack: Any = None, against: Any = None, steps: int | None = None, optimizer: Any = None,
    learning_rate: float | None = None, parametrization: Parametrization = "mup",
    on_module: Callable[[int, int], None] | None = None,
) -> ProbeReport:  # fmt: skip
    """Check the initialization of one PyTorch module, or of the modules that a function makes for several sizes.

    Args:
        factory: a module, with its batch; a factory as in `simulate.probe`; a function without arguments that returns
            (module, batch) or (module, batch, loss); or a name: a built-in model, or MODULE:FACTORY.
        batch: the module's input: a tensor, a tuple of arguments or a dict of keyword arguments.
        loss: function of the module's output that returns a scalar; the default is the output's own `.loss`.
        trained: whether the module's weights are trained; thresholds for an initialization are then skipped.
        widths: widths that the factory is called with.
        depths: depths that the factory is called with.
        seeds: number of random modules per width and depth, or of each module in a comparison of two functions.
        seed: root seed.
        layers: glob patterns of the layers' names; layers are found automatically if left out.
        device: device of a factory's modules; a given module stays on its own device.
        stack: the expected network of one module, or a function of width and depth that returns it. The default is the
            factory's attribute `stack` (its attribute `roles` names parameters as `layer_tables.ROLES` does), or the
            network read from one module.
        against: the reference: another factory or its name, which is probed with other seeds; a `Reference`; or the
            file or folder that `--out` wrote. For a function without arguments: another such function, or its name.
        steps: number of optimizer steps; the scaling of outputs and updates with the size is judged.
        optimizer: optimizer of `steps` (default "adamw"), or of one module's first step: "sgd", "adam", "adamw",
            "muon", an optimizer, or a function of the module (and its `width` and `depth`), or its name, that
            returns a torch.optim.Optimizer, several of them, or (optimizer, schedule).
        learning_rate: learning rate of an `optimizer` given by name.
        parametrization: the expected scaling for `steps`: "sp", "mup", "mean-field" or "completep".
        on_module: progress callback, called as on_module(done, total) after every module, or every part of one module.

    Raises:
        ValueError: an argument belongs to another use (`checks.models.questions`), is outside its range, or names
            something that cannot be found.
    """
    alone = batch is not None or is_module(factory) or (not (widths or depths) and makes_one(factory))
    question: Question = "one" if alone else "grid" if steps is None else "steps"
    objects = {"loss": loss, "stack": stack, "against": against, "steps": steps, "optimizer": optimizer,
               "learning_rate": learning_rate, "trained": trained or None, "widths": widths or None,
               "depths": depths or None, "layers": layers or None,
               "parametrization": None if parametrization == "mup" else parametrization}  # fmt: skip
    check_question(question, [name for name, value in objects.items() if value is not None])
    if widths and not depths and takes_width_alone(factory):
        depths = (1,)
    if steps is not None:
        return _judged_steps(
            factory, optimizer or "adamw", learning_rate, parametrization, widths=widths, depths=depths, steps=steps,
            seeds=seeds, seed=seed, device=device, on_module=on_module,
        )  # fmt: skip
    sampling: dict[str, Any] = {"seeds": seeds, "layers": layers, "device": device}
    if not alone:
        return _judged_sizes(factory, sampling | {"widths": widths, "depths": depths}, seed, stack, against, on_module)
    return _judged_alone(
        factory, batch, loss, against, sampling, seed=seed, trained=trained, optimizer=optimizer,
        learning_rate=learning_rate, stack=stack, on_part=on_module,
    )  # fmt: skip


def _judged_alone(
    factory: Any, batch: Any, loss: Any, against: Any, sampling: dict[str, Any], *, seed: int, stack: Any, **rest: Any
) -> ProbeReport:
    """Measure and judge one module, and compare it with a reference."""
    differences, notes, name = list[Alarm](), list[str](), ""
    if against is not None:
        differences, notes = compare_modules(factory, against, seed=seed, **sampling)
    if not is_module(factory):
        name = name_of(factory)
        if batch is None:
            stack = known(factory).stack if stack is None else stack
            factory, batch, loss = made_one(factory, seed, sampling["device"])
    single = judged_module(factory, batch, loss, seed=seed, layers=sampling["layers"], name=name, stack=stack, **rest)
    single.alarms.extend(differences)
    return replace(single, notes=[*notes, *single.notes], compared=against is not None)


def judged_module(
    module: Any, batch: Any, loss: Callable[[Any], Any] | None = None, *, seed: int = 0, layers: Sequence[str] = (),
    trained: bool = False, name: str = "", optimizer: Any = None,
    learning_rate: float | None = None, stack: Stack | None = None,
    on_part: Callable[[int, int], None] | None = None,
) -> ProbeReport:  # fmt: skip
    """Measure and judge one PyTorch module, which is left unchanged.

    Args:
        module: a `torch.nn.Module`.
        batch: the input, as in `simulate.modules.one_module.one_module`.
        loss: the loss function, as in `simulate.modules.one_module.one_module`.
        seed: random seed of whatever module and loss sample.
        layers: glob patterns of the layers' names.
        trained: whether the weights are trained; thresholds for an initialization are then skipped.
        name: the name in the report; the module's class if left out.
        optimizer: optimizer whose first step is judged, as in `simulate.modules.one_step.one_step`; none if left out.
        learning_rate: learning rate of an optimizer given by name.
        stack: the expected network; read from layers of `torch.nn.TransformerEncoder` or from a model's configuration
            if left out.
        on_part: progress callback, called as on_part(done, total). An alarm in an installed class makes the total five
            times as large, because up to four new modules are then built and probed. Building takes up to a quarter of
            a probe's time.

    Raises:
        ValueError: as in `one_module` and `one_step`; or the Stack is not a Stack, or has another depth.
    """
    if stack is not None and not isinstance(stack, Stack):
        raise ValueError(f"stack must be a Stack for one module, got {stack!r}.")
    if optimizer is None and learning_rate is not None:
        raise ValueError(f"learning_rate requires an optimizer, got learning_rate = {learning_rate!r} without one.")
    measured = one_module(module, batch, loss, seed=seed, layers=layers, on_part=on_part)
    frame = measured.frame
    depths = [len(profile(frame, part, "hidden_energy")) for part in parts_of(frame)]
    if stack is not None and stack.depth not in depths:
        raise ValueError(f"stack must have the depth of a list of layers, {depths}, got depth {stack.depth}.")
    wrong, notes = _found(measured, stack, trained=trained)

    def judged(new: Any, draw: int) -> list[Alarm]:
        if on_part is not None:
            on_part(draw * PARTS, (1 + DRAWS) * PARTS)
        again = one_module(new, batch, loss, seed=seed, layers=layers)
        return [*exact_alarms(again.tests)[0], *layer_alarms(again.frame, again.config), *whole_model_alarms(again)]

    depth_of = frame.groupby("part")["layer"].max().to_dict()
    if drawn := drawn_alike(module, wrong, depth_of, judged, seed):
        wrong = [alarm for alarm in wrong if alarm not in drawn]
        kind = type(module).__name__
        why = f"a new {kind} has this too" if hasattr(module, "config") else f"by the code of the installed {kind}"
        notes[:0] = [f"{said(alarm)} ({why})" for alarm in drawn]
    alarms, step, moves = alarms_by_cause(wrong), None, pd.DataFrame()
    if optimizer is not None:
        inputs, own_loss = batch_and_loss(module, batch, loss)
        step = one_step(module, inputs, own_loss, optimizer, learning_rate=learning_rate, seed=seed)
        alarms += [of_weights("optimizer", names, what) for names, what in step.alarms]
        notes, moves = [*notes, *step.notes], step.moves
    return ProbeReport(
        name or type(module).__name__, alarms, notes, measured, layers_table(measured), steps=moves,
        step=step, trained=trained,
    )  # fmt: skip


def _found(measured: Probed, stack: Stack | None, *, trained: bool) -> tuple[list[Alarm], list[str]]:
    """Return all alarms and notes about one measured module."""
    frame = measured.frame
    exact, notes = exact_alarms(measured.tests, trained=trained)
    others = [
        *(replace(alarm, where=()) for alarm in layer_alarms(frame, measured.config)),
        *whole_model_alarms(measured),
    ]
    if trained:
        others = [alarm for alarm in others if alarm.kind in ALWAYS]
    deviations, deviation_notes = against_description(measured, stack, trained=trained)
    others, notes = [*others, *deviations], [*notes, *deviation_notes]
    if any(alarm.kind == "non-finite" for alarm in others):
        # What is watched in a pass follows from it.
        exact = [alarm for alarm in exact if alarm.kind in _OF_WEIGHTS]
    rules = (learning_later, no_residual_anywhere, normed_residuals, *(() if trained else (entry_notes,)))
    notes += [*kinds_of_layers(frame, measured.config), *(line for rule in rules for line in rule(frame))]
    notes += measured.notes
    return exact + others, notes


def _check_batch(frame: pd.DataFrame, stack: Stack) -> None:
    """Check that a batch has the number of sequences and tokens of a Stack.

    Raises:
        ValueError: the shapes differ.
    """
    first = frame.drop_duplicates("quantity").set_index("quantity")["value"]
    if {"input_tokens", "input_positions"} <= {*first.index}:
        tokens = int(first["input_positions"])
        sequences = round(float(first["input_tokens"]) / tokens)
        if sequences != stack.sequences:
            raise ValueError(
                f"stack must have the batch's shape: the batch has {sequences} sequences of {tokens} tokens, got "
                f"sequences={stack.sequences} and tokens={stack.tokens}."
            )


def _judged_sizes(
    factory: Any, sizes: dict[str, Any], seed: int, stack: Any, against: Any,
    on_module: Callable[[int, int], None] | None,
) -> ProbeReport:  # fmt: skip
    """Measure a factory's modules of several sizes and their reference, and judge them.

    Raises:
        ValueError: stack is not a function, or a factory, a reference or a role cannot be found.
    """
    name, built = name_of(factory), known(factory)
    stack = stack or built.stack
    if stack is not None and not callable(stack):
        raise ValueError(f"stack must be a function of a width and a depth that returns a Stack, got {stack!r}.")
    roles = {**ROLES, **checked_roles(built.roles)}
    reference, other = _held_against(against)
    rounds = 1 + (other is not None)
    probed = probe_sizes(built.factory, seed=seed, on_module=_round(on_module, 0, rounds), **sizes)
    if other is not None:
        probed_other = probe_sizes(other, seed=seed + 1, on_module=_round(on_module, 1, rounds), **sizes)
        reference = reference_of(name_of(against), probed_other.frame, probed_other.tests)
    frame, theory = probed.frame, None
    exact, notes = exact_alarms(probed.tests)
    first = sizes["widths"][0], sizes["depths"][0]
    wrong = [*layer_alarms(frame), *(replace(of, where=(first,)) for of in [*exact, *loss_alarms(probed.tests)])]
    if stack is not None:
        theory = against_theory(frame, stack, roles)
        _check_batch(frame, stack(*first))
        wrong += against_initialization(frame, theory, stack, roles)
    if reference is not None:
        wrong += against_reference(reference_of(name, frame, probed.tests), reference)
    rules = (other_depths, kinds_of_layers, learning_later, no_residual_anywhere, normed_residuals)
    notes = [*(line for rule in rules for line in rule(frame)), *notes, *probed.notes]
    return ProbeReport(
        name, alarms_by_cause(wrong), notes, probed, layers_table(probed), probe_exponents(frame), theory=theory,
        compared=reference is not None or stack is not None,
    )  # fmt: skip


def _round(on_module: Callable[[int, int], None] | None, place: int, rounds: int) -> Callable[[int, int], None] | None:
    """Return a progress callback for one of several rounds of measurements."""
    return None if on_module is None else lambda done, of: on_module(place * of + done, rounds * of)


def _held_against(against: Factory | str | Path | Reference | None) -> tuple[Reference | None, Factory | None]:
    """Return the stored reference, or the factory whose modules are probed as the reference.

    Raises:
        ValueError: the reference cannot be found.
    """
    if against is None or isinstance(against, Reference):
        return against, None
    path = Path(against) if isinstance(against, str | Path) and against not in BUILTINS else None
    if path is not None and (isinstance(against, Path) or path.exists() or path.suffix == ".json"):
        return Reference.read(path / FILE if path.is_dir() else path), None
    return None, known(against).factory


def _judged_steps(
    factory: Any, optimizer: Any, learning_rate: float | None, parametrization: Parametrization, *,
    widths: Sequence[int], depths: Sequence[int], steps: int, seeds: int, **rest: Any,
) -> ProbeReport:  # fmt: skip
    """Take optimizer steps of a factory's modules, and compare their exponents with a parametrization.

    This requires at least three widths at the greatest depth, or for CompleteP three depths at the greatest width.

    Raises:
        ValueError: an argument is outside its range.
        ProbeError: the user's code fails.
    """
    if parametrization not in PARAMETRIZATIONS:
        raise ValueError(f"parametrization must be one of {', '.join(PARAMETRIZATIONS)}, got {parametrization!r}.")
    needed = {"depths": depths} if parametrization == "completep" else {"widths": widths}
    for what, values in needed.items():
        if len(set(values)) < LEAST_POINTS:
            raise ValueError(
                f"{what} must have at least {LEAST_POINTS} different values for exponents of {parametrization}, got "
                f"{' '.join(map(str, values)) or 'none'}."
            )
    if seeds < 2:
        raise ValueError(f"seeds must be at least 2 for intervals of exponents, got {seeds!r}.")
    title, make = optimizer_factory(optimizer, learning_rate)
    depths = depths if parametrization == "completep" else [max(depths, default=0)]
    stepped = coordinate_steps(
        known(factory).factory, make, name=title, widths=widths, depths=depths, steps=steps, seeds=seeds, **rest
    )
    return judged_steps(stepped, parametrization, name_of(factory), title)


def judged_steps(stepped: Stepped, parametrization: Parametrization, name: str, optimizer: str) -> ProbeReport:
    """Judge optimizer steps by how their effects scale with the width, and return the report."""
    rows = list[Exponent]()
    alarms = _gathered([of_weights(kind, names, what, (at,)) for at, kind, names, what in stepped.alarms])
    dead = any(alarm.kind == "non-finite" for alarm in alarms)
    against: list[Against] = ["width"] if parametrization != "completep" else ["width", "depth"]
    for axis in against:
        sizes = probe_grid(stepped, axis)
        if len(sizes.values) < LEAST_POINTS:
            continue
        of_axis = exponents(stepped, sizes, parametrization)
        rows += of_axis
        alarms += [of_weights(cause.kind, cause.names, cause.what) for cause in causes(sizes, of_axis, parametrization)]
    table = pd.DataFrame(rows, columns=Exponent._fields)
    if dead:
        alarms = [alarm for alarm in alarms if alarm.kind != "unexplained"]
    notes = steps_notes(alarms, stepped, table)
    return ProbeReport(
        name, alarms, notes, steps=table, stepped=stepped, optimizer=optimizer, parametrization=parametrization
    )


def _gathered(alarms: list[Alarm]) -> list[Alarm]:
    """Merge equal alarms from modules of several sizes into one alarm."""
    alike: dict[Any, list[Alarm]] = {}
    for alarm in alarms:
        alike.setdefault((alarm.part, alarm.kind, alarm.what), []).append(alarm)
    return [replace(same[0], where=tuple(alarm.where[0] for alarm in same)) for same in alike.values()]


KINDS = (
    "structure", "norm", "attention", "weight", "energy", "units", "bias", "growth", "residual", "detached",
    "vanishing", "exploding",
)  # fmt: skip
"""The kinds of alarms that the authors of a class may have meant."""
DRAWS = 4
"""The number of new modules. A number close to its limit raises an alarm in some of them only."""
_LAYERS = re.compile(r" \[(all layers|layers [\d, ]+)\]")
_NUMBER = re.compile(r"[\d.]+(?:e[+-]?\d+)?(?: to [\d.]+(?:e[+-]?\d+)?)?")
_NAME = re.compile(r"[\w*]*[A-Za-z*][\w*]*[._][\w.*]+")

Place = tuple[str, str, str]
"""List, kind, and the words of an alarm without its numbers, names and layers."""


def drawn_alike(
    module: Any, wrong: Sequence[Alarm], depths: Mapping[str, int],
    judged: Callable[[Any, int], Iterable[Alarm]], seed: int,
) -> list[Alarm]:  # fmt: skip
    """Return the alarms that newly initialized modules of the same class and configuration raise as well.

    Args:
        module: the judged module. A class in the user's own files is never excused, and neither is a module whose
            configuration sets the size of initial weights to another number than the class's default.
        wrong: the module's alarms.
        depths: the number of layers of each list.
        judged: function of a new module and its number that returns its alarms.
        seed: the seed of the module; the new modules have the next ones.
    """
    asked = [alarm for alarm in wrong if alarm.kind in KINDS]
    config = getattr(module, "config", None)
    if not asked or not _is_installed(module):
        return []
    if config is None:
        return [alarm for alarm in asked if _is_code(alarm, module)]
    names, layers = dict[Place, set[str]](), dict[Place, set[int]]()
    with suppress(Exception):
        # Somebody else's class may take other arguments, or fail in any way.
        if _draws_of_the_user(config):
            return []
        for draw in range(1, DRAWS + 1):
            with seeded(seed + draw):
                new = type(module)(deepcopy(config))
            new.to(next(module.parameters())).train(module.training)
            for alarm in judged(new, draw):
                place, named, numbers = _parts(alarm, depths)
                names.setdefault(place, set()).update(named)
                layers.setdefault(place, set()).update(numbers)
            if all(_among(alarm, depths, names, layers) for alarm in asked):
                break
    return [alarm for alarm in asked if _among(alarm, depths, names, layers)]


def _among(
    alarm: Alarm, depths: Mapping[str, int], names: Mapping[Place, set[str]], layers: Mapping[Place, set[int]]
) -> bool:
    place, named, numbers = _parts(alarm, depths)
    return place in names and named <= names[place] and numbers <= layers[place]


def _parts(alarm: Alarm, depths: Mapping[str, int]) -> tuple[Place, set[str], set[int]]:
    """Return the place of an alarm, the parameters or modules that it names, and its layers."""
    match = _LAYERS.search(alarm.what)
    part = alarm.part
    if "logits are q.k times" in alarm.what:
        # The factor belongs to the code; the draw decides in which layers it is felt.
        part, layers = "", set[int]()
    elif match is None:
        layers = {alarm.layer}
    else:
        every = range(1, depths.get(alarm.part, 0) + 1)
        layers = {*(every if match[1] == "all layers" else map(int, re.findall(r"\d+", match[1])))}
    text = _LAYERS.sub("", alarm.what)
    words = re.sub(r"[\s,]+", " ", _NUMBER.sub("#", _NAME.sub("", text)))
    return (part, alarm.kind, words), {*_NAME.findall(text)}, layers


def _draws_of_the_user(config: Any) -> bool:
    """Return whether a field about initial weights differs from the default of the configuration's class."""
    default = vars(type(config)())
    return any(
        isinstance(value, float) and ("init" in name or name.endswith("_std")) and value != default.get(name, value)
        for name, value in vars(config).items()
    )


def _is_code(alarm: Alarm, module: Any) -> bool:
    """Return whether an alarm is about an installed class's code, for a module without a configuration.

    Weights of attention that do not add up to 1, and the factor of q·k, do not depend on the weights' draw. They count
    as code if several layers share them, and so do parameters that the first layer alone lacks. A norm whose output is
    linear in its input counts too if all modules are of installed classes. EvoNorm without its activation, for example,
    only scales its input.
    """
    several = alarm.layer == WHOLE_MODEL or _LAYERS.search(alarm.what) is not None
    shared = "query add up to" in alarm.what or "logits are q.k times" in alarm.what
    first = alarm.kind == "structure" and alarm.layer == 1
    if alarm.kind == "norm" and "grows as input^1," in alarm.what:
        return all(_is_installed(part) for part in module.modules())
    return first or (alarm.kind == "attention" and several and shared)


def _is_installed(module: Any) -> bool:
    """Return whether a module's class is in an installed package, and its forward is the class's own."""
    source = getattr(sys.modules.get(type(module).__module__), "__file__", "")
    return "-packages" in str(source) and "forward" not in vars(module)
