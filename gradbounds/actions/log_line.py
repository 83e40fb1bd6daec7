"""The first step of a training log: its loss, its gradient norm, and the gradient norms of single parameters."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gradbounds.actions.log_names import APART, PARAMETER, bare, losses, norms, plain, step_of, unwrapped
from gradbounds.actions.log_records import log_records

# Names of skipped steps after an overflow: one step per line, several per line, and, last, all of the run.
_SKIPPED = ("overflow", "skipped iterations", "skipped")
_RATES = ("lr", "learning rate")
_PERPLEXITY = ("ppl", "perplexity", "train ppl", "train perplexity")


@dataclass(frozen=True, slots=True)
class LogLine:
    """The first step that a training log contains, with its loss and gradient norms.

    Attributes:
        loss: loss of the step in nats; None if the log contains only norms of parameters.
        norm: total gradient norm; None if the log has none.
        step: number of the step; None if the log has none.
        parameters: gradient norms of single parameters by name.
        norm_name: name of the norm if it states more: squared, or before or after clipping; else "".
        steps: number of steps that the loss is averaged over, inferred from the first two logged step numbers.
        skipped: number of earlier steps that were skipped after an overflow.
        is_of_bits: whether the log states the loss in bits, as its perplexity shows.
        apart: auxiliary losses and the loss scale by name.
        without_loss: an earlier step that the log has without a loss; None if there is none.
        rate: learning rate of the step; None if the log has none.
        fall: loss of this step minus loss of the next one; None if the log lacks one of them.
    """

    loss: float | None
    norm: float | None = None
    step: int | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)
    norm_name: str = ""
    steps: int = 1
    skipped: int = 0
    is_of_bits: bool = False
    apart: Mapping[str, float] = field(default_factory=dict)
    without_loss: int | None = field(default=None, compare=False)
    rate: float | None = field(default=None, compare=False)
    fall: float | None = field(default=None, compare=False)

    @property
    def is_first(self) -> bool:
        """Return whether a log's record is the first update of fresh weights; true if the log states no step."""
        return self.step is None or 0 <= self.step <= 1 + self.skipped

    def facts(self) -> str:
        """Describe a log's record in words: its step, the skipped steps before it, and a conversion from bits.

        >>> LogLine(11.0, step=3, skipped=2).facts()
        'at step 3, after 2 skipped steps'
        """
        return ", ".join(
            [
                "no step number" if self.step is None else f"at step {self.step}",
                *[f"after {self.skipped} skipped step{'s' * (self.skipped > 1)}"] * (self.skipped > 0),
                *["converted from bits to nats, as the log's perplexity shows"] * self.is_of_bits,
            ]
        )


