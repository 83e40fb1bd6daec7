"""The command-line flags of `gradbounds predict`."""

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from gradbounds.described_network import variants
from gradbounds.flags import LOGGED_AS, Flag, ModelFlags, check_together, given, network, optional
from theory import NoRuleError, Stack
from theory.configurations import context
from theory.stack.optimizers import OPTIMIZERS, Optimizer

if TYPE_CHECKING:
    from gradbounds.result import Result

# One that is not given is None: a published model keeps its own there.
Changes = network(Stack())

NEEDS = {
    "latex": "bound", "logged_as": "logged", "logged": "batch or like or config", "text": "batch or like or config",
    "learning_rate": "batch or like or config",
    "optimizer": "first_step or learning_rate", "warmup_steps": "learning_rate", "adam_epsilon": "learning_rate",
    "adamw_rate": "learning_rate",
}  # fmt: skip
OPTIMIZER = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1, metavar="NAME", instance_from_str=lambda words: "adam" if words == ["adamw"] else words[0],
    is_instance=lambda name: name in OPTIMIZERS, str_from_instance=lambda name: [name], choices=(*OPTIMIZERS, "adamw"),
)  # fmt: skip
"""The rule that reads an optimizer's name; "adamw" is "adam", whose steps are without weight decay."""
EXCLUDES: dict[str, tuple[tuple[str, ...], str]] = {
    "dry_run": (("bound", "two logs"), ", which take seconds."),
    "bound": (
        ("batch", "first_step", "draws", "compare", "patterns", "all"),
        "; it concerns the theory of one network.",
    ),
    "batch": (
        ("draws", "first_step", "sequences"),
        "; it concerns step 1 of a run.",
    ),
    "compare": (("logged", "learning_rate"), "; give the change as a flag: --depth 24."),
    "learning_rate": (
        (
            "patterns",
            "all",
            "max_time",
            "memory",
            "draws",
            "first_step",
            "sequences",
            "bound",
            "layers",
        ),
        "; it concerns only step 1.",
    ),  # fmt: skip
    "text": (("bound", "draws", "first_step"), "; it is the text of step 1 of a run."),
    "layers": (("bound", "first_step"), "; it adds tables to the card."),
    "two logs": (
        ("text", "patterns", "all", "max_time", "memory", "learning_rate"),
        "; theory judges two logs by a quick estimate.",
    ),
}
"""The flags that require or exclude others, and why; docs/configurations.md lists them."""


