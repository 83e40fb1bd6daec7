"""The sections of the printed report of `probe`, as lines of text."""

import re
from collections.abc import Mapping, Sequence
from math import exp
from typing import Any

import numpy as np
import pandas as pd

from checks.models.alarm import Alarm
from checks.models.coordinate_exponents import BEND
from checks.models.exact_alarms import values, whole
from checks.models.layer_tables import LAYER_COLUMNS, LEGEND, TOTAL, WORDS, not_compared
from checks.models.whole_model import NEIGHBOURS, ends_of, parts_of, profile, times
from checks.remedy import drawn_smaller, remedy_line
from simulate.modules.coordinates import Stepped
from simulate.modules.exact_tests import ExactTests
from simulate.modules.one_step import OneStep
from simulate.modules.probe import Probed

# Of a mean's weights, where logits are half-precision numbers.
_ROUNDED = 0.02
_KINDS = 6
_SHOWN = 12


def no_layer(unseen: Mapping[str, str]) -> str:
    """Return a sentence that states why no layer of a module could be measured."""
    return f"no layer was measured, because {'; '.join(unseen.values()) or 'no layer returns a tensor of floats'}"


def scope_lines(probed: Probed, *, stepped: bool = False, trained: bool = False, compared: bool = False) -> list[str]:
    """Return two sentences on a module: what `probe` judged, and what it did not judge.

    Args:
        probed: the measured module.
        stepped: whether an optimizer's step was judged.
        trained: whether thresholds for initialized weights were skipped.
        compared: whether the module was compared with a reference.

    Returns:
        One sentence that begins with "Judged" or "Only judged", and one that begins with "Not judged".
    """
    frame, tests = probed.frame, probed.tests
    parts, judged, others = parts_of(frame), list[str](), list[str]()

    def put(tested: bool, name: str, why: str) -> None:
        (judged if tested else others).append(name if tested else f"{name} ({why})")

    if not trained:
        put(bool(np.isfinite(whole(tests, "cross_entropy"))), "loss", "the loss is not a cross-entropy of the output")
    known = frame[frame["quantity"] == "stream_coefficient"].groupby("part")["layer"].nunique()
    for part in parts:
        rows = frame[frame["part"] == part]
        depth, seen = int(rows["layer"].max()), rows.loc[rows["quantity"] == "hidden_energy", "layer"].nunique()
        put(
            seen >= NEIGHBOURS,
            f"layers of {part} compared with one another",
            f"{seen} were measured, three are needed",
        )
        if seen < depth:
            others.append(f"{depth - seen} of the {depth} layers of {part} (their output was not seen)")
        if not trained:
            why = "inputs and outputs were seen in fewer than three layers"
            put(known.get(part, 0) >= NEIGHBOURS, f"residual connections of {part}", why)
    if parts:
        others += [f"layers of {part} ({why})" for part, why in probed.unseen.items()]
    quantities = {what for _, _, _, what, _ in tests.rows}
    put("sees_later" in quantities or "sees_samples" in quantities, "visible positions and samples", "no gradient")
    put("logit_std" in quantities, "attention", "none was found")
    put("norm_response" in quantities, "norms", "none was found")
    if trained:
        others.append("initialization")
    else:
        put(compared, "scales that all layers share", "requires --against")
    put(stepped, "a step of the optimizer" if stepped else "learning rates", "requires --optimizer")
    first = f"{'Judged' if parts else 'Only judged'}: {', '.join(judged) or 'nothing'}."
    return [first, *([f"Not judged: {', '.join(others)}."] if others else [])]


def growths(frame: pd.DataFrame) -> dict[str, str]:
    """Describe how activations and gradients grow over each list of layers, in total and per layer."""
    words = {}
    for part, (energy, gradient) in ends_of(frame).items():
        steps = len(profile(frame, part, "hidden_energy")) - 1
        words[part] = (
            f"residual stream over the {steps + 1} layers of {part}: mean squared activation {times(energy)} "
            f"({energy ** (1 / steps):.3g} per layer), gradient norm {times(gradient)} towards the input "
            f"({gradient ** (1 / steps):.3g} per layer)"
        )
    return words


