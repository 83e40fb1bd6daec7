"""An engine whose maps stay and learn: the network asks for them in the same order at every step."""

from collections.abc import Mapping

import torch
from torch import Tensor

from simulate.network.allocator import keep_freed_memory
from simulate.network.conditioned import NORMAL_ONLY
from simulate.network.engines import GradientNorms, MapEngine
from simulate.network.random_streams import RandomStreams
from studies.training.drawn import DrawnMap
from studies.training.history import HistoryMap, unknown
from studies.training.optimizers import Optimizer
from theory.stack.initializations import NORMAL, Law

LearningMap = DrawnMap | HistoryMap


class LearningMaps(MapEngine):
    """An engine of maps that are made at the first step, kept, and trained.

    Args:
        streams: the only source of randomness, of so many draws in one batch; its device is the engine's.
        dtype: of tokens.
        drawn: whether matrices are drawn; otherwise only what they do to the rows that meet them.
        passes: how often the network is likely to run, so that there is room for what its matrices do.
    """

    def __init__(self, streams: RandomStreams, dtype: torch.dtype, *, drawn: bool, passes: int = 1) -> None:
        self.streams, self.dtype = streams, dtype
        keep_freed_memory()
        self.gradients, self.scalars = GradientNorms(dtype), []
        self.maps: dict[str, list[LearningMap]] = {}
        self._drawn, self._passes = drawn, passes
        self._met: dict[str, int] = {}
        self._moved: dict[int, Tensor] = {}

    def map(self, name: str, d_in: int, d_out: int, std: float, *, law: Law = NORMAL) -> LearningMap:
        """The next map of a role; a fresh one at the first step.

        Raises:
            ValueError: entries are not to be normal, and matrices are not drawn.
        """
        if law != NORMAL and not self._drawn:
            raise ValueError(NORMAL_ONLY)
        place = self._met[name] = self._met.get(name, -1) + 1
        known = self.maps.setdefault(name, [])
        if place == len(known):
            known.append(self._fresh(d_in, d_out, std, law))
        return known[place]

    def _fresh(self, d_in: int, d_out: int, std: float, law: Law) -> LearningMap:
        if not self._drawn:
            return unknown(self.streams, self.dtype, d_in, d_out, std, self._passes)
        return DrawnMap(self.streams.entries(d_in, d_out, std=std, law=law, dtype=self.dtype))

    def begin(self) -> None:
        """Begin another forward pass."""
        self.gradients, self._met = GradientNorms(self.dtype), {}
        for scalar in self.scalars:
            scalar.gradient = torch.zeros_like(scalar.value)

    def learn(self, optimizer: Optimizer, rates: Mapping[str, float]) -> None:
        """One step of an optimizer, by the gradients of the latest backward pass.

        Args:
            optimizer: of all matrices.
            rates: by role; what has another role stays as it is.
        """
        for role, rate in rates.items():
            for k, scalar in enumerate(self.scalars if role == "scalar" else ()):
                decayed = scalar.gradient + optimizer.weight_decay * scalar.value
                self._moved[k] = optimizer.momentum * self._moved.get(k, 0.0) + decayed
                scalar.value = scalar.value - rate * self._moved[k]
            for learner in self.maps.get(role, []):
                learner.learn(optimizer, rate)
