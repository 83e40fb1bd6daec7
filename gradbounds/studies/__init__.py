"""Studies: experiments that the rest of the program serves, a package each, and what some of them share beside them.

A package here that has a `COMMAND`, the dataclass of its flags with a method `run`, is a command of `gradbounds
reproduce`, under its own name. The others are run by `make evidence`.
"""

import pkgutil
from importlib import import_module
from typing import Any


def commands() -> dict[str, Any]:
    """The `COMMAND` of each study that has one, by the word that is typed; none loads torch."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if module.ispkg]
    studies = {name.replace("_", "-"): import_module(f"{__name__}.{name}") for name in names}
    return {word: study.COMMAND for word, study in studies.items() if hasattr(study, "COMMAND")}
