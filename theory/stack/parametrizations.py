"""The names of parametrizations: rules for how initial scales, multipliers and learning rates change with size."""

from typing import Literal, get_args

Parametrization = Literal["sp", "mup", "mean-field", "completep"]
PARAMETRIZATIONS: tuple[Parametrization, ...] = get_args(Parametrization)
"""Standard, maximal-update (µP), mean-field, and CompleteP, which is µP in the width with a rule for the depth."""
