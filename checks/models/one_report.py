"""One module judged: is it initialized well, and is it right? The report, and the thresholds of its last sentence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from checks.models.alarm import WHOLE_MODEL, Alarm, Report, alarm_lines, folded, of_weights, one_a_cause
from checks.models.exact_alarms import exact_alarms, values, whole
from checks.models.growth_theory import GrowthTheory, growth_theory, times
from checks.models.health import alarms as layer_alarms
from checks.models.streams import learning_later, no_residual_anywhere, normed_residuals
from checks.remedy import drawn_smaller, remedy_line
from simulate.modules.exact_tests import ExactTests
from simulate.modules.mixing import ROUNDING
from simulate.modules.one_module import OneModule, batch_and_loss, one_module
from simulate.modules.one_step import OneStep, one_step
from simulate.modules.step_optimizers import OptimizerFactory
from theory import Stack

LOSS = 2.0
"""The loss at the start over ln V, from which it is too large."""
KNOWN = 0.9
"""The loss over the entropy of the batch's labels below which a module knows them."""
STREAM = 10.0
"""The energy of the last layer's output over the first one's, either way and over the number of layers, from which the
stream grows too much. Branches of one energy behind norms give at most 1; those of attention grow, from a mean over
many tokens in the first layer to what tokens that have become alike have in common."""
GRADIENT = 5.0
"""The norm of the loss's gradient at the first layer's output over the last one's, either way and over the root of the
number of layers, likewise."""
DTYPE = 0.1
"""How far an output may be from that in single precision."""
ENTRIES = 6.0
"""The standard deviation of a matrix's entries, times the root of its shorter side, from which all layers get a note.

In 151 classes of transformers at their default sizes it is up to 2.9, and 5.1 in one (MiniCPM3); 0.02 at width 8192
gives 1.81, He's initialization 1.41 and that of `torch.nn.Linear` 0.58."""
ENTRIES_BESIDE = 3.0
"""The same number over the median of the layer's matrices, and over sqrt(2L), likewise: up to 1.5 in these classes.

Some draw most matrices of L layers sqrt(2L) smaller and one not, as CLIP does."""
# A parameter of fewer entries beside the largest of its layer is no matrix there: XLNet's biases have two axes.
_MATRIX = 0.01

