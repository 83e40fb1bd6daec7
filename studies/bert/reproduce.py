"""`python -m studies bert`: pre-train the models of a design, judge the paper's statements, and draw Fig. 5."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from checks.verdict import Setting
from gradbounds.result import Result
from gradbounds.units import duration
from simulate.counts import check_count
from simulate.runs.cell import check_device
from simulate.runs.files import write_whole
from simulate.runs.sample import one_thread
from studies.bert.claims import judge, judge_downstream
from studies.bert.design import Design, design_named, price, price_lines
from studies.bert.downstream import BATCH, SEEDS, UPDATES, Downstream, read_downstream, tuned_rows
from studies.bert.figure import pretraining_losses
from studies.bert.model import MaskedModel
from studies.bert.runs import Texts, described_model, finished, name_of, one_run, row_of, weights_of
from studies.bert.task import Pretraining, unigram_loss
from studies.bert.text import MaskedText, read_masked_text
from studies.comparisons import TrainingRow
from studies.kept_rows import read_rows, rows_by_name, rows_file


@dataclass(frozen=True, slots=True, kw_only=True)
class BertRequest:
    """What is run.

    Attributes:
        preset: a name in the folder presets, or a TOML file of the same form.
        text: to learn from.
        out: folder of finished runs, table and figure.
        known: a file of rows, or a folder of such files, whose runs are not run again; of a folder its folder
            downstream has the rows of fine-tuned models.
        tasks: a folder of files as `read_downstream` reads them, on which models are fine-tuned; None for none.
        seeds: only the first so many of the design; None for all.
        device: of every run.
    """

    preset: str
    text: Path
    out: Path
    known: Path | None = None
    tasks: Path | None = None
    seeds: int | None = None
    device: str = "cpu"


def reproduce_bert(request: BertRequest, *, dry_run: bool) -> Result:
    """Train, judge and draw; what the folder holds already is not trained again. The price is said before.

    Returns:
        0: a statement that fails is a result.

    Raises:
        ValueError: an argument is outside its range, a text or a file is not what it must be, or a preset that needs a
            GPU has none.
    """
    check_device(request.device)
    design = design_named(request.preset)
    runs = list(design.runs)
    if request.seeds is not None:
        check_count("seeds", request.seeds, 1)
        runs = [run for run in runs if run.seed < request.seeds]
    with one_thread():
        seconds = price(runs[0], request.device)
    if design.gpu and request.device == "cpu" and not dry_run:
        raise ValueError(
            f"device must be cuda for the preset {request.preset!r}: on this CPU a run takes about {duration(seconds)} "
            f"({seconds / 3600:.2g} hours), and all {len(runs)} as many times that."
        )
    known = rows_by_name(request.known)
    model = design.model
    text = read_masked_text(request.text, length=model.length, vocab=model.vocab)
    texts = design.texts(text)
    tasks = _tasks(request.tasks, text, model)
    names = [name_of(run, texts) for run in runs]
    left = [
        run for run, name in zip(runs, names, strict=True)
        if name not in known and not finished(run, texts, request.out)
    ]  # fmt: skip
    priced = [*price_lines(design, len(left), seconds, request.device), *_price_of_tasks(design, runs, tasks, seconds)]
    if dry_run:
        return Result(about="what pre-training takes", values={"takes": priced}, lines=priced)
    for line in priced:
        print(line, file=sys.stderr, flush=True)
    unigram = unigram_loss(*texts)
    rows: list[TrainingRow] = []
    for place, (run, name) in enumerate(zip(runs, names, strict=True), start=1):
        row = known.get(name)
        if row is None:
            table = one_run(run, texts, request.out, request.device, weights=bool(tasks) and run in design.fine_tuned)
            row = row_of(run, texts, table, unigram, request.device)
            if run in left:
                print(f"run {place} of {len(runs)}: {row['outcome']}, {row['final']:.3f}", file=sys.stderr, flush=True)
        rows.append(row)
        write_whole(request.out / "rows.json", rows_file(rows, command_of(request)))
    tuned = _tuned(request, [run for run in runs if run in design.fine_tuned], texts, tasks)
    setting, size = setting_of(design, text, rows), size_of(model)
    return Result(
        about="pre-training with and without warm-up",
        values={"runs": [{k: v for k, v in row.items() if not isinstance(v, list)} for row in rows]},
        lines=[*outcome_lines(rows), *tuned_lines(tuned), ""],
        verdicts=[*judge(rows, setting, size), *judge_downstream(tuned, setting, size)],
        figures={"losses": partial(pretraining_losses, rows)},
    )


def _price_of_tasks(
    design: Design, runs: Sequence[Pretraining], tasks: Sequence[Downstream], seconds: float
) -> list[str]:
    """Estimate the most time of fine-tuning; no line without tasks. Windows are cut to the longest of a mini-batch."""
    if not tasks:
        return []
    models = sum(run in design.fine_tuned for run in runs) + len(_one_of_each(runs))
    updates = UPDATES * BATCH * design.model.length / (runs[0].updates * runs[0].batch_tokens)
    longest, many = duration(seconds * updates * SEEDS * len(tasks) * models), "s" * (len(tasks) > 1)
    return [f"Fine-tuning: {models} models, {len(tasks)} task{many}, {SEEDS} times each, {longest} at most."]


def command_of(request: BertRequest) -> str:
    """The command that gives the same rows, with folders of the project for those of this machine."""
    seeds = "" if request.seeds is None else f" --seeds {request.seeds}"
    tasks = "" if request.tasks is None else f" --tasks {request.tasks.name}"
    stem = Path(request.preset).stem
    return f"python -m studies bert --preset {stem} --text {request.text.name}{tasks}{seeds} --out runs/bert-{stem}"


def _tasks(folder: Path | None, text: MaskedText, model: MaskedModel) -> list[Downstream]:
    if folder is None:
        return []
    files = sorted(folder.glob("*.tsv"))
    if not files:
        raise ValueError(f"tasks must be a folder of .tsv files, but {str(folder)!r} has none.")
    return [read_downstream(file, text.known, length=model.length, vocab=model.vocab) for file in files]


def _tuned(
    request: BertRequest, runs: Sequence[Pretraining], texts: Texts, tasks: Sequence[Downstream]
) -> list[TrainingRow]:
    """Rows of fine-tuned models, those of this folder and those that are known; a finished one is not trained again.

    A run that is known by its row alone has no weights here, and is left out.
    """
    if not tasks:
        return []
    folder = request.out / "downstream"
    files = [*folder.glob("*.json"), *((request.known or folder) / "downstream").glob("*.json")]
    known = {(row["name"], row["examples"]): row for file in files for row in read_rows(file)}
    rows: list[TrainingRow] = []
    # Every run's model, and behind them those of both placements that are not pre-trained.
    for run, learned in [*((run, True) for run in runs), *((run, False) for run in _one_of_each(runs))]:
        file, about = weights_of(run, texts, request.out), described_model(run, texts, pretrained=learned)
        left = [task for task in tasks if (about["name"], task.digest) not in known]
        if left and (file.is_file() or not learned):
            weights = torch.load(file, map_location="cpu", weights_only=True) if learned else None
            fresh = tuned_rows(left, run.model, weights, about, request.device)
            known |= {(row["name"], row["examples"]): row for row in fresh}
        had = [known[key] for task in tasks if (key := (about["name"], task.digest)) in known]
        if had:
            write_whole(folder / f"{about['name']}.json", rows_file(had, command_of(request)))
        rows += had
    return rows


def _one_of_each(runs: Sequence[Pretraining]) -> list[Pretraining]:
    return list({run.model.placement: run for run in runs}.values())


def tuned_lines(rows: Sequence[TrainingRow]) -> list[str]:
    """A line for each task and arm: its accuracy, the mean over seeds and fine-tunings."""
    arms: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        learned = f"rate {row['peak']:g}, warm-up {row['warmup']}" if row["pretrained"] else "not pre-trained"
        key = row["task"], f"most frequent class {row['most frequent']:.3f}", row["placement"], learned
        arms.setdefault(key, []).extend(row["accuracies"])
    return [f"{', '.join(key)}: accuracy {fmean(values):.3f}" for key, values in arms.items()]


def outcome_lines(rows: Sequence[TrainingRow]) -> list[str]:
    """A line for each arm: its final loss, the mean over seeds, and what became of its runs."""
    arms: dict[tuple[Any, ...], list[TrainingRow]] = {}
    for row in rows:
        arms.setdefault((row["placement"], row["warmup"], row["peak"]), []).append(row)
    lines = [f"{'placement':9} {'warm-up':>7} {'rate':>7} {'final loss':>10}  outcomes"]
    for (placement, warmup, peak), seeds in arms.items():
        outcomes = [row["outcome"] for row in seeds]
        counts = ", ".join(f"{outcomes.count(word)} {word}" for word in dict.fromkeys(outcomes))
        lines.append(f"{placement:9} {warmup:7d} {peak:7g} {fmean(row['final'] for row in seeds):10.3f}  {counts}")
    return [*lines, f"Word frequencies alone: {rows[0]['unigram']:.3f} nats a hidden word."]


def setting_of(design: Design, text: MaskedText, rows: Sequence[TrainingRow]) -> Setting:
    """The models and the text."""
    m, run = design.model, design.runs[0]
    return Setting(
        networks=f"{m.depth} layers",
        ranges=(("d", m.width, m.width), ("V", m.vocab, m.vocab)),
        more=f"masked words of {text.name}, {run.updates} updates of {run.batch_tokens} tokens, "
        f"{len({row['seed'] for row in rows})} seeds",
    )


def size_of(model: MaskedModel) -> str:
    """The width, where it is not BERT's."""
    return "" if model.width == MaskedModel().width else f"d = {model.width}"