def read_log(path: str | Path) -> LogLine:
    """Read the first training step from the beginning of a log file.

    Args:
        path: as `log_records` takes it.

    Raises:
        ValueError: the file cannot be read or is no text, has neither a loss nor norms of parameters, begins at a later
            step, or has a loss or a norm that is not finite.
    """
    line = first_record(path)
    for name, value in (("loss", line.loss), ("norm", line.norm)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(
                f"logged must have positive finite numbers, got {name} {value:g}"
                f"{'' if line.step is None else f' at step {line.step}'} in {str(path)!r}."
            )
    if not line.is_first:
        mean = f", with a loss that is probably a mean over {line.steps} steps," if line.steps > 1 else ""
        raise ValueError(
            f"logged must begin at step 0 or 1, got step {line.step} first{mean} in {str(path)!r}"
            + f", after step {line.without_loss} without a loss (missing or null)" * (line.without_loss is not None)
            + ": begin with fresh weights and log step 1."
        )
    return line


def first_record(path: str | Path) -> LogLine:
    """Return the first record of a training log with a loss; it may belong to a later step or be a mean over steps.

    A validation loss is used only at step 0, and only if no other loss belongs to fresh weights. A step whose norm is 0
    or not finite was skipped; at step 0, a norm of 0 was not computed.

    Args:
        path: as `log_records` takes it.

    Raises:
        ValueError: the file cannot be read or is no text, or has neither a loss nor norms of parameters.
    """
    skipped = dict.fromkeys(_SKIPPED, 0.0)
    parameters: dict[str, float] = {}
    first = fresh = idle = alone = without_loss = None
    for step, numbers in _steps(log_records(path)):
        line = _line(step, numbers)
        if first is not None:  # a later step, which is followed by its like after as many as it has before
            if line.loss is None:
                continue
            every = first.step or 1
            if (first.step, first.norm, step) == (0, None, 1) and 0 < (line.norm or 0.0) < math.inf:
                # Step 0 was an evaluation, unless an update changed the loss by more than 1%, and so the norm.
                first = line if abs(line.loss - (first.loss or 0.0)) < 0.01 * line.loss else first
            is_next = first.step is not None and step == first.step + 1
            fall = first.loss - line.loss if is_next and first.loss is not None else None
            first = replace(first, steps=every if step == 2 * every else 1, fall=fall)
            break
        for name in _SKIPPED:
            if name in numbers and math.isfinite(numbers[name]):
                skipped[name] = numbers[name] + (skipped[name] if name != "skipped" else 0.0)
        if fresh is None and step == 0 and (names := losses(numbers, of_validation=True)):
            fresh = LogLine(numbers[names[0]], None, 0)
        for name, norm in line.parameters.items():
            parameters.setdefault(name, norm)
        if line.loss is None:
            without_loss = without_loss or line.step
            alone = alone or (line if line.norm is not None or line.parameters else None)
        elif line.norm is None or 0 < line.norm < math.inf or not math.isfinite(line.loss):
            first = line if idle is None or math.isfinite(line.loss) else idle
            first = replace(
                first, parameters=parameters, skipped=int(max(skipped.values())), without_loss=without_loss
            )  # fmt: skip
        else:
            idle = idle or line
            skipped["overflow"] += 1
            parameters = {}
    if fresh is not None and not (first and first.is_first):
        first = fresh
    first = first or (replace(alone, parameters=parameters) if parameters and alone is not None else idle)
    if first is None:
        raise ValueError(
            "logged must have a loss of a training step, as loss: 11.0, a column 'loss', or lines of step, loss and "
            "norm, or norms of parameters, as layers.3.self_attn.q_proj.weight: 0.12, got none in the first MiB of "
            f"{str(path)!r}."
        )
    return first


def _line(step: float | None, numbers: Mapping[str, float]) -> LogLine:
    of_loss, of_norm = losses(numbers)[:1], norms(numbers)[:1]
    loss, norm = (next((numbers[name] for name in names), None) for names in (of_loss, of_norm))
    nats = math.log(2.0) * (loss or 0.0)
    perplexity = next((value for name, value in numbers.items() if plain(name) in _PERPLEXITY and value > 0), math.nan)
    is_of_bits = abs(nats - math.log(perplexity)) < 0.005  # but for rounding
    # A norm of 0 at step 0 was not computed, unless the record shows that a loss scale or an overflow skipped the step.
    is_skipped = any(plain(name).endswith("scale") or name in _SKIPPED and value for name, value in numbers.items())
    return LogLine(
        nats if is_of_bits else loss, None if norm == step == 0 and not is_skipped else norm,
        None if step is None else int(step),
        {unwrapped(name): value for name, value in numbers.items() if PARAMETER.search(name)},
        next((name for name in of_norm if name != bare(name)), ""), is_of_bits=is_of_bits,
        apart={name: value for name, value in numbers.items() if APART.search(plain(name)) and 0 < value < math.inf},
        rate=next((value for name, value in numbers.items()
                   if plain(name.rpartition("/")[2]) in _RATES and 0 < value < math.inf), None),
    )  # fmt: skip


def _steps(records: Iterable[Mapping[str, float]]) -> Iterator[tuple[float | None, dict[str, float]]]:
    # Yield the numbers of one step after another, merged over its records.
    #
    # Records without a step are merged up to the next loss.
    step: float | None = None
    numbers: dict[str, float] = {}
    has_loss = False
    for record in records:
        if "train_runtime" in record:  # Trainer's last record, whose loss is a mean over the run
            continue
        named = losses(record)
        record_step = step_of(record, has_loss=bool(named or losses(record, of_validation=True)))
        is_behind = step is None and has_loss and not named  # of a record whose step is its last line
        if any(name in numbers for name in named) or record_step not in (None, step) and not is_behind:
            if numbers:
                yield step, numbers
            step, numbers, has_loss = None, {}, False
        step = record_step if record_step is not None and math.isfinite(record_step) else step
        has_loss = has_loss or bool(named)
        for name, value in record.items():
            if name == "overflow":
                numbers[name] = numbers.get(name, 0.0) + value
            else:
                numbers.setdefault(name, value)
    if numbers:
        yield step, numbers