# Of a mean's weights, where logits are half-precision numbers.
_ROUNDED = 0.02
# A layer is compared with two others at least.
_NEIGHBOURS = 3
_KINDS = 6
# Rules that hold of any weights; the others are of an initialization.
_ALWAYS = (
    "non-finite",
    "no gradient",
    "detached",
    "leak",
    "norm",
    "copies",
    "attention",
    "units",
    "dtype",
    "optimizer",
)
# Of these no number of a pass is asked.
_OF_WEIGHTS = ("copies", "structure", "bias")
# Numbers of a layer, with their titles.
_COLUMNS = {
    "hidden_energy": "energy", "stream_coefficient": "keeps", "gradient_sq": "gradient", "logit_std": "logits",
    "attention_entropy": "entropy", "attention_peak": "peak", "dead_units": "dead", "saturated_units": "saturated",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OneReport(Report):
    """What is to be said of a module.

    Attributes:
        name: of its class, or of what made it.
        measured: everything that was.
        trained: whether thresholds of initialization are left out.
        alarms: what is wrong, the most likely cause first, one for each.
        notes: a line each.
        layers: a row for every layer: part, layer, energy (mean square of its output), keeps (the part of its input in
            it), gradient (norm of the loss's gradient at its output), logits (standard deviation), entropy of attention
            over a uniform one's, peak (the mean over queries of the largest weight), dead and saturated (shares of its
            units).
        updates: a row for every matrix of a layer: norms of a first step at rate 1 over the matrix's: sgd (of the
            gradient), adam (the root of the number of entries), muon (of the shorter side, which is the most).
        step: what an optimizer's first step was; None where none was given.
        theory: of the growth over each list of layers, where there is one that is known.
        compared: whether another module was its reference.
    """

    name: str
    measured: OneModule
    trained: bool
    alarms: list[Alarm]
    notes: list[str]
    layers: pd.DataFrame
    updates: pd.DataFrame
    step: OneStep | None = None
    theory: tuple[GrowthTheory, ...] = ()
    compared: bool = False

    def to_frame(self) -> pd.DataFrame:
        """Everything measured: one row per layer, parameter and quantity."""
        return self.measured.frame

    def lines(self) -> list[str]:
        """The report as text: alarms first, and the judgement last."""
        lines = alarm_lines(self.alarms)
        frame, tests = self.measured.frame, self.measured.tests
        lines += [loss_line(frame, tests), *sight_lines(frame, tests), *_growth_lines(self), *_table(self.layers)]
        lines += _attention_lines(self)
        lines += _update_lines(self.updates) if self.step is None else _step_lines(self.step)
        return [*lines, *folded(self.notes), self.judgement()]

    def judgement(self) -> str:
        """The verdict, and what it is about."""
        if any(alarm.kind == "non-finite" for alarm in self.alarms):
            return f"{self._verdict()} Behind numbers that are not finite nothing was judged but weights."
        measured, step = self.measured, self.step
        stepped = step is not None and bool(np.isfinite(step.loss_before) and step.moves["rate"].any())
        about = scope_line(
            measured.frame, measured.tests, measured.unseen,
            stepped=stepped, trained=self.trained, compared=self.compared,
        )  # fmt: skip
        return f"{self._verdict()} {about}"

    def _verdict(self) -> str:
        if self.alarms:
            count = f"{len(self.alarms)} alarm" + "s" * (len(self.alarms) > 1)
            first = self.alarms[0]
            what = "is not right" if first.kind in (*_ALWAYS, "structure") else "is not initialized well"
            end = "" if str(first).endswith("?") else "."
            nothing = "" if _parts(self.measured.frame) else f" Besides, {no_layer(self.measured.unseen)}."
            return f"{self.name} {what}: {count}, first of all {first}{end}{nothing}"
        if not _parts(self.measured.frame):
            return f"{self.name} is not judged: {no_layer(self.measured.unseen)}."
        if not self.trained and entry_notes(self.measured.frame):
            return f"{self.name} raises no alarm, but the entries of a matrix are unusual in all layers: see the note."
        if self.trained:
            return f"{self.name} passes all exact tests of what was judged."
        reasons = [_loss_reason(self.measured), *_growths(self).values()]
        why = "".join(f": {reason}" for reason in ["; ".join(filter(None, reasons))] if reason)
        return f"{self.name} is initialized well in what was judged, by the thresholds of docs/probe.md{why}."


def one_report(
    module: Any, batch: Any, loss: Callable[[Any], Any] | None = None, *, seed: int = 0, layers: Sequence[str] = (),
    trained: bool = False, name: str = "", optimizer: OptimizerFactory | str | Any = None,
    learning_rate: float | None = None, stack: Stack | None = None,
    on_part: Callable[[int, int], None] | None = None,
) -> OneReport:  # fmt: skip
    """Measure a module that there is, and judge it; it stays as it was.

    Args:
        module: a `torch.nn.Module`.
        batch: as `simulate.modules.one_module.one_module` takes it.
        loss: likewise.
        seed: of what module and loss draw.
        layers: globs that name the layers.
        trained: whether its weights have been trained: thresholds of an initialization do not apply.
        name: how it is called; its class if left out.
        optimizer: whose first step is judged too, as `simulate.modules.one_step.one_step` takes it; none if left out.
        learning_rate: of an optimizer by name.
        stack: the network of theory that it is to be; read from layers of `torch.nn.TransformerEncoder` or a model's
            configuration if left out.
        on_part: called with how many parts are done, and of how many, after each.

    Raises:
        ValueError: as `one_module` and `one_step`, or the Stack is none, or of another depth.
    """
    if stack is not None and not isinstance(stack, Stack):
        raise ValueError(f"stack must be a Stack, of one module, got {stack!r}.")
    if optimizer is None and learning_rate is not None:
        raise ValueError(f"learning_rate must stand with an optimizer, got {learning_rate!r} and none.")
    measured = one_module(module, batch, loss, seed=seed, layers=layers, on_part=on_part)
    frame = measured.frame
    if stack is not None:
        depths = [len(_profile(frame, part, "hidden_energy")) for part in _parts(frame)]
        if stack.depth not in depths:
            raise ValueError(f"stack must be as deep as a list of layers, {depths}, got depth {stack.depth}.")
    exact, notes = exact_alarms(measured.tests, trained=trained)
    others = [replace(alarm, where=()) for alarm in layer_alarms(frame)]
    others += _of_the_whole(measured)
    if trained:
        others = [alarm for alarm in others if alarm.kind in _ALWAYS]
    if any(alarm.kind == "non-finite" for alarm in others):
        # What is watched in a pass follows from it.
        exact = [alarm for alarm in exact if alarm.kind in _OF_WEIGHTS]
    for rule in (learning_later, no_residual_anywhere, normed_residuals):
        notes += rule(frame)
    notes += [] if trained else entry_notes(frame)
    alarms, notes = one_a_cause(exact + others), [*notes, *measured.notes]
    step = None
    if optimizer is not None:
        inputs, own_loss = batch_and_loss(module, batch, loss)
        step = one_step(module, inputs, own_loss, optimizer, learning_rate=learning_rate, seed=seed)
        alarms += [of_weights("optimizer", names, what) for names, what in step.alarms]
        notes += step.notes
    return OneReport(
        name or type(module).__name__, measured, trained, alarms, notes, _layer_table(measured), _updates(frame), step,
        () if trained else _theory(measured, stack),
    )  # fmt: skip


def _theory(measured: OneModule, stack: Stack | None) -> tuple[GrowthTheory, ...]:
    frame = measured.frame
    energies, squares = (
        {part: _profile(frame, part, quantity) for part in _ends(frame)}
        for quantity in ("hidden_energy", "gradient_sq")
    )
    theories = [growth_theory(measured, part, energies[part], np.sqrt(squares[part]), stack) for part in energies]
    return tuple(theory for theory in theories if theory is not None)


def _of_the_whole(measured: OneModule) -> list[Alarm]:
    """By thresholds of an initialization, and the dtype."""
    alarms = loss_alarms(measured.tests)
    for part, (energy, gradient) in _ends(measured.frame).items():
        depth = len(_profile(measured.frame, part, "hidden_energy"))
        limits = (("energy of the stream", energy, STREAM * depth), ("gradient", gradient, GRADIENT * depth**0.5))
        for what, growth, limit in limits:
            if max(growth, 1 / growth) > limit:
                where = "from the first to the last layer" if what != "gradient" else "from the last to the first layer"
                alarms.append(Alarm(part, WHOLE_MODEL, "growth", f"{what} {times(growth)} {where}"))
    if measured.dtype_change > DTYPE:
        what = f"in {measured.dtype} its output is {100 * measured.dtype_change:.2g}% from that in float32"
        alarms.append(Alarm("", WHOLE_MODEL, "dtype", what))
    return alarms


def loss_alarms(tests: ExactTests) -> list[Alarm]:
    """The loss at the start against a uniform guess, and against the labels' frequencies."""
    size, classes, known = (whole(tests, what) for what in ("cross_entropy", "classes", "label_entropy"))
    alarms = []
    if LOSS * np.log(classes) < size < np.inf:
        what = f"loss {size:.3g} at the start, where a uniform guess among {classes:.0f} has {np.log(classes):.3g}"
        alarms.append(Alarm("", WHOLE_MODEL, "loss", what))
    if size < KNOWN * known:
        what = (
            f"loss {size:.3g} at the start, where the labels' frequencies alone explain {known:.3g}: does it see them?"
        )
        alarms.append(Alarm("", WHOLE_MODEL, "loss", what))
    return alarms


def entry_notes(frame: pd.DataFrame) -> list[str]:
    """A line for every matrix whose entries are far from 1/sqrt(fan-in), or from the layer's others, in all layers."""
    chosen = frame[frame["quantity"].isin(["weight", "entries", "shortest"])]
    table = chosen.pivot_table("value", ["part", "layer", "parameter"], "quantity").reindex(
        columns=["weight", "entries", "shortest"]
    )
    table = table[table["entries"] >= _MATRIX * table.groupby(["part", "layer"])["entries"].transform("max")]
    sizes = table["weight"] * np.sqrt(table["shortest"] / table["entries"])
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    others = sizes / sizes.groupby(["part", "layer"]).transform("median")
    others[sizes.groupby(["part", "layer"]).transform("size") < _NEIGHBOURS] = 1.0
    lines = []
    for (part, name), size in sizes.groupby(["part", "parameter"]):
        beside = others[size.index]
        depth = frame.loc[frame["part"] == part, "layer"].max()
        if size.min() > ENTRIES or beside.min() > ENTRIES_BESIDE * (2 * depth) ** 0.5:
            lines.append(
                f"entries of {name} of {part} have {size.median():.2g} times the standard deviation 1/sqrt(shorter "
                f"side) in all layers, {beside.median():.2g} times the layer's median matrix: is that meant?"
            )
    return lines


def _profile(frame: pd.DataFrame, part: str, quantity: str) -> np.ndarray:
    rows = frame[(frame["part"] == part) & (frame["layer"] > 0) & (frame["quantity"] == quantity)]
    return rows.sort_values("layer")["value"].to_numpy(dtype=float)


def _parts(frame: pd.DataFrame) -> list[str]:
    """Lists of which a layer was measured."""
    return list(frame.loc[frame["quantity"] == "hidden_energy", "part"].unique())


def no_layer(unseen: Mapping[str, str]) -> str:
    """The reason why nothing was measured."""
    return f"no layer was measured, because {'; '.join(unseen.values()) or 'no layer gives a tensor of floats'}"


def scope_line(
    frame: pd.DataFrame, tests: ExactTests, unseen: Mapping[str, str], *,
    stepped: bool = False, trained: bool = False, compared: bool = False,
) -> str:  # fmt: skip
    """What was judged, and what was not.

    Args:
        frame: as `simulate.Probed` has it.
        tests: likewise.
        unseen: the reason why no layer of a list was measured.
        stepped: whether an optimizer's step was judged.
        trained: whether thresholds of an initialization were left out.
        compared: whether there was a reference.
    """
    parts, judged, others = _parts(frame), list[str](), list[str]()

    def put(tested: bool, name: str, why: str) -> None:
        (judged if tested else others).append(name if tested else f"{name} ({why})")

    if not trained:
        put(bool(np.isfinite(whole(tests, "cross_entropy"))), "loss", "no cross-entropy of the output")
    known = frame[frame["quantity"] == "stream_coefficient"].groupby("part")["layer"].nunique()
    for part in parts:
        rows = frame[frame["part"] == part]
        depth, seen = int(rows["layer"].max()), rows.loc[rows["quantity"] == "hidden_energy", "layer"].nunique()
        put(
            seen >= _NEIGHBOURS,
            f"layers of {part} compared with one another",
            f"{seen} were measured: three are needed",
        )
        if seen < depth:
            others.append(f"{depth - seen} of the {depth} layers of {part} (their output was not seen)")
        if not trained:
            why = "inputs and outputs of fewer than three layers can be compared"
            put(known.get(part, 0) >= _NEIGHBOURS, f"residual connections of {part}", why)
    if parts:
        others += [f"layers of {part} ({why})" for part, why in unseen.items()]
    quantities = {what for _, _, _, what, _ in tests.rows}
    put("sees_later" in quantities or "sees_samples" in quantities, "who sees whom", "no gradient tells")
    put("logit_std" in quantities, "attention", "none was seen")
    put("norm_response" in quantities, "norms", "none was seen")
    if trained:
        others.append("initialization")
    else:
        put(compared, "scales that all layers share", "--against")
    put(stepped, "a step of the optimizer" if stepped else "learning rates", "--optimizer")
    return f"{'Judged' if parts else 'Only judged'}: {', '.join(judged) or 'nothing'}. Not judged: {', '.join(others)}."


def _ends(frame: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Of every list of at least two layers: the energy's last over first, and the gradient norm's first over last."""
    ends = {}
    for part in _parts(frame):
        energy, gradient = (_profile(frame, part, quantity) for quantity in ("hidden_energy", "gradient_sq"))
        positive = all(len(of) > 1 and of[0] > 0 and of[-1] > 0 and np.isfinite(of).all() for of in (energy, gradient))
        if positive:
            ends[part] = (energy[-1] / energy[0], (gradient[0] / gradient[-1]) ** 0.5)
    return ends


def _growths(report: OneReport) -> dict[str, str]:
    """By list: both growths in words, over the depth and a layer."""
    words = {}
    for part, (energy, gradient) in _ends(report.measured.frame).items():
        steps = len(_profile(report.measured.frame, part, "hidden_energy")) - 1
        words[part] = (
            f"over the {steps + 1} layers of {part} the energy of the stream {times(energy)} "
            f"({energy ** (1 / steps):.3g} a layer), and the gradient {times(gradient)} towards the input "
            f"({gradient ** (1 / steps):.3g} a layer)"
        )
    return words


def _growth_lines(report: OneReport) -> list[str]:
    frame, lines = report.measured.frame, []
    for part, text in _growths(report).items():
        smaller = _profile(frame, part, "energy_smaller_ends")
        lines.append(f"O{text[1:]}.")
        energy = _ends(frame)[part][0]
        # As `predict` has it, a remedy does half at least, of logarithms.
        if len(smaller) > 1 and smaller[0] > 0 and energy > 2 and smaller[-1] / smaller[0] <= energy**0.5:
            change = drawn_smaller(" and ".join(report.measured.ends))
            lines[-1] += f" {remedy_line(change)}; then the energy {times(smaller[-1] / smaller[0])}."
        lines += [theory.line() for theory in report.theory if theory.part == part]
    return lines


def _loss_reason(measured: OneModule) -> str:
    size, classes = whole(measured.tests, "cross_entropy"), whole(measured.tests, "classes")
    return f"loss {size:.3g}, where a uniform guess has {np.log(classes):.3g}" if np.isfinite(size) else ""


def loss_line(frame: pd.DataFrame, tests: ExactTests) -> str:
    """The loss of the first module of a frame, beside what a guess has."""
    loss = float(frame.loc[frame["quantity"] == "loss", "value"].iloc[0])
    size, classes = whole(tests, "cross_entropy"), whole(tests, "classes")
    if not np.isfinite(loss):
        return f"Loss {loss:.4g}."
    if not np.isfinite(size):
        return f"Loss {loss:.4g}; it is no cross-entropy of the output, so that there is nothing to hold it against."
    line = f"Loss {loss:.4g} at the start: a uniform guess among {classes:.0f} classes has {np.log(classes):.4g}"
    if np.isfinite(known := whole(tests, "label_entropy")):
        line += f", and the frequencies of the batch's {whole(tests, 'labels'):.0f} labels alone {known:.3g}"
    if (added := whole(tests, "positions")) > 1 + _ROUNDED:
        line += f"; it adds up {added:.0f} positions, with {size:.4g} each"
    return line + "."


def sight_lines(frame: pd.DataFrame, tests: ExactTests) -> list[str]:
    """Who sees whom, as facts."""
    lines = []
    later, earlier, samples = (values(tests, f"sees_{whom}") for whom in ("later", "earlier", "samples"))
    for part in _parts(frame):
        sees = {
            word for word, of in (("earlier", earlier), ("later", later))
            if any(value > ROUNDING for at, value in of.items() if at[0] == part and at[1])
        }  # fmt: skip
        if any(at[0] == part for at in later):
            who = " and ".join(sorted(sees)) + (" ones" if len(sees) == 2 else " ones alone") if sees else "no other"
            along = " (positions along the first axis, as batch_first=False says)" if tests.positions_first else ""
            lines.append(f"Positions of {part} see {who}{along}.")
    if samples:
        seen = any(value > ROUNDING for value in samples.values())
        rows = whole(tests, "sees_rows")
        along = ""
        if np.isfinite(rows):
            along = f" along the second axis; along the first {'they do' if rows > ROUNDING else 'neither'}"
        lines.append(f"Samples {'see' if seen else 'do not see'} one another{along}.")
    return lines


def _attention_lines(report: OneReport) -> list[str]:
    """Where no attention was seen: what was there in its place."""
    if report.layers.empty:
        return ["attention: it is looked for in layers, and none was measured"]
    if report.layers["logits"].notna().any():
        return []
    tests = report.measured.tests
    sees = [value for whom in ("later", "earlier") for at, value in values(tests, f"sees_{whom}").items() if at[1]]
    hold = f"layers hold {', '.join(tests.inside[:_KINDS])}" + (", ..." if len(tests.inside) > _KINDS else "")
    if sees and max(sees) <= ROUNDING:
        return [f"no attention: in no layer does a position see another; {hold}"]
    other = ", and positions see one another by something else" if sees else ""
    return [f"no attention at softmax or scaled_dot_product_attention{other}: {hold}"]


def _layer_table(measured: OneModule) -> pd.DataFrame:
    frame = measured.frame[(measured.frame["layer"] > 0) & (measured.frame["parameter"] == "")]
    rows = [(row.part, row.layer, row.quantity, row.value) for row in frame.itertuples()]
    rows += [(part, layer, what, value) for part, layer, name, what, value in measured.tests.rows if layer and not name]
    table: dict[tuple[str, int], dict[str, float]] = {}
    for part, layer, quantity, value in rows:
        if quantity in _COLUMNS:
            table.setdefault((part, layer), {})[_COLUMNS[quantity]] = value**0.5 if quantity == "gradient_sq" else value
    records = [{"part": part, "layer": layer, **of} for (part, layer), of in table.items()]
    return pd.DataFrame(records, columns=["part", "layer", *_COLUMNS.values()])


def _table(layers: pd.DataFrame) -> list[str]:
    lines = []
    for part, of in layers.groupby("part", sort=False):
        columns = [title for title in _COLUMNS.values() if of[title].notna().any()]
        lines.append(f"{part}: layer " + "".join(f"{title:>10}" for title in columns))
        indent = len(str(part)) + 7
        for row in of.to_dict("records"):
            numbers = "".join(f"{row[title]:>10.3g}" if np.isfinite(row[title]) else " " * 10 for title in columns)
            lines.append(f"  {row['layer']:>{indent - 2}} {numbers}")
    return lines


def _updates(frame: pd.DataFrame) -> pd.DataFrame:
    matrices = frame[frame["quantity"].isin(["weight", "gradient", "entries", "shortest"])]
    table = matrices.pivot_table("value", ["part", "layer", "parameter"], "quantity", sort=False).reset_index()
    table = table.reindex(columns=["part", "layer", "parameter", "weight", "gradient", "entries", "shortest"])
    table = table[table["shortest"].notna() & (table["weight"] > 0) & np.isfinite(table["gradient"] / table["weight"])]
    return pd.DataFrame({
        "part": table["part"], "layer": table["layer"], "parameter": table["parameter"],
        "sgd": table["gradient"] / table["weight"], "adam": np.sqrt(table["entries"]) / table["weight"],
        "muon": np.sqrt(table["shortest"]) / table["weight"],
    }).reset_index(drop=True)  # fmt: skip


def _update_lines(updates: pd.DataFrame) -> list[str]:
    """The least and the largest of every optimizer, with their matrices."""
    if updates.empty:
        return []
    ends = []
    for optimizer in ("sgd", "adam", "muon"):
        low, high = (updates.loc[index] for index in (updates[optimizer].idxmin(), updates[optimizer].idxmax()))
        texts = (f"{row[optimizer]:.3g} ({row['parameter']} of layer {row['layer']})" for row in (low, high))
        ends.append(f"{optimizer} {' to '.join(texts)}")
    return ["First step at rate 1, over its matrix: " + "; ".join(ends) + "."]


def _step_lines(step: OneStep) -> list[str]:
    """How far a step moves matrices, and what becomes of the loss."""
    which = "First step" if step.steps < 2 else f"Step {step.steps}, the first with a rate,"
    if not np.isfinite(step.loss_before):
        return []
    if not step.moves["rate"].any():
        return [f"No step of {step.optimizer} was judged: the first {step.steps} have the rate 0."]
    goes = f"takes the loss of the batch from {step.loss_before:.4g} to {step.loss_after:.4g}"
    moved = step.moves[step.moves["matrix"] & step.moves["relative"].notna()]
    if moved.empty:
        return [f"{which} of {step.optimizer} {goes}."]
    low, high = (moved.loc[index] for index in (moved["relative"].idxmin(), moved["relative"].idxmax()))
    ends = " to ".join(f"{row['relative']:.3g} ({row['parameter']})" for row in (low, high))
    return [f"{which} of {step.optimizer} {goes}, and moves its matrices by {ends} of themselves."]
