"""The imports of the process from which worker processes are forked, safe from other modules with the same names.

Python looks first in the folder where the process is started, and would import somebody's `simulate.py` from there.
"""

from gradbounds.shadowing import load_own

load_own("theory", "simulate")

import simulate.runs.execution  # noqa: E402, F401
