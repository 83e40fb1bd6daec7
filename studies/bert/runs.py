"""Runs of pre-training; each that has finished is a file of the folder, and is never run again."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from simulate.runs.files import whole_file
from simulate.runs.provenance import processor
from simulate.runs.sample import one_thread
from studies.bert.design import described
from studies.bert.task import Pretraining
from studies.bert.text import MaskedText
from studies.comparisons import outcome
from studies.table_cache import cached, file_of
from studies.trainer import train
from studies.training_run import MEASURED

_VERSION = 1
_EVERY = 100  # updates between checkpoints

Texts = tuple[MaskedText, MaskedText]


def key_of(run: Pretraining, texts: Texts) -> dict[str, Any]:
    """What makes two runs different: every setting, and the text."""
    names = ("optimizer", "updates", "batch_tokens", "every", "seed", "precision")
    plain: dict[str, Any] = {name: getattr(run, name) for name in names}
    plain |= {"betas": list(run.betas), "peak": run.schedule.peak, "warmup": run.schedule.warmup}
    return {"pretraining": plain | {"model": run.model.non_default()}, "text": texts[0].digest,
            "windows": [list(text.ids.shape) for text in texts]}  # fmt: skip


def name_of(run: Pretraining, texts: Texts) -> str:
    """A run's name: of another setting or text it is another one."""
    return file_of(Path(), key_of(run, texts), _VERSION).stem


def described_model(run: Pretraining, texts: Texts, *, pretrained: bool) -> dict[str, Any]:
    """Columns of a table of models that say which it is: a run's, with its name, or its network as it is drawn."""
    if pretrained:
        return {**described(run), "name": name_of(run, texts)}
    return {"name": file_of(Path(), {"drawn": run.model.non_default()}, _VERSION).stem}


def finished(run: Pretraining, texts: Texts, out: Path) -> bool:
    """Whether the folder has the run."""
    return file_of(out, key_of(run, texts), _VERSION).is_file()


def weights_of(run: Pretraining, texts: Texts, out: Path) -> Path:
    """Where the folder has the last weights of a run, if they were kept."""
    return file_of(out, key_of(run, texts), _VERSION).with_suffix(".weights.pt")


def one_run(run: Pretraining, texts: Texts, out: Path, device: str, *, weights: bool = False) -> pd.DataFrame:
    """A run's table from the folder, or trained, from its checkpoint on if it was stopped.

    Args:
        run: which.
        texts: to train on, and not to.
        out: the folder.
        device: where.
        weights: whether the model's last weights are kept, in the file `weights_of` names.

    Raises:
        ValueError: the folder has the run without its weights, and they are wanted.

    Returns:
        Columns update, part, layer, matrix, statistic and value: the validation losses, "loss" and "rate" of every
        update, and "seconds" of this process after the last, since the run began or went on.
    """
    checkpoint = out / "checkpoints" / f"{name_of(run, texts)}.pt"

    kept = weights_of(run, texts, out)
    if weights and finished(run, texts, out) and not kept.is_file():
        raise ValueError(f"out must be another folder for weights to be kept: {str(out)!r} has the run without them.")

    def make() -> pd.DataFrame:
        start = time.perf_counter()
        with one_thread():
            trained = train(run, *texts, checkpoint=checkpoint, checkpoint_every=_EVERY, device=device)
        if weights:
            state = torch.load(checkpoint, map_location="cpu", weights_only=True)["model"]
            with whole_file(kept) as file:
                torch.save(state, file)
        series = {"loss": trained.losses, "rate": trained.rates}
        rows = [
            (update, "", 0, "", statistic, value)
            for statistic, values in series.items() for update, value in enumerate(values, start=1)
        ]  # fmt: skip
        rows.append((len(trained.losses), "", 0, "", "seconds", time.perf_counter() - start))
        return pd.DataFrame([*rows, *trained.measured], columns=list(MEASURED))

    table, _ = cached(out, key_of(run, texts), _VERSION, make)
    checkpoint.unlink(missing_ok=True)
    return table


def row_of(run: Pretraining, texts: Texts, table: pd.DataFrame, unigram: float, device: str = "cpu") -> dict[str, Any]:
    """A finished run of this machine as a row of a table of runs.

    Returns:
        `described`, the run's `name`; `first` and `final`, the validation losses before the first update and after the
        last, NaN where a loss was not finite; `unigram` and `outcome`; `seconds`, `processor` and `dtype`; and over
        measured updates the lists `updates`, `tokens` read so far, and `validation`.
    """
    series = {name: rows.set_index("update")["value"] for name, rows in table.groupby("statistic")}
    validation = series["validation loss"]
    finite = bool(np.isfinite(series["loss"]).all())
    first, final = float(validation.iloc[0]), float(validation.iloc[-1]) if finite else float("nan")
    updates = [int(update) for update in validation.index]
    # Whole windows of a mini-batch.
    tokens = run.batch_tokens // texts[0].ids.shape[1] * texts[0].ids.shape[1]
    return {
        **described(run), "name": name_of(run, texts),
        **{name: float(f"{value:.6g}") for name, value in (("first", first), ("final", final), ("unigram", unigram))},
        "outcome": outcome(first, final, unigram), "seconds": round(float(series["seconds"].iloc[-1])),
        "processor": processor(device), "dtype": run.precision,
        "updates": updates, "tokens": [tokens * update for update in updates],
        "validation": [float(f"{value:.5g}") for value in validation],
    }  # fmt: skip
