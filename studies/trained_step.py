"""The three rates of a step that an optimizer took in training, on the step's own mini-batch and dropout."""

import math

from simulate.curvature.module_step import WHOLE, ParameterLine, step_rows
from studies.trainer import Step

STATISTICS = ("gain", "critical rate", "hessian rate", "break-even rate")
"""What `step_rates` gives."""


def step_rates(step: Step) -> dict[str, float]:
    """Of a step θ - rate u: the gain g·u, and the rates at which the loss would be back at its start.

    The critical rate 2 g·u/u'Gu is of the quadratic model with the Gauss-Newton matrix, the Hessian rate 2 g·u/u'Hu of
    that with the Hessian, and the break-even rate is where the loss is so in fact. NaN where there is none: u does not
    lead down (g·u <= 0), a curvature is not positive, or a number is not finite.
    """
    path = ParameterLine(step.made, step.seed - 1)  # a path draws with the seed behind its own
    row = step_rows(path, step.direction, {WHOLE: list(step.direction)})[0]
    gain = row["gain"]
    rates = {"critical rate": row["curvature"], "hessian rate": row["hessian"]}
    return {
        "gain": gain,
        **{name: 2 * gain / bent if gain > 0 and bent > 0 else math.nan for name, bent in rates.items()},
        "break-even rate": row["break_even_rate"],
    }