def growth_lines(probed: Probed) -> list[str]:
    """Report how activations and gradients grow over a module's layers, with a change that reduces the growth."""
    frame, lines = probed.frame, []
    for part, text in growths(frame).items():
        smaller = profile(frame, part, "energy_smaller_ends")
        lines.append(f"R{text[1:]}.")
        energy = ends_of(frame)[part][0]
        # As `predict` has it, a remedy does half at least, of logarithms.
        if len(smaller) > 1 and smaller[0] > 0 and energy > 2 and smaller[-1] / smaller[0] <= energy**0.5:
            change = drawn_smaller(" and ".join(probed.unscaled))
            lines[-1] += f" {remedy_line(change)}; mean squared activation then {times(smaller[-1] / smaller[0])}."
    return lines


def loss_reason(tests: ExactTests) -> str:
    """Compare a module's initial loss with the loss of a uniform guess, in words that explain the verdict."""
    size, classes = whole(tests, "cross_entropy"), whole(tests, "classes")
    return f"loss {size:.3g} (uniform guess: {np.log(classes):.3g})" if np.isfinite(size) else ""


def loss_line(frame: pd.DataFrame, tests: ExactTests) -> str:
    """Return a line with a module's initial loss and the loss of a uniform guess."""
    loss = float(frame.loc[frame["quantity"] == "loss", "value"].iloc[0])
    size, classes = whole(tests, "cross_entropy"), whole(tests, "classes")
    if not np.isfinite(loss):
        return f"Loss: {loss:.4g}."
    if not np.isfinite(size):
        return f"Loss: {loss:.4g}; not compared, because the loss is not a cross-entropy of the output."
    line = f"Loss: {loss:.4g}; a uniform guess among {classes:.0f} classes has {np.log(classes):.4g}"
    if np.isfinite(known := whole(tests, "label_entropy")):
        line += f"; the entropy of the batch's {whole(tests, 'labels'):.0f} labels is {known:.3g}"
    if (added := whole(tests, "loss_weight")) > 1 + _ROUNDED:
        line += f"; the loss is a sum over {added:.0f} positions, {size:.4g} per position"
    return line + "."


def sight_lines(frame: pd.DataFrame, tests: ExactTests) -> list[str]:
    """Report whether the outputs of a module's layers depend on earlier or later positions and on other samples."""
    lines = []
    later, earlier, samples = (values(tests, f"sees_{whom}") for whom in ("later", "earlier", "samples"))
    for part in parts_of(frame):
        sees = {
            word for word, of in (("earlier", earlier), ("later", later))
            if any(value > 0 for at, value in of.items() if at[0] == part and at[1])
        }  # fmt: skip
        if any(at[0] == part for at in later):
            who = " and ".join(sorted(sees)) + " only" * (len(sees) == 1) if sees else "none"
            along = " (positions are the first axis, because batch_first=False)" if tests.positions_first else ""
            lines.append(f"Positions seen in {part}: {who}{along}.")
    begins = sorted(int(value) for value in values(tests, "block_begins").values())
    if len(begins) > 1:
        places = ", ".join(map(str, begins))
        lines.append(
            f"Blocks of positions: {len(begins)} that do not see one another; these blocks begin at {places}, "
            "counted from 0."
        )
    if np.isfinite(window := whole(tests, "window")):
        lines.append(f"Attention window: the last position sees {window:.0f} positions back.")
    if samples:
        seen = any(value > 0 for value in samples.values())
        rows = whole(tests, "sees_rows")
        along = ""
        if np.isfinite(rows):
            along = f" along the second axis; along the first axis they {'do' if rows > 0 else 'do not'}"
        lines.append(f"Samples of the batch: they {'see' if seen else 'do not see'} one another{along}.")
    return lines


def attention_lines(layers: pd.DataFrame, tests: ExactTests) -> list[str]:
    """Report which operations the layers of a module contain, if none of these operations is attention."""
    if layers.empty:
        return ["Attention: not tested, because no layer was measured."]
    if layers["logits"].notna().any():
        return []
    sees = [value for whom in ("later", "earlier") for at, value in values(tests, f"sees_{whom}").items() if at[1]]
    hold = f"Layers contain {', '.join(tests.inside[:_KINDS])}" + (", ..." if len(tests.inside) > _KINDS else "")
    if sees and max(sees) == 0:
        return [f"Attention: none; no position sees another in any layer. {hold}."]
    other = "; positions see one another by other operations" if sees else ""
    return [f"Attention: none by softmax or scaled_dot_product_attention{other}. {hold}."]


