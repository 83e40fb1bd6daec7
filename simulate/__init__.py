"""Sample random networks: independent networks of one description, their gradients, and folders that store them.

Each public name is imported at its first use, so a run folder can be read without importing torch.
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
        """Import a public name of `simulate` at its first use, keep it, and return it.

        Raises:
            AttributeError: `simulate` has no public name like this.
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
