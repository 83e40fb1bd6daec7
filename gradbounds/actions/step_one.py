"""A hook for a training loop, and a callback for transformers' Trainer: both print the prediction of step 1."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradbounds.actions.batch import line_text, predict_batch, resolve_batch
from gradbounds.actions.log_line import LogLine
from gradbounds.actions.logged_as import has_line
from gradbounds.actions.logged_causes import TRAINED, Cause, off_words
from gradbounds.actions.plan import batch_text
from gradbounds.described_network import Description
from theory import NoRuleError
from theory.configurations.training_codes import HUGGING_FACE

if TYPE_CHECKING:
    from transformers import TrainerCallback


class StepOne:
    """A prediction of step 1, which prints itself next to the first loss and gradient norm of a training run.

    Attributes:
        line: the predicted loss and gradient norm, with the standard deviation of one run.
        about: the batch and its text, in words.
    """

    def __init__(
        self, batch: int, *, config: str | Path | Mapping[str, Any] | None = None, like: str | None = None,
        drawn_by: str = HUGGING_FACE, text: str | None = None, max_time: str | None = None,
        show: Callable[[str], Any] = print, **fields: Any,
    ) -> None:  # fmt: skip
        """Predict loss and gradient norm of step 1.

        `batch` counts the sequences of one optimizer step on all devices. `config` is a model's config.json or its
        content. `like`, `drawn_by`, `text` and `max_time` are the flags of that name. `fields` are fields of
        `gb.Stack`, such as `tokens`. `show` prints a line.

        Raises:
            ValueError: an argument is outside its range, or the configuration cannot be read.
            NoRuleError: theory does not cover the network.
        """
        of = Description(config=Path(config) if isinstance(config, str) else config, like=like, drawn_by=drawn_by)
        asked = resolve_batch(fields, of, text=text, patterns=None, max_time=max_time)
        values = predict_batch(asked, batch, of, patterns=None, max_time=max_time).values
        if values["loss"] is None:
            raise NoRuleError("theory has no rule for the loss of a class that ties both ends of an encoder-decoder.")
        self.line, tokens = values["line"], values["stack"].tokens
        self.about = batch_text(batch, tokens, asked.text, asked.of_tokens)
        self._uniform, self._show, self._is_done = math.log(values["stack"].vocab), show, False

    def __call__(self, loss: Any, norm: Any = None) -> None:
        """Print both lines in the first call, and nothing later.

        Args:
            loss: the mean cross-entropy of step 1, a number or a tensor.
            norm: the gradient norm before clipping, as `torch.nn.utils.clip_grad_norm_` returns it.
        """
        if self._is_done:
            return
        self._is_done = True
        run = LogLine(_number(loss), None if norm is None else _number(norm))
        numbers = has_line({"loss": run.loss, "gradient norm": run.norm})
        self._show(f"theory: {line_text(self.line)}, at {self.about}")
        self._show(f"run:    {numbers}: {self._verdict(run)}")

    def _verdict(self, run: LogLine) -> str:
        numbers = [number for number in (run.loss, run.norm) if number is not None]
        if not all(math.isfinite(number) and number > 0 for number in numbers):
            return "not positive and finite"
        if numbers[0] < TRAINED * self._uniform:
            return f"not compared: the loss is {numbers[0] / self._uniform:.2g} of ln V: the weights are trained"
        healthy = Cause("", self.line)
        if healthy.explains(run):
            return "as predicted"
        return f"off: {' and '.join(off_words(healthy, run))}; gradbounds predict --logged tests the causes"


def _number(value: Any) -> float:
    # Return the number of a tensor, an array or a number.
    return float(value.item() if hasattr(value, "item") else value)


def step_one_callback(
    *, batch: int | None = None, show: Callable[[str], Any] = print, **options: Any
) -> "TrainerCallback":
    """Return a callback for transformers' Trainer that prints the predicted and the actual step 1.

    The model's configuration is read when training begins. Trainer logs step 1 with `logging_first_step=True`.

    Args:
        batch: number of sequences of one optimizer step; by default by the arguments of the Trainer.
        show: function that prints a line.
        **options: further arguments of `StepOne`, such as `tokens`, `text` and `drawn_by`.

    Raises:
        ImportError: transformers is not installed.
    """
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ImportError(f"transformers must be installed: pip install 'gradbounds[models]' ({error})") from error

    class StepOneCallback(TrainerCallback):
        """A Trainer callback that prints the prediction of step 1; an error in it does not stop the training."""

        first: StepOne | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            """Predict step 1 when training begins, in the first process only."""
            if not state.is_world_process_zero or state.global_step > 0:
                return
            sequences = batch or args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            try:
                self.first = StepOne(sequences, **{"config": model.config.to_dict(), "show": show} | options)
            except ValueError as error:
                show(f"gradbounds does not predict step 1: {error}")

        def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
            """Print the predicted and the actual step 1, or the setting that keeps step 1 out of the log."""
            if self.first is None or not logs or "loss" not in logs:
                return
            if state.global_step == 1:
                self.first(logs["loss"], logs.get("grad_norm"))
            else:
                show(f"gradbounds compares step 1, and the first log is of step {state.global_step}: set "
                     "logging_first_step=True")  # fmt: skip
            self.first = None

    return StepOneCallback()
