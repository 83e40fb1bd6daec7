"""The runs of a grid in processes; each that has finished is a file of the folder, and is never run again."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import Any

import pandas as pd

from simulate.runs.execution import Execution
from simulate.runs.sample import one_thread
from studies.parallel_text import ParallelText
from studies.table_cache import cached, file_of, write_frame
from studies.trained_step import step_rates
from studies.trainer import train
from studies.training_run import MEASURED, Trained
from studies.warmup.grid import Planned

_VERSION = 1

Texts = tuple[ParallelText, ParallelText]


def name_of(planned: Planned, texts: Texts) -> str:
    """A run's name: of another setting or text it is another one."""
    return file_of(Path(), _key(planned, texts), _VERSION).stem


def _key(planned: Planned, texts: Texts) -> dict[str, Any]:
    return {"run": planned.key()} | {"text": texts[0].digest, "pairs": [len(text) for text in texts]}


def finished(plan: Sequence[Planned], texts: Texts, out: Path) -> list[bool]:
    """Which runs the folder has."""
    return [file_of(out, _key(planned, texts), _VERSION).is_file() for planned in plan]


def run_all(
    plan: Sequence[Planned],
    texts: Texts,
    out: Path,
    *,
    execution: Execution,
    device: str,
    on_run: Callable[[int], None],
) -> list[pd.DataFrame]:
    """The tables of all runs, in their order.

    Args:
        plan: the runs.
        texts: that are trained on and validated with.
        out: the folder.
        execution: processes.
        device: of every run.
        on_run: called with a run's place when its table is there.

    Raises:
        ValueError: a run does; or the folder cannot be written.
    """
    here = execution.workers == 1 and execution.pool is None
    futures: dict[Future[pd.DataFrame], int] = {}
    with execution.executor() as pool:
        for place, planned in enumerate(plan):
            future = pool.submit(one_run, planned, texts, out, device)
            futures[future] = place
            if here and future.exception() is None:
                on_run(place)  # which has just been run here
        for future in as_completed(futures):
            if not here and future.exception() is None:
                on_run(futures[future])
    return [future.result() for future in futures]


def one_run(planned: Planned, texts: Texts, out: Path, device: str) -> pd.DataFrame:
    """A run's table from the folder, or trained, from its checkpoint on if it was stopped.

    Returns:
        Columns update, part, layer, matrix, statistic and value: what `Trained` has, and "loss" and "rate" of every
        update.
    """
    key = _key(planned, texts)
    file = file_of(out, key, _VERSION)
    checkpoint = out / "checkpoints" / f"{file.stem}.pt"
    record = _record(out, file.stem)

    def make() -> pd.DataFrame:
        with one_thread():
            trained = train(
                planned.training, *texts, checkpoint=checkpoint, device=device,
                at_step=step_rates if planned.rates else None,
                on_measure=lambda shown: write_frame(record, _table(shown)),
            )  # fmt: skip
        return _table(trained)

    table, _ = cached(out, key, _VERSION, make)
    checkpoint.unlink(missing_ok=True)
    record.unlink(missing_ok=True)
    return table


def _record(out: Path, name: str) -> Path:
    return out / "records" / f"{name}.parquet"


def _table(trained: Trained) -> pd.DataFrame:
    rows = [
        (update, "", 0, "", statistic, value)
        for statistic, values in (("loss", trained.losses), ("rate", trained.rates))
        for update, value in enumerate(values, start=1)
    ]
    return pd.DataFrame([*rows, *trained.measured], columns=list(MEASURED))