@dataclass(frozen=True, kw_only=True)
class Predict(ModelFlags):
    """Print the card of a network: predicted first step, layers and learning rates.

    The network comes from a config.json (--config), a published model (--like) or flags, which override its fields.
    Other views: --batch, --bound, --first-step, --logged (docs/configurations.md lists valid combinations).
    """

    stack: Annotated[Changes, Flag(name="", help="")] = field(default_factory=Changes)  # type: ignore[valid-type]
    layers: Annotated[bool, optional("add tables of layers 1, 2, 4, ... below the card", None)] = False
    all: Annotated[bool, optional("print every layer", None)] = False
    compare: Annotated[
        tuple[str, ...] | None,
        optional("also predict changes: depth=4,8; + between networks; alone, list tested ones", "[FIELD=VALUE ...]"),
    ] = None
    draws: Annotated[int | None, optional("number of random networks to sample", "N", "none")] = None
    seed: Annotated[int, Flag(help="root seed of the samples")] = 0
    patterns: Annotated[int | None, optional("attention samples in the theory", "N", "automatic")] = None
    max_time: Annotated[
        str | None,
        optional("time limit of the theory", "90s|10m|2h", default="a minute"),
    ] = None
    memory: Annotated[str | None, optional("memory limit of the theory", "500MB|4GB", default="4GB")] = None
    dry_run: Annotated[bool, optional("print cost and method of the theory, then stop", None)] = False
    out: Annotated[Path | None, optional("folder for tables and figures", "FOLDER", "none")] = None
    bound: Annotated[bool, optional("print Theorem 1's bound, the prediction, the ratio", None)] = False
    latex: Annotated[bool, optional("print the bound as LaTeX; requires --bound", None)] = False
    first_step: Annotated[bool, optional("predict critical learning rates of the first step", None)] = False
    optimizer: Annotated[
        tuple[Annotated[Optimizer, OPTIMIZER], ...],
        Flag(help="optimizers; requires --first-step or --learning-rate", metavar=f"{'|'.join(OPTIMIZERS)} [...]"),
    ] = ("sgd", "adam")
    batch: Annotated[int | None, optional("card and tables of step 1 for S sequences, finer", "S")] = None
    text: Annotated[
        str | None,
        optional(
            "text of step 1: english, code, mock_digits, zipf:A, counts:FILE, law:FILE, FILE, lighthouse, distinct",
            "TEXT",
            default="english, or zipf:1 for vocabularies below 32,000",
        ),
    ] = None
    logged: Annotated[
        tuple[tuple[Path, ...], ...],
        tyro.conf.UseAppendAction,
        optional("training log to judge, or two to compare, for --batch or the card's batch", "FILE [FILE]"),
    ] = ()
    logged_as: Annotated[tuple[str, ...], LOGGED_AS] = ()
    learning_rate: Annotated[
        float | None,
        optional("change of the loss in step 1 at learning rate R, for --batch or the card's batch", "R"),
    ] = None
    warmup_steps: Annotated[
        int | None,
        Flag(
            help="--learning-rate: steps of a linear warm-up",
            metavar="N",
            aliases=("--warmup",),
            help_behavior_hint="to R",
        ),
    ] = None
    adam_epsilon: Annotated[float, Flag(help="AdamW's epsilon in --learning-rate", metavar="E")] = 1e-8
    adamw_rate: Annotated[float | None, optional("AdamW's rate for the output matrix, next to Muon", "R2")] = None

    def run(self) -> "Result":
        """Predict a network, and print the view of the result that the flags choose.

        Raises:
            ValueError: flags exclude each other, or the network is not what they ask for.
        """
        changes, of = given(self.stack), self.description
        steps = self.first_step or self.learning_rate is not None
        logs = [file for files in self.logged for file in files]
        if self.logged and not logs:
            raise ValueError("logged must be followed by a log, or two.")
        also = {
            "batch or like or config": self.batch is not None or of.is_model,
            "first_step or learning_rate": steps,
            "sequences": "sequences" in changes, "two logs": len(logs) > 1,
        }  # fmt: skip
        check_together(self, needs=NEEDS, excludes=EXCLUDES, also=also)
        limits: dict[str, Any] = {"patterns": self.patterns, "max_time": self.max_time, "memory": self.memory}
        of_step = self.batch is not None or (of.is_model and not self.draws)
        listed = self.compare == () and not self.draws
        if (listed or (self.compare and of_step)) and not (self.first_step or self.bound):
            from gradbounds.actions.compare import compare_steps

            result = compare_steps(
                changes, of, self.compare or (), self.batch, self.text, plan=self.dry_run,
                layers=self.layers or self.all, every_layer=self.all, **limits,
            )  # fmt: skip
            if result is not None:
                return result
        elif self.batch is not None or self.learning_rate is not None or logs:
            return self._of_batch(changes, self.batch, logs, limits)
        if self.bound:
            from gradbounds.actions.bound import theorem1

            return theorem1(of.read(changes)[0], latex=self.latex)
        if self.first_step:
            from gradbounds.actions.first_step import first_steps

            stack, notes = of.read(changes)
            stacks = [stack, *(of.compared(changes, each) for each in variants(self.compare or ()))]
            return first_steps(
                stacks, self.optimizer, draws=self.draws, seed=self.seed, notes=notes, plan=self.dry_run, **limits,
            )  # fmt: skip
        from gradbounds.actions.card import model_card

        return model_card(
            changes, of, text=self.text, layers=self.layers, every_layer=self.all, compare=self.compare or (),
            draws=self.draws, seed=self.seed, plan=self.dry_run, **limits,
        )  # fmt: skip

    def _of_batch(
        self, changes: dict[str, Any], batch: int | None, logs: list[Path], limits: dict[str, Any]
    ) -> "Result":
        # Predict step 1 from a batch, which may be the card's, compare it with a log or at a rate, or compare two logs.
        from gradbounds.actions.batch import resolve_batch
        from gradbounds.actions.card import BATCH, at_context, model_card

        if len(logs) > 1:
            from gradbounds.actions.logged_pair import compare_logs, judged_quickly

            batch = batch or BATCH
            stack, notes = self.description.read(changes)
            tokens = stack.tokens if "tokens" in changes else context(notes) or stack.tokens
            judge = partial(judged_quickly, {**changes, "tokens": tokens}, batch, self.description)
            return compare_logs(logs, batch, replace(stack, tokens=tokens), logged_as=self.logged_as, judge=judge)
        if batch is None:
            batch, asked = BATCH, at_context(changes, self.description, limits, self.text)
            asked = replace(asked, of_tokens=f"{asked.of_tokens}, as on the card (--batch S)")
        else:
            asked = resolve_batch(changes, self.description, text=self.text, **limits)
        judged = rate = None
        if logs:
            from gradbounds.actions.logged import predict_logged

            judged = predict_logged(
                asked.given, batch, self.description, logs[0], logged_as=self.logged_as, plan=self.dry_run,
                text=asked.text, of_tokens=asked.of_tokens, is_default=asked.is_default,
                is_quick=asked.is_quick, **limits,
            )  # fmt: skip
        if self.learning_rate is not None:
            from gradbounds.actions.learning_rate import predict_rate

            try:
                rate = predict_rate(
                    asked, batch, self.description, self.learning_rate, self.optimizer, warmup_steps=self.warmup_steps,
                    epsilon=self.adam_epsilon, adamw_rate=self.adamw_rate, plan=self.dry_run,
                    is_logged=judged is not None,
                )  # fmt: skip
            except NoRuleError as error:
                if judged is None:
                    raise
                judged = replace(
                    judged, below=["", f"--learning-rate {self.learning_rate:g} is not predicted: {error}"],
                    values={**judged.values, "no_rule": str(error)},
                )  # fmt: skip
        if judged and rate:
            whole = {
                name: total((judged.values[name], rate.values[name]))
                for name, total in (("seconds", sum), ("bytes", max))  # one runs after the other
                if self.dry_run
            }
            new = "\n".join(line for line in rate.lines if not line or line not in judged.lines)
            return replace(
                judged, below=["", *new.rstrip().split("\n")], tables={**judged.tables, **rate.tables},
                values={**rate.values, **judged.values, **whole},
            )  # fmt: skip
        return judged or rate or model_card(
            changes, self.description, batch=(asked, batch), plan=self.dry_run, every_layer=self.all, compare=(),
            draws=None, seed=self.seed, **limits,
        )  # fmt: skip
