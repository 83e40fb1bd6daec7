"""What random networks do: independent draws of a Stack, their quantities, and the folder they land in."""

from simulate.modules.probe import Probed, probe
from simulate.network.layer_norm_jacobian import JacobianNorms, jacobian_norms
from simulate.runs.cell import Cell
from simulate.runs.execution import Execution
from simulate.runs.sample import Samples, sample
from simulate.runs.store import Run
from simulate.runs.sweep import sweep
from simulate.text import TextWindows, read_windows

__all__ = [
    "Cell",
    "Execution",
    "JacobianNorms",
    "Probed",
    "Run",
    "Samples",
    "TextWindows",
    "jacobian_norms",
    "probe",
    "read_windows",
    "sample",
    "sweep",
]
