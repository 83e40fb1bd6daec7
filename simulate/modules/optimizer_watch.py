"""Check a user's optimizer: which parameters it holds, and how its steps change these parameters."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from simulate.modules.step_optimizers import Stepper
from simulate.modules.tensor_sizes import damping, numbers_of, root_mean_squares

_NAMES = 3


class OptimizerWatch:
    """A wrapper of a user's optimizer that takes its steps and checks each of them.

    Args:
        stepper: the optimizer or optimizers, with their schedule.
        parameters: the module's parameters, by name.
        first: the parameters' values before the first step.

    Attributes:
        taken: number of steps that were taken and checked.
        rates: the learning rate of every weight in the last step.
        alarms: the faults, each with its kind, the names of its weights, and a text.
        notes: remarks, one line each.
        rows: step (0 is the first), weight, quantity and value. Quantities are rate (learning rate of the parameter
            group), gradient (root mean square entry) and, for the first step only, damping (for Adam and similar
            optimizers: the mean of eps/(sqrt(v) + eps)).
        steppers: the class of every weight's optimizer, by weight.
    """

    def __init__(
        self, stepper: Stepper, parameters: Sequence[tuple[str, nn.Parameter]], first: Mapping[str, Tensor]
    ) -> None:
        self._stepper, self._parameters, self._first = stepper, parameters, first
        self._names_of = {id(parameter): name for name, parameter in parameters}
        self._waiting = {name for name, parameter in parameters if parameter.requires_grad}
        self._damped: set[str] = set()
        self._asked = False
        self.taken = 0
        self.rates: dict[str, float] = {}
        self.alarms: list[tuple[str, tuple[str, ...], str]] = []
        self.notes: list[str] = []
        self.rows: list[tuple[int, str, str, float]] = []
        self.steppers: dict[str, str] = {}
        self._hold()

    def step(self) -> None:
        """Take one step of the user's optimizer, and record the learning rates and the gradients.

        Raises:
            ProbeError: the optimizer fails.
        """
        if not self.taken:
            names = [name for name, weight in self._parameters if weight.grad is not None and name not in self.steppers]
            self._warn((name, "it has a gradient, but the optimizer does not hold it") for name in names)
        self._before()
        self._stepper.step()
        self._after()

    def look(self, moved: Collection[str]) -> None:
        """Check the last optimizer step: weights that did not change, and weights that moved in the wrong direction.

        A first step in the wrong direction goes up the gradient.

        Args:
            moved: names of the weights that differ from their values before the first step.
        """
        self._waiting -= set(moved)
        self._still()
        if moved and not self._asked:
            self._asked = True
            self._uphill()
        self.taken += 1

    def _held(self) -> list[tuple[str | None, nn.Parameter, Optimizer, dict[str, Any]]]:
        """Return the parameters that the optimizer holds, with name, optimizer and group; strangers have no name."""
        return [
            (self._names_of.get(id(parameter)), parameter, optimizer, group)
            for optimizer, group in self._stepper.groups()
            for parameter in group["params"]
        ]

    def _hold(self) -> None:
        """Check which parameters the optimizer holds, and note weight decay on vectors."""
        strangers, decayed, twice = 0, list[str](), list[str]()
        for name, parameter, optimizer, group in self._held():
            if name is None:
                strangers += 1
                continue
            if name in self.steppers:
                twice.append(name)
            self.steppers[name] = type(optimizer).__name__
            if parameter.ndim <= 1 and group.get("weight_decay", 0):
                decayed.append(name)
        if strangers:
            what = f"the optimizer holds {strangers} tensors that are not parameters of the module"
            self.alarms.append(("optimizer", (), f"{what}: was it made for another module?"))
        faults = {
            "weight decay applies to gains and biases": decayed,
            "several optimizers hold and update the same parameters": twice,
        }
        self.notes += [f"{what}: {shortened(names)}" for what, names in faults.items() if names]

    def _warn(self, wrong: Iterable[tuple[str, str]]) -> None:
        """Add one alarm for all weights with the same fault."""
        alike: dict[str, list[str]] = {}
        for name, what in wrong:
            alike.setdefault(what, []).append(name)
        self.alarms += [("optimizer", tuple(names), what) for what, names in alike.items()]

    def _before(self) -> None:
        self.rates = {
            name: float(group.get("lr", float("nan"))) for name, _, _, group in self._held() if name is not None
        }
        still = [name for name, rate in self.rates.items() if rate == 0]
        if still and len(still) == len(self.rates):
            self.notes.append(f"the learning rate of step {self.taken + 1} is 0, as in a schedule with warmup")
        elif still and not self.taken:
            self.notes.append(f"the learning rate of step 1 is 0 for some weights: {shortened(still)}")
        self.rows += [(self.taken, name, "rate", rate) for name, rate in self.rates.items()]
        gradients = {name: parameter.grad for name, parameter in self._parameters if parameter.grad is not None}
        sizes = root_mean_squares(list(gradients.values()))
        self.rows += [(self.taken, name, "gradient", size) for name, size in zip(gradients, sizes, strict=True)]

    def _after(self) -> None:
        """Record by how much epsilon reduced the step, for optimizers that divide by the root of a mean square."""
        held_back: dict[str, tuple[Tensor, float]] = {}
        for name, parameter, optimizer, group in self._held():
            state = optimizer.state.get(parameter, {})
            # It is the first step's that counts, and of several optimizers the first one's.
            if name is None or name in self._damped or name in held_back or "betas" not in group:
                continue
            if isinstance(state.get("exp_avg_sq"), Tensor):
                epsilon = group["eps"] * (1 - group["betas"][1] ** float(state.get("step", 1))) ** 0.5
                held_back[name] = state["exp_avg_sq"].detach(), epsilon
        shares = damping([square for square, _ in held_back.values()], [epsilon for _, epsilon in held_back.values()])
        for name, share in zip(held_back, shares, strict=True):
            if share is not None:
                self._damped.add(name)
                self.rows.append((self.taken, name, "damping", share))

    def _still(self) -> None:
        """Warn of weights that a step should have changed and that no step has changed."""
        wrong = []
        for name, parameter in self._parameters:
            if name not in self._waiting or not self.rates.get(name, 0.0) > 0:
                continue
            if parameter.grad is not None and bool(parameter.grad.any()):
                what = f"it has a gradient and a learning rate, but does not change in step {self.taken + 1}"
                wrong.append((name, f"{what} ({str(parameter.dtype).removeprefix('torch.')})"))
        self._waiting -= {name for name, _ in wrong}
        self._warn(wrong)

    def _uphill(self) -> None:
        """Warn of parameters whose first step, without weight decay, goes along their gradient, not against it."""
        along, sums = list[tuple[str, str, bool]](), list[Tensor]()
        for name, parameter, optimizer, group in self._held():
            if name is None or parameter.grad is None or group.get("weight_decay", 0):
                continue
            moved = parameter.detach() - self._first[name]
            along.append((name, type(optimizer).__name__, bool(group.get("maximize"))))
            sums.append((moved * parameter.grad).sum())
        whys = {True: "maximize is set", False: "is a sign wrong in the optimizer?"}
        self._warn(
            (name, f"{by} moves it along its gradient, which raises the loss: {whys[maximized]}")
            for (name, by, maximized), total in zip(along, numbers_of(sums), strict=True) if total > 0
        )  # fmt: skip


def shortened(names: Sequence[str]) -> str:
    """Return the first few of many names as a text, with the number of names that are left out."""
    return ", ".join(names[:_NAMES]) + (f", ... ({len(names)} in all)" if len(names) > _NAMES else "")
