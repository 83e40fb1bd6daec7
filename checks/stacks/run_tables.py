"""The tables of a run from which its figures are drawn, by name."""

from collections.abc import Callable, Sequence

import pandas as pd

from checks.series import local_exponent_table, longest_series
from checks.stacks.concentration import excess_table
from checks.stacks.profiles import profile_cells
from checks.stacks.proof_chain import chain_table
from checks.stacks.theorem1 import last_layer_table
from checks.theory_and_samples import comparison
from simulate import Samples


def _series(cells: Sequence[Samples], against: str) -> pd.DataFrame:
    return longest_series(last_layer_table(cells), against)


RUN_TABLES: dict[str, Callable[[Sequence[Samples]], pd.DataFrame]] = {
    "width_series": lambda cells: _series(cells, "width"),
    "depth_series": lambda cells: _series(cells, "depth"),
    "width_exponents": lambda cells: local_exponent_table(_series(cells, "width"), "width"),
    "depth_exponents": lambda cells: local_exponent_table(_series(cells, "depth"), "depth"),
    "layer_profiles": lambda cells: comparison(profile_cells(cells)),
    "excess": excess_table,
    "proof_chain": chain_table,
}
"""Functions that make a run's tables from its samples, by name, in the order of the figures.

Theory must have a rule for the samples. A `ValueError` says which samples are missing.
"""
