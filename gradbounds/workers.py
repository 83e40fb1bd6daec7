"""The imports of the process from which workers are forked, safe from modules with our packages' names.

It looks into the folder where it is started first, and so would take somebody's `simulate.py` there for ours.
"""

from gradbounds.shadowing import load_own

load_own("theory", "simulate")

import simulate.runs.execution  # noqa: E402, F401
