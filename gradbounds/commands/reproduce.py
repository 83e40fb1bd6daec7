"""The studies that have a command, as the dataclass of one flag."""

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any

import tyro

from gradbounds.flags import Group
from gradbounds.studies import commands

_Study: Any = reduce(or_, [Annotated[kind, tyro.conf.subcommand(word)] for word, kind in commands().items()])


@dataclass(frozen=True, kw_only=True)
class Reproduce(Group):
    """Repeat an experiment of the paper on your own texts: its Fig. 3, its Fig. 5, or what it says of warm-up."""

    what: _Study
