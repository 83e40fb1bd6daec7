"""First lines of public logs beside theory: intervals of loss and norm, from settings that were fixed before."""

import json
import tomllib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gradbounds.actions.first_line import first_line, spread_of_texts
from theory import Stack
from theory.configurations import model_type, stack_from_config
from theory.configurations.vectors import learned_vectors
from theory.first_step.noise_scale import noise_scale
from theory.mean_field.text_law import KINDS, TextLaw

FILE = Path(__file__).parents[2] / "checks" / "data" / "public_runs.toml"
CONTENT = tomllib.loads(FILE.read_text(encoding="utf-8"))
RUNS: list[dict[str, Any]] = CONTENT["run"]
CONSTANTS: dict[str, Any] = CONTENT["constants"]
_MOCK = 4096
_PRINTED = ("name", "source", "date", "loss", "count", "norm", "step", "note")


def laws(run: dict[str, Any]) -> list[TextLaw]:
    words = run["vocab"][0]
    if run["text"] in KINDS:
        return [TextLaw.of_kind(run["text"], words)]
    if run["text"] == "mock":
        return [TextLaw.of_counts(np.where(np.arange(words) < _MOCK, _MOCK - np.arange(words), 0.0))]
    return [TextLaw.zipf(exponent, words) for exponent in CONSTANTS["exponents"]]


@dataclass(frozen=True, slots=True)
class Line:
    """A predicted first line under one law of text.

    Attributes:
        loss: its mean.
        deviation: of the loss of one run, or what that is at most.
        norm: root mean square of the gradient's norm; None where it is not predicted.
        norm_deviation: of one run from that, relative.
    """

    loss: float
    deviation: float
    norm: float | None = None
    norm_deviation: float = 0.0


def by_the_last_norm(run: dict[str, Any], variance: float) -> list[Line]:
    """What a last norm says alone, of logits of that variance: ln V + s²/2, which falls short by (e^s² - 1)/2V.

    The logit of a label is shared by all positions with that label, and at most wholly so.
    """
    positions, vocab = run["batch"] * run["tokens"], run["vocab"][0]
    loss = np.log(vocab) + variance / 2 - np.expm1(variance) / (2 * vocab)
    same = [law.other_word_labels for law in laws(run)]
    return [Line(float(loss), float(np.sqrt(variance * (each + (1 - each) / positions)))) for each in same]


def stack_of(run: dict[str, Any]) -> tuple[Stack, tuple[str, ...]]:
    """The network of a run that has a configuration, and its vectors."""
    given = {"like": run["like"]} if "like" in run else {}
    stack, notes = stack_from_config(
        run.get("config"), tokens=run["tokens"], embeddings=run["embeddings"], drawn_by=run["drawn_by"], **given
    )
    stack = replace(stack, vocab=run["vocab"][0], **run.get("fields", {}))
    return stack, learned_vectors(stack, model_type(notes), notes)


def setting_of(run: dict[str, Any]) -> str:
    """What a prediction depends on; runs that differ in what was printed have it in common."""
    return json.dumps({name: value for name, value in run.items() if name not in _PRINTED}, sort_keys=True)


def predicted_lines(run: dict[str, Any]) -> dict[str, Any]:
    """First lines of a run, one for every law of text, and by what they are predicted.

    Raises:
        ValueError: a configuration cannot be read, or theory has no rule.
    """
    if run.get("head"):
        return _found(by_the_last_norm(run, run["width"] * run["init_std"] ** 2), "last norm")
    stack, vectors = stack_of(run)

    lines = []
    for law in laws(run):
        scale = noise_scale(stack, text=law, grouped=True, max_time=3600)
        line = first_line(scale, run["batch"], vectors, law, spread_of_texts(run["text"], run["vocab"][0]))
        lines.append(Line(line.loss, line.loss_deviation, line.norm, line.norm_deviation / line.norm))
    return _found(lines, "network")


def _found(lines: list[Line], rule: str) -> dict[str, Any]:
    return {"rule": rule, "lines": [asdict(line) for line in lines]}


def _of_one_law(lines: list[Line]) -> Line:
    """By the middle one, whose words have the exponent 1."""
    return lines[len(lines) // 2]


def beside(run: dict[str, Any], predicted: dict[str, Any]) -> dict[str, Any]:
    """What was printed of a run beside intervals of 95%, which hold every law of text and every vocabulary."""
    lines, rule = [Line(**line) for line in predicted["lines"]], predicted["rule"]
    quantile, padding = CONSTANTS["normal"], float(np.log(run["vocab"][1] / run["vocab"][0]))
    rounding = run.get("step", 0.0) / 2
    low = min(each.loss - quantile * each.deviation for each in lines) - rounding
    high = max(each.loss + quantile * each.deviation for each in lines) + padding + rounding
    found: dict[str, Any] = {
        "rule": rule, "loss": lines[len(lines) // 2].loss, "loss interval": [low, high],
        "inside": bool(low <= run["loss"][0] and run["loss"][2] <= high),
        "mean inside": bool(low <= run["loss"][1] <= high),
        "loss by one law": quantile * _of_one_law(lines).deviation / _of_one_law(lines).loss,
    }  # fmt: skip
    norms = [each.norm for each in lines if each.norm is not None]
    if norms and "norm" in run:
        off = [float(np.exp(quantile * each.norm_deviation + CONSTANTS["norm_error"])) for each in lines]
        ends = list(zip(norms, off, strict=True))
        between = [min(norm / times for norm, times in ends), max(norm * times for norm, times in ends)]
        found |= {"norm": norms[len(norms) // 2], "norms": norms, "norm interval": between}
        found["norm by one law"] = off[len(off) // 2] - 1.0
        found["norm inside"] = bool(between[0] <= run["norm"] <= between[1])
    return found
