"""Simulation of random networks: independent draws of a Stack, their quantities, and the folder that stores them.

A name is loaded when it is first asked for: a run folder is read without torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulate.modules.probe import Probed, probe
    from simulate.network.layer_norm_jacobian import JacobianNorms, jacobian_norms
    from simulate.runs.cell import Cell
    from simulate.runs.execution import Execution
    from simulate.runs.sample import Samples, sample
    from simulate.runs.store import Run
    from simulate.runs.sweep import sweep
    from simulate.text import TextWindows, read_windows
else:
    _HOMES = {
        "Cell": "simulate.runs.cell",
        "Execution": "simulate.runs.execution",
        "JacobianNorms": "simulate.network.layer_norm_jacobian",
        "Probed": "simulate.modules.probe",
        "Run": "simulate.runs.store",
        "Samples": "simulate.runs.sample",
        "TextWindows": "simulate.text",
        "jacobian_norms": "simulate.network.layer_norm_jacobian",
        "probe": "simulate.modules.probe",
        "read_windows": "simulate.text",
        "sample": "simulate.runs.sample",
        "sweep": "simulate.runs.sweep",
    }

    def __getattr__(name):
        """A public name, loaded now and kept.

        Raises:
            AttributeError: there is none.
        """
        if name not in _HOMES:
            raise AttributeError(f"module 'simulate' has no attribute {name!r}")
        from importlib import import_module

        globals()[name] = value = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})


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