def table_lines(layers: pd.DataFrame) -> list[str]:
    """Return the numbers of a module's layers as printed tables, with one line that explains the columns."""
    lines = []
    for part, of in layers.groupby("part", sort=False):
        columns = [title for title in LAYER_COLUMNS.values() if of[title].notna().any()]
        lines.append(f"{part}: layer " + "".join(f"{title:>10}" for title in columns))
        indent = len(str(part)) + 7
        for row in of.to_dict("records"):
            numbers = "".join(f"{row[title]:>10.3g}" if np.isfinite(row[title]) else " " * 10 for title in columns)
            lines.append(f"  {row['layer']:>{indent - 2}} {numbers}")
    shown = [f"{title} = {words}" for title, words in LEGEND.items() if layers[title].notna().any()]
    return [*lines, *([f"  {'; '.join(shown)}."] if shown else [])]


def step_lines(step: OneStep) -> list[str]:
    """Report the loss before and after an optimizer step, and the relative changes of the matrices."""
    first = f"First step of {step.optimizer}"
    which = first if step.steps < 2 else f"Step {step.steps} of {step.optimizer} (the first at a rate above 0)"
    if not np.isfinite(step.loss_before):
        return []
    if not step.moves["rate"].any():
        return [f"{first}: not judged, because the learning rate of the first {step.steps} steps is 0."]
    goes = f"loss of the batch from {step.loss_before:.4g} to {step.loss_after:.4g}"
    moved = step.moves[step.moves["matrix"] & step.moves["relative"].notna()]
    lines = _stepped_lines(step.moves)
    if moved.empty:
        return [f"{which}: {goes}.", *lines]
    low, high = (moved.loc[index] for index in (moved["relative"].idxmin(), moved["relative"].idxmax()))
    ends = " to ".join(f"{row['relative']:.3g} ({row['parameter']})" for row in (low, high))
    return [f"{which}: {goes}; relative change of matrices {ends}.", *lines]


def _stepped_lines(moves: pd.DataFrame) -> list[str]:
    """List the parameters that each of several optimizers updates; a star stands for all layers."""
    lines = []
    for optimizer, rows in moves.groupby("optimizer", sort=False):
        names = list(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.)", "*", name) for name in rows["parameter"]))
        shown = ", ".join(names[:_SHOWN]) + (f", ... ({len(names)} in all)" if len(names) > _SHOWN else "")
        lines.append(f"{optimizer} updates {len(rows)} parameters: {shown}.")
    return lines if len(lines) > 1 else []


def exponent_lines(exponents: pd.DataFrame) -> list[str]:
    """Report how the last layer's gradient norm scales with depth and width, and how the norms change per layer."""
    lines = []
    for row in exponents[exponents["parameter"] == TOTAL].itertuples():
        if row.against == "layer":
            factors = ", ".join(f"{exp(end):.3f}" for end in (row.low, row.high))
            change = f"{exp(row.exponent):.3f} times [{factors}] per layer towards the output"
            lines.append(f"Gradient norm in {row.part}: {change}")
        else:
            letter = {"depth": "L", "width": "d"}[str(row.against)]
            interval = f"[{row.low:.3f}, {row.high:.3f}]"
            lines.append(f"Gradient norm in the last layer of {row.part}: ~ {letter}^{row.exponent:.3f} {interval}")
    return [*lines, "  Brackets: 95% intervals; L: depth; d: width."] if lines else []


def theory_lines(table: pd.DataFrame, frame: pd.DataFrame) -> list[str]:
    """Compare the last layer of the largest module with theory, and count the numbers of all layers that agree."""
    if table.empty:
        return ["Large-width theory: not compared, because no number has a prediction."]
    judged = table[table["agreement"] != WORDS[-1]]
    if judged.empty:
        return [
            f"Large-width theory: none of {len(table)} numbers is judged: the networks are too narrow for their "
            "depth and number of classes, or theory is not exact for them. Use larger widths. The table `theory` "
            "lists all numbers."
        ]
    width, depth = max(zip(judged["width"], judged["depth"], strict=True))
    last = table[(table["width"] == width) & (table["depth"] == depth)]
    last = last[last["layer"] == last["layer"].max()]
    head = f"Large-width theory: d = {width}, L = {depth}, layer {last['layer'].max()}"
    lines = [f"{head:38} " + "predicted   measured    ratio +- s.e.".rjust(44)]
    for row in last.itertuples():
        error = f"+- {row.noise:.3f}" if np.isfinite(row.noise) else "(one seed)"
        numbers = f"{row.predicted:11.4g} {row.measured:10.4g} {row.ratio:8.3f} {error}"
        lines.append(f"  {row.quantity:36} {numbers}  {row.agreement}")
    counts = table["agreement"].value_counts()
    words = ", ".join(f"{counts[word]} {word}" for word in WORDS if word in counts)
    names = not_compared(frame, table)
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return [
        *lines,
        "  ratio = measured / predicted; predictions agree if it is within 3% of 1",
        f"  All layers and sizes: {len(table)} numbers, {words}",
        *[f"  Not compared, because the Stack has no parameter of this name: {shown}"] * bool(names),
    ]


