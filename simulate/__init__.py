"""What random networks do: independent draws of a Stack, their quantities, and the folder they land in."""

from simulate.cell import Cell
from simulate.execution import Execution
from simulate.jacobian import JacobianNorms, jacobian_norms
from simulate.probe import Probed, probe
from simulate.sample import Samples, sample
from simulate.store import Run
from simulate.sweep import sweep
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
