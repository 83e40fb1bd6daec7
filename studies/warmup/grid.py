"""A grid of training runs, read from a file: which models, optimizers, rates and warm-ups, on which share of a text."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, Literal, get_args

from simulate.counts import check_count
from studies.parallel_text import ParallelText, Units, held_out
from studies.presets import check_keys
from studies.schedules import Schedule
from studies.training_run import Training
from studies.translation_model import Translation
from theory.stack.documents import parsed

Reading = Literal["a", "b", "both", "fixed"]
"""Of "the same inverse square root schedule": after the warm-up η √(T/t), "a", or η min(1, √(T₀/t)), "b"; "both" where
they agree, at T = T₀. "fixed" is a rate that does not decay."""

_NUMBERS = ("updates", "batch_tokens", "every", "start")
_TABLES = ("model", "text", "runs", "paper")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run of a grid.

    Attributes:
        training: how a model is trained.
        reading: of its schedule.
        rates: whether the three rates of its steps are measured.
    """

    training: Training
    reading: Reading
    rates: bool

    def described(self) -> dict[str, str | int | float]:
        """The columns of a table of runs that say which run it is."""
        t = self.training
        return {
            "optimizer": t.optimizer, "placement": t.translation.placement, "warmup": t.schedule.warmup,
            "peak": t.schedule.peak, "reading": self.reading, "seed": t.seed,
        }  # fmt: skip

    def key(self) -> dict[str, Any]:
        """What makes two runs on one text different: every setting, of models and schedules what is not a default."""
        t = self.training
        schedule = {f.name: value for f in fields(Schedule) if (value := getattr(t.schedule, f.name)) != f.default}
        plain = {
            name: getattr(t, name) for name in ("optimizer", "updates", "batch_tokens", "every", "seed", "precision")
        }
        return plain | {"betas": list(t.betas), "schedule": schedule, "model": t.translation.non_default()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRates:
    """The rates of a grid that stand for the paper's, which has 5e-4 and 1e-3 for Adam, and 1e-4 as a fixed rate.

    Attributes:
        adam: pairs of Adam's two.
        fixed: the fixed rate that goes with each pair.
        sgd: SGD's.
    """

    adam: tuple[tuple[float, float], ...]
    fixed: tuple[float, ...]
    sgd: tuple[float, ...]

    def scaled(self, optimizer: str) -> tuple[float, ...]:
        """Those of Adam's kind, or of "sgd", in ascending order."""
        return self.sgd if optimizer == "sgd" else tuple(sorted({rate for pair in self.adam for rate in pair}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Runs, and the text that they have.

    Attributes:
        runs: every seed's runs before the next seed's, so that a part of them can be compared.
        paper: which rates stand for the paper's.
        start: T₀, the longest warm-up.
        translation: the model that all have, but for its placement.
        units: of the vocabulary.
        validation_pairs: pairs of the text that no run is trained on.
        text_seed: of which pairs these are.
        prefix: whether runs are the beginning of longer ones, and judged by whether they fail alone.
    """

    runs: tuple[Planned, ...]
    paper: PaperRates
    start: int
    translation: Translation
    units: Units
    validation_pairs: int
    text_seed: int
    prefix: bool = False

    def texts(self, text: ParallelText) -> tuple[ParallelText, ParallelText]:
        """What is trained on, and what is not."""
        return held_out(text, self.validation_pairs, seed=self.text_seed)


def read_grid(content: str | bytes) -> Grid:
    """A grid from TOML; studies/warmup/presets has three, with comments.

    Raises:
        ValueError: it is no TOML, a key is missing or unknown, or a value is outside its range.
    """
    try:
        given = parsed(content, "TOML")
    except ValueError as error:
        raise ValueError(f"grid must be TOML: {error}.") from error
    check_keys("grid", given, {*_NUMBERS, *_TABLES}, {"betas", "precision", "prefix", "rate_seeds"})
    check_count("rate_seeds", given.get("rate_seeds", 0), 0)
    if not isinstance(given.get("prefix", False), bool):
        raise ValueError(f"prefix must be true or false, got {given['prefix']!r}.")
    text = given["text"]
    check_keys("text", text, {"units", "validation_pairs", "seed"})
    model = dict(given["model"])
    check_keys("model", model, set(), {f.name for f in fields(Translation)} - {"placement"})
    translation = Translation(**model)
    planned: list[Planned] = []
    for number, table in enumerate(given["runs"], start=1):
        planned += _runs(f"runs {number}", table, given, translation)
    # A stable sort: as the file has them within a seed.
    planned.sort(key=lambda run: run.training.seed)
    if len({(run.reading, run.training) for run in planned}) < len(planned):
        raise ValueError("runs must be different, but two of the grid are the same.")
    if text["units"] not in get_args(Units):
        raise ValueError(f"units must be {' or '.join(get_args(Units))}, got {text['units']!r}.")
    check_count("validation_pairs", text["validation_pairs"], 1)
    check_count("seed", text["seed"], 0)
    check_keys("paper", given["paper"], {"adam", "fixed", "sgd"})
    paper = given["paper"]
    if len(paper["fixed"]) != len(paper["adam"]) or any(len(pair) != 2 for pair in paper["adam"]):
        raise ValueError(f"paper must have pairs of rates for adam and a fixed rate for each, got {dict(paper)!r}.")
    rates = PaperRates(
        adam=tuple((low, high) for low, high in paper["adam"]), fixed=tuple(paper["fixed"]), sgd=tuple(paper["sgd"])
    )
    return Grid(
        runs=tuple(planned), paper=rates, start=given["start"], translation=translation, units=text["units"],
        validation_pairs=text["validation_pairs"], text_seed=text["seed"], prefix=given.get("prefix", False),
    )  # fmt: skip


def _runs(name: str, table: Mapping[str, Any], given: Mapping[str, Any], translation: Translation) -> list[Planned]:
    """The product of a table's lists; of both readings one where they agree.

    Raises:
        ValueError: a key is missing or unknown, or a value is outside its range.
    """
    check_keys(name, table, {"optimizer", "warmup", "peak", "reading", "seeds"}, {"placement"})
    lists = {"placement": ["post", "pre"]} | {key: value for key, value in table.items() if key != "seeds"}
    for key, kind in {"optimizer": str, "placement": str, "warmup": int, "peak": float, "reading": str}.items():
        values = lists[key]
        if not isinstance(values, list) or not values or not all(type(value) is kind for value in values):
            raise ValueError(f"{key} of {name} must be a list of {kind.__name__}, got {values!r}.")
    check_count(f"seeds of {name}", table["seeds"], 1)
    options = {key: given[key] for key in ("updates", "batch_tokens", "every")}
    if "precision" in given:
        options["precision"] = given["precision"]
    if "betas" in given:
        options["betas"] = tuple(given["betas"])
    runs: dict[tuple[Any, ...], Planned] = {}
    for reading, peak, warmup, optimizer, placement in product(
        *(lists[key] for key in ("reading", "peak", "warmup", "optimizer", "placement"))
    ):
        for seed in range(table["seeds"]):
            schedule, reading_name = _schedule(reading, peak, warmup, given["start"])
            training = Training(
                translation=replace(translation, placement=placement), schedule=schedule, optimizer=optimizer,
                seed=seed, **options,
            )  # fmt: skip
            planned = Planned(training=training, reading=reading_name, rates=seed < given.get("rate_seeds", 0))
            runs[reading_name, peak, warmup, optimizer, placement, seed] = planned
    return list(runs.values())


def _schedule(reading: str, peak: float, warmup: int, start: int) -> tuple[Schedule, Reading]:
    """The schedule of a reading, and which it is.

    Raises:
        ValueError: there is no such reading, or a value is outside its range.
    """
    if reading not in ("a", "b", "fixed"):
        raise ValueError(f"reading must be a, b or fixed, got {reading!r}.")
    if reading == "fixed":
        return Schedule(peak=peak, warmup=warmup), "fixed"
    if warmup == start or reading == "a":
        schedule = Schedule(peak=peak, warmup=warmup, decay="inverse-sqrt")
        return schedule, "both" if warmup == start else "a"
    return Schedule(peak=peak, warmup=warmup, decay="inverse-sqrt-from", start=start), "b"
