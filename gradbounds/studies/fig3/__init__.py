"""Fig. 3 of the paper: translation models at initialization on two line-aligned texts."""

from gradbounds.studies.fig3.command import Figure3 as COMMAND

__all__ = ["COMMAND"]