def steps_lines(table: pd.DataFrame, stepped: Stepped) -> list[str]:
    """Return the exponents of optimizer steps in the width or the depth, one printed line for each use of a weight."""
    lines = []
    for against, rows in table.groupby("against", sort=False):
        sizes = {size[str(against) == "depth"] for size in stepped.owners}
        values, seeds = " ".join(map(str, sorted(sizes))), stepped.seeds
        last = int(rows["step"].max())
        lines.append(f"Exponents in the {against} ({values}; {seeds} seeds) of a module's output y, with 95% intervals")
        lines += _rows(rows, last)
        lines.append(
            "  start = mean |y| before training; own = change of y by the weight's own update; passed on = change of y "
            f"by its changed input, step {last}; ! = outside the expected range; ? = undecided."
        )
    if breaches := int((table["word"] == "breach").sum()):
        lines.append(
            f"{breaches} of {len(table)} exponents are outside the expected range; those without an alarm may follow "
            "from one that has an alarm."
        )
    return lines


def steps_notes(alarms: Sequence[Alarm], stepped: Stepped, table: pd.DataFrame) -> list[str]:
    """Return the notes of a report on optimizer steps, one line for each note."""
    kinds, notes = {alarm.kind for alarm in alarms}, list[str]()
    if "initial scale" in kinds:
        # Updates follow from an initial scale that is off, so that a wrong rate may hide behind it.
        which = "not all learning rates are judged" if "learning rate" in kinds else "learning rates are not judged"
        notes.append(f"{which} while the initial scale is wrong: correct the scale, then probe again")
    return [*notes, *stepped.notes, *_bends(table)]


def _bends(table: pd.DataFrame) -> list[str]:
    """Note how many exponents still change with the width or depth, so that larger modules have other exponents."""
    notes = []
    for against, rows in table[table["off"].notna()].groupby("against", sort=False):
        bent = rows[rows["bend"].abs() > rows["bend_half"].clip(lower=BEND)]
        if bent.empty:
            continue
        row = bent.loc[bent["bend"].abs().idxmax()]
        notes.append(
            f"{len(bent)} of {len(rows)} exponents still change with the {against}, most of all for {_what(row)}: by "
            f"{row['bend']:+.2f} (+- {row['bend_half']:.2f}) from the two smallest to the two largest sizes; larger "
            "sizes have other exponents"
        )
    return notes


def _what(row: Any) -> str:
    return f"{row['quantity']} of {row['place']}.{row['parameter']}".rstrip(".") + f" in step {row['step']}"


def _rows(table: pd.DataFrame, last: int) -> list[str]:
    """Format a line of exponents for each use of a weight."""
    cells = {
        (r.place, r.parameter, r.quantity, r.step): (r.exponent, r.low, r.high, r.word) for r in table.itertuples()
    }
    names = [(r.place, r.parameter, r.role) for r in table.itertuples() if r.quantity == "own"]
    updates = dict.fromkeys((1, last))
    titles = ("start", *(f"own, step {step}" for step in updates), "passed on")
    lines = [f"  {'weight':36} {'role':7} {' '.join(f'{title:>20}' for title in titles)}"]
    for place, parameter, role in dict.fromkeys(names):
        keys = [(place, "", "coordinates", 0), *((place, parameter, "own", step) for step in updates),
                (place, "", "passed", last)]  # fmt: skip
        text = " ".join(f"{_cell(cells.get(key)):>20}" for key in keys)
        lines.append(f"  {f'{place}.{parameter}':36} {role:7} {text}")
    return lines


def _cell(cell: tuple[float, float, float, str] | None) -> str:
    if cell is None or cell[3] == "zero" or cell[0] != cell[0]:
        return "-" if cell is None else "0"
    exponent, low, high, word = cell
    return f"{exponent:.2f} [{low:.2f}, {high:.2f}]" + {"breach": "!", "undecided": "?"}.get(word, " ")
