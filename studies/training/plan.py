"""How `python -m studies training` trains every network of a grid."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from simulate.counts import check_count
from studies.training.cells import TrainingCell, training_cell
from studies.training.optimizers import Optimizer, TrainingOptimizer
from studies.training.schedule import BatchName, Schedule, roles
from theory import NoRuleError, Stack
from theory.first_step.prediction import first_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How every network is trained.

    Attributes:
        steps: their number.
        learning_rate: of every matrix.
        in_critical_rates: whether the rate is in units of each network's critical rate in theory.
        mup: whether σ_e is d^(-1/2) and the rate of W_emb, with Adam those of all matrices, is divided by d.
        optimizer: "sgd", "polar" or "adam".
        momentum: of every matrix.
        weight_decay: of every matrix.
        batch: "same" or "fresh".
        engine: "auto", "dense" or "conditioned".
    """

    steps: int
    learning_rate: float
    in_critical_rates: bool = False
    mup: bool = False
    optimizer: TrainingOptimizer = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch: BatchName = "same"
    engine: Literal["auto", "dense", "conditioned"] = "auto"

    @property
    def rates(self) -> str:
        """The learning rates in words."""
        if self.mup:
            return f"μP at rate {self.learning_rate:g}"
        return f"rate {self.learning_rate:g}" + (" of the critical one" if self.in_critical_rates else "")

    def stack(self, given: Stack) -> Stack:
        """The network, in the parametrization.

        Raises:
            ValueError: it is mu-P, and the output scale is given, or the optimizer is neither SGD nor Adam.
        """
        if not self.mup:
            return given
        if given.output_scale != 1.0 or self.optimizer == "polar" or self.in_critical_rates:
            raise ValueError(
                "parametrization must be 'standard' with an output_scale, with polar and with rates in critical ones; "
                "'mup' here is a rule for the rates of sgd and adam, which sets output_scale to d^(-1/2)."
            )
        return replace(given, output_scale=given.width**-0.5)

    def cell(self, given: Stack, **sampled: Any) -> TrainingCell:
        """What is trained, and how.

        Args:
            given: the network, before the parametrization.
            sampled: device, dtype and text, as `training_cell` has them.

        Raises:
            ValueError: an argument is outside its range, or training does not cover the network.
        """
        stack = self.stack(given)
        check_count("steps", self.steps, 1)
        schedule = Schedule.of(
            roles(stack), steps=self.steps, learning_rate=self.rate(stack), factors=None, batch=self.batch,
            optimizer=Optimizer(name=self.optimizer, momentum=self.momentum, weight_decay=self.weight_decay),
        )  # fmt: skip
        return training_cell(stack, schedule, engine=self.engine, **sampled)

    def rate(self, stack: Stack) -> float | Mapping[str, float]:
        """The learning rate, or rates by role.

        Raises:
            ValueError: the rate is in critical ones, and theory has none.
        """
        if self.mup:
            divided = self.learning_rate / stack.width
            hidden = divided if self.optimizer == "adam" else self.learning_rate
            return dict.fromkeys(roles(stack), hidden) | {"Wemb": divided}
        if not self.in_critical_rates:
            return self.learning_rate
        try:
            return self.learning_rate * first_step(stack, self.optimizer).critical_rate
        except NoRuleError as error:
            raise ValueError(f"rate_unit must be 'one' where theory has no critical rate: {error}") from error
