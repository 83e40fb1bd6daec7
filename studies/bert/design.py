"""Which runs of pre-training there are, on which share of a text, read from a file; and what they cost."""

import time
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import get_args

import torch

from gradbounds.units import duration
from simulate.counts import check_count
from studies.bert.masking import CHOSEN
from studies.bert.model import MaskedModel, MaskedPlacement
from studies.bert.task import Pretraining
from studies.bert.text import MaskedText, held_out_windows
from studies.presets import check_keys, named
from studies.schedules import LinearDecay
from theory.stack.documents import parsed

_NUMBERS = ("updates", "batch_tokens", "every", "seeds")

MOST_EPOCHS = 40
"""How often a run reads its text at most; BERT read its own so often."""

# Of the speed of a product of large matrices: what training reaches of it.
_REACHED = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Runs of pre-training, and the text that they have.

    Attributes:
        runs: every seed's runs before the next seed's.
        validation_windows: of the text, that no run is trained on.
        text_seed: of which windows these are.
        gpu: whether a CPU would take years.
    """

    runs: tuple[Pretraining, ...]
    validation_windows: int
    text_seed: int
    gpu: bool

    @property
    def fine_tuned(self) -> tuple[Pretraining, ...]:
        """The runs whose models learn the tasks: Post-LN at the smaller rate, Pre-LN at the larger."""
        low, high = (end(run.schedule.peak for run in self.runs) for end in (min, max))
        peaks = {"post": low, "pre": high}
        return tuple(run for run in self.runs if run.schedule.peak == peaks[run.model.placement])

    @property
    def model(self) -> MaskedModel:
        """What all runs train, but for its placement."""
        return self.runs[0].model

    def texts(self, text: MaskedText) -> tuple[MaskedText, MaskedText]:
        """What is trained on, and what is not.

        Raises:
            ValueError: there is too little text.
        """
        training = self.runs[0]
        least = (
            -(-training.updates * training.batch_tokens // MOST_EPOCHS) + self.validation_windows * self.model.length
        )
        if text.ids.size < least:
            raise ValueError(
                f"text must have at least {least} words for runs that read it at most {MOST_EPOCHS} times, but "
                f"{text.name!r} has {text.ids.size}; give more text."
            )
        return held_out_windows(text, self.validation_windows, seed=self.text_seed)


def design_named(preset: str) -> Design:
    """The design of a preset or a file.

    Raises:
        ValueError: there is none of that name, or it is no design.
    """
    return named(preset, "studies.bert", read_design, "design")


def read_design(content: str | bytes) -> Design:
    """A design from TOML; studies/bert/presets has two, with comments.

    Raises:
        ValueError: it is no TOML, a key is missing or unknown, or a value is outside its range.
    """
    given = parsed(content, "TOML")
    check_keys("design", given, {*_NUMBERS, "warmup", "peak", "gpu", "model", "text"})
    check_keys("text", given["text"], {"validation_windows", "seed"})
    check_keys("model", given["model"], set(), {f.name for f in fields(MaskedModel)} - {"placement"})
    for name, kind in (("warmup", int), ("peak", float)):
        values = given[name]
        if not isinstance(values, list) or len(values) != 2 or not all(type(value) is kind for value in values):
            raise ValueError(f"{name} must be two numbers of kind {kind.__name__}, got {values!r}.")
        if values != sorted(set(values)):
            raise ValueError(f"{name} must have the smaller number first, got {values!r}.")
    for name in _NUMBERS:
        check_count(name, given[name], 1)
    check_count("validation_windows", given["text"]["validation_windows"], 1)
    check_count("seed", given["text"]["seed"], 0)
    model = MaskedModel(**given["model"])
    runs = tuple(
        Pretraining(
            model=replace(model, placement=placement), optimizer="adamw", betas=(0.9, 0.999), seed=seed,
            schedule=LinearDecay(peak=peak, warmup=warmup, end=given["updates"]), updates=given["updates"],
            batch_tokens=given["batch_tokens"], every=given["every"],
        )
        for seed, peak, warmup, placement in product(
            range(given["seeds"]), given["peak"], given["warmup"], get_args(MaskedPlacement)
        )
    )  # fmt: skip
    return Design(
        runs=runs, validation_windows=given["text"]["validation_windows"], text_seed=given["text"]["seed"],
        gpu=bool(given["gpu"]),
    )  # fmt: skip


def described(run: Pretraining) -> dict[str, str | int | float]:
    """The columns of a table of runs that say which run it is."""
    return {
        "placement": run.model.placement, "warmup": run.schedule.warmup, "peak": run.schedule.peak, "seed": run.seed,
    }  # fmt: skip


def operations(run: Pretraining) -> float:
    """Floating-point operations of a run's products: forwards, and twice as many backwards."""
    m = run.model
    layers = m.depth * (4 * m.width**2 + 2 * m.width * m.ffn_width + 2 * m.length * m.width)
    head = CHOSEN * (m.width**2 + m.width * m.vocab)
    return 6.0 * (layers + head) * run.batch_tokens * run.updates


def price(run: Pretraining, device: str) -> float:
    """Seconds of a run, about: from how fast the device multiplies large matrices, of which training reaches half."""
    size, seconds = (512 if device == "cpu" else 4096), []
    a, b = (torch.ones(size, size, device=device) for _ in range(2))
    for _ in range(5):
        start = time.perf_counter()
        float((a @ b)[0, 0])  # waits for a GPU
        seconds.append(time.perf_counter() - start)
    return operations(run) * min(seconds) / (2.0 * size**3) / _REACHED


def price_lines(design: Design, left: int, seconds: float, device: str) -> list[str]:
    """How many runs, how large, and about how long."""
    run = design.runs[0]
    return [
        f"{len(design.runs)} runs of {run.updates} updates of {run.batch_tokens} tokens; {left} are left.",
        f"About {duration(seconds)} a run on {device}, and {duration(seconds * left)} for all, one after the other"
        + (f" ({seconds * left / 3600:.3g} hours); this preset needs a GPU." if design.gpu else "."),
    ]
