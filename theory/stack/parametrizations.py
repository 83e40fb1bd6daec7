"""Names of parametrizations: how initial scales, multipliers and rates are to go with the width, or the depth."""

from typing import Literal, get_args

Parametrization = Literal["sp", "mup", "mean-field", "completep"]
PARAMETRIZATIONS: tuple[Parametrization, ...] = get_args(Parametrization)
"""Standard, maximal-update, mean-field, and CompleteP, which is mu-P in the width and has a rule for the depth."""
