"""`gradbounds predict`: its flags."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from gradbounds.described_network import variants
from gradbounds.flags import LOGGED_AS, Flag, ModelFlags, check_together, given, network, optional
from theory import Stack
from theory.configurations import context
from theory.stack.optimizers import OPTIMIZERS, Optimizer

if TYPE_CHECKING:
    from gradbounds.result import Result

# One that is not given is None: a published model keeps its own there.
Changes = network(Stack(), several=("tokens",))

_NEEDS = {
    "latex": "bound", "logged_as": "logged", "logged": "batch", "text": "batch", "learning_rate": "batch",
    "optimizer": "first_step or learning_rate", "warmup_steps": "learning_rate",
}  # fmt: skip
_EXCLUDES: dict[str, tuple[tuple[str, ...], str]] = {
    "dry_run": (("bound", "logged"), ", which take seconds."),
    "bound": (("batch", "first_step", "draws", "compare", "patterns", "all"), "; it is about theory of one network."),
    "batch": (("compare", "draws", "first_step", "sequences", "several tokens"), "; it is about one network's log."),
    "learning_rate": (("logged", "patterns", "all", "dry_run", "max_time", "memory"), "; it is about step 1 alone."),
    "several tokens": (("compare", "draws", "bound", "first_step", "all"), "; these take one number of tokens."),
    "two logs": (("text", "patterns", "all", "max_time", "memory"), "; they are compared without theory."),
}
"""Which flag goes with which other alone, and which ones do not go together."""


@dataclass(frozen=True, kw_only=True)
class Predict(ModelFlags):
    """Print what large-width theory has for one network: every matrix's gradient in every layer, beside samples.

    The network is that of the flags, of a model's config.json, or of a published model; of the latter two, flags that
    are given change fields. With --bound Theorem 1 is printed instead, and with --first-step the critical rate of the
    first step of training: where the loss, to second order, is back at its start. Adam is its first step as eps goes
    to 0; muon is torch.optim.Muon, Newton-Schulz steps included, and polar the exact polar factor in their place.
    """

    stack: Annotated[Changes, Flag(name="", help="")] = field(default_factory=Changes)  # type: ignore[valid-type]
    compare: Annotated[
        tuple[str, ...],
        optional(
            "predict the network with these fields changed beside it; + or a field given again begins another network",
            "FIELD=VALUE [...]",
            "none",
        ),
    ] = ()
    draws: Annotated[
        int | None, optional("networks to sample beside theory", "N", default="none; up to 16 where theory has no rule")
    ] = None
    seed: Annotated[int, Flag(help="root seed of the samples")] = 0
    patterns: Annotated[
        int | None,
        optional("attention patterns that theory samples, where it does", "N", default="what takes some seconds"),
    ] = None
    max_time: Annotated[
        str | None,
        optional(
            "time a prediction may take; what takes longer here, by a least batch, is sampled or an error",
            "90s|10m|2h",
            default="a minute by an estimate that is the same everywhere",
        ),
    ] = None
    memory: Annotated[
        str | None, optional("memory a prediction may take, by an estimate", "500MB|4GB", default="4GB")
    ] = None
    dry_run: Annotated[
        bool, Flag(help="say what theory would take, by one least batch of a second, and which way it would go")
    ] = False
    all: Annotated[
        bool, Flag(help="every layer, not only 1, 2, 4, ...; with --first-step: how rates grow with every size")
    ] = False
    out: Annotated[
        Path | None, optional("folder for the table and the figure", "FOLDER", default="none are written")
    ] = None
    bound: Annotated[bool, Flag(help="Theorem 1's bound, the prediction, and their ratio")] = False
    latex: Annotated[bool, Flag(help="with --bound: the bound as LaTeX")] = False
    first_step: Annotated[bool, Flag(help="rates of the first step of training, of the networks of --compare too")] = (
        False
    )
    batch: Annotated[
        int | None,
        optional(
            "loss and gradient norm of a batch of so many sequences, of a model as long as its context: step 1 of a "
            "training log",
            "S",
            default="none",
        ),
    ] = None
    text: Annotated[
        str | None,
        optional(
            "with --batch: the text: a measured kind, Zipf's law, counts, a law in JSON, or a file of token ids",
            "english|code|mock_digits|zipf:A|counts:FILE|law:FILE|FILE|lighthouse|distinct",
            default="english for a model with at least 32,000 tokens, zipf:1 for a smaller one, else distinct",
        ),
    ] = None
    logged: Annotated[
        tuple[tuple[Path, ...], ...],
        tyro.conf.UseAppendAction,
        optional(
            "training log or logger's export whose step 1 is compared with theory, or two logs of one configuration "
            "to compare; requires --batch",
            "FILE [FILE]",
            default="none",
        ),
    ] = ()
    logged_as: Annotated[tuple[str, ...], LOGGED_AS] = ()
    learning_rate: Annotated[
        float | None,
        optional("with --batch: what step 1 does to the loss at this rate", "R", default="none"),
    ] = None
    warmup_steps: Annotated[
        int | None,
        optional("with --learning-rate: steps of a linear warm-up to it, whose first is step 1", "N", default="none"),
    ] = None
    optimizer: Annotated[
        tuple[Optimizer, ...],
        Flag(
            help="with --first-step or --learning-rate: the optimizers that step",
            metavar=f"{'|'.join(OPTIMIZERS)} [...]",
        ),
    ] = ("sgd", "adam")

    def run(self) -> "Result":
        """What theory has.

        Raises:
            ValueError: flags exclude each other, or the network is not what they ask for.
        """
        changes, of = given(self.stack), self.description
        several = isinstance(changes.get("tokens"), tuple)
        if several and not changes["tokens"]:
            raise ValueError("tokens must have a value, or several.")
        steps = self.first_step or self.learning_rate is not None
        logs = [file for files in self.logged for file in files]
        if self.logged and not logs:
            raise ValueError("logged must be followed by a log, or two.")
        also = {
            "first_step or learning_rate": steps, "several tokens": several, "sequences": "sequences" in changes,
            "two logs": len(logs) > 1,
        }  # fmt: skip
        check_together(self, needs=_NEEDS, excludes=_EXCLUDES, also=also)
        limits: dict[str, Any] = {"patterns": self.patterns, "max_time": self.max_time, "memory": self.memory}
        if self.batch is not None:
            return self._of_batch(changes, self.batch, logs, limits)
        if self.dry_run and not self.first_step:
            from gradbounds.actions.predict import predict_plan

            return predict_plan(changes, of, compare=self.compare, draws=self.draws, **limits)
        if several:
            from gradbounds.actions.lengths import predict_lengths

            return predict_lengths(changes, changes["tokens"], of, **limits)
        if self.bound:
            from gradbounds.actions.bound import theorem1

            return theorem1(of.read(changes)[0], latex=self.latex)
        if self.first_step:
            from gradbounds.actions.first_step import first_steps

            stack, notes = of.read(changes)
            stacks = [stack, *(of.compared(changes, each) for each in variants(self.compare))]
            return first_steps(
                stacks, self.optimizer, draws=self.draws, seed=self.seed, notes=notes, every_power=self.all,
                plan=self.dry_run, **limits,
            )  # fmt: skip
        from gradbounds.actions.predict import predict_stack

        return predict_stack(
            changes, of, compare=self.compare, draws=self.draws, seed=self.seed, every_layer=self.all, **limits
        )  # fmt: skip

    def _of_batch(self, changes: dict[str, Any], batch: int, logs: list[Path], limits: dict[str, Any]) -> "Result":
        """Predict step 1 from a batch, compare it with a log, or compare two logs."""
        from gradbounds.actions.batch import predict_batch, resolve_batch

        if len(logs) > 1:
            from gradbounds.actions.logged_pair import compare_logs

            stack, notes = self.description.read(changes)
            tokens = stack.tokens if "tokens" in changes else context(notes) or stack.tokens
            return compare_logs(logs, batch, tokens, logged_as=self.logged_as)
        asked = resolve_batch(changes, self.description, text=self.text, **limits)
        if self.learning_rate is not None:
            from gradbounds.actions.learning_rate import predict_rate

            return predict_rate(
                asked, batch, self.description, self.learning_rate, self.optimizer, warmup_steps=self.warmup_steps
            )
        if not logs:
            limits |= {"plan": self.dry_run, "every_layer": self.all}
            return predict_batch(asked, batch, self.description, **limits)
        from gradbounds.actions.logged import predict_logged

        return predict_logged(
            asked.given, batch, self.description, logs[0], logged_as=self.logged_as,
            text=asked.text, of_tokens=asked.of_tokens, is_default=asked.is_default, **limits,
        )  # fmt: skip
