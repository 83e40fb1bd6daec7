"""Several tokens of every group, where what a token is by itself matters to every pair that it is in.

A router sends every token to experts of its own, so that products of two tokens of a group differ from pair to pair,
and gradients with them. So some tokens of every group are followed, each with its own choice. Their pairs have the law
of all pairs. Attention asks for what the tokens of a group have in common instead: for the mean of their products, and
for how these vary (docs/report.md).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from theory.mean_field.kernels import Array
from theory.mean_field.sublayers import Branch, BranchPullback, Overlaps, Recorded, SquaredNorms
from theory.mean_field.token_groups import GroupLayout

MEMBERS = 4
"""Tokens that are followed for each of the two representatives of a group, at most."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MemberLayout(GroupLayout):
    """Kernels of several tokens for each representative of another layout, which stand for equal parts of its own.

    Attributes:
        groups: the other layout, of r representatives.
        group: the representative that each token is of, (members,).
    """

    groups: GroupLayout
    group: NDArray[np.intp]

    @classmethod
    def of(cls, groups: GroupLayout) -> MemberLayout:
        """The layout of one sequence: no more tokens of a representative than it stands for."""
        copies = np.clip(groups.sizes.astype(int), 1, MEMBERS)
        group = np.repeat(np.arange(len(copies)), copies)
        rows, sizes, starts = np.arange(len(group)), (groups.sizes / copies)[group], np.cumsum(copies) - copies
        twins = starts[groups.twins[group]] + rows - starts[group]
        pairs, several = np.outer(sizes, sizes), twins != rows
        pairs[rows, rows] = sizes
        pairs[rows[several], twins[several]] = (sizes * (2.0 * sizes - 1.0))[several]
        seen = groups.seen[np.ix_(group, group)] / copies[group]
        return cls(
            groups.count, places=groups.places[group], sizes=sizes, pairs=pairs, twins=twins, seen=seen, groups=groups,
            group=group,
        )  # fmt: skip

    def repeated(self, sequences: int, *, apart: bool = False) -> MemberLayout:
        """Return the layout of several sequences: repeat the members and their groups."""
        every = super(MemberLayout, self).repeated(sequences, apart=apart)
        group = np.add.outer(np.arange(sequences) * len(self.groups.sizes), self.group).ravel()
        given = {part.name: getattr(every, part.name) for part in fields(GroupLayout)}
        return MemberLayout(**given, groups=self.groups.repeated(sequences, apart=apart), group=group)

    @property
    def first(self) -> NDArray[np.intp]:
        """The first token of every representative, (r,)."""
        return np.searchsorted(self.group, np.arange(len(self.groups.sizes)))

    def pooled(self, kernel: Array) -> Array:
        """The kernel of the groups, (..., r, r): means over pairs of tokens.

        Two tokens of one representative are as one of its own and one of its twin's.
        """
        twins, members = self.groups.twins, self._members()
        same, places = _alike(self, len(self.group)), _alike(self, len(twins))

        def summed(entries: Array) -> Array:
            sums = members.T @ (entries * (1.0 - same)) @ members
            within = sums * places
            within = (within[..., twins] + within[..., twins, :]) / 2.0 - within
            return np.asarray(sums + within + members.T @ (entries * same) @ members)

        return summed(kernel * self.pairs) / summed(self.pairs)

    def spread(self, kernel: Array) -> Array:
        """The kernel of tokens that are all as a kernel of the groups has them."""
        twins, pairs = self.groups.twins, (..., self.group[:, None], self.group)
        of_two = (kernel[..., twins] + kernel[..., twins, :]) / 2.0 - kernel
        of_two = kernel + _alike(self, len(twins)) * of_two
        return np.where(_alike(self, len(self.group)) > 0.0, kernel[pairs], of_two[pairs])

    def unlike(self, kernel: Array) -> Array:
        """The standard deviation over pairs of different tokens of a group, beside their rows' and columns', (..., r).

        A row's weights change by differences of values, so that what a token has with all others does not enter. Over
        the number of pairs, not of degrees of freedom: what is left is in the means over pairs.
        """
        members, group, twins = self._members(), self.group, self.groups.twins
        counts = members.sum(0)
        of_rows = kernel @ members / counts
        means = members.T @ of_rows / counts[:, None]
        alone = kernel - of_rows[..., group] - of_rows.mT[..., group, :] + means[..., group[:, None], group]
        squares = members.T @ np.square(alone) @ members
        return np.asarray(np.sqrt(squares[..., np.arange(len(twins)), twins] / (counts * counts[twins])))

    def _members(self) -> Array:
        """Whether a token is of a representative, (members, r)."""
        return np.equal(self.group[:, None], np.arange(len(self.groups.sizes))).astype(float)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AttendingMembers(GroupLayout):
    """The groups, to which followed tokens attend: rows of `seen` are these tokens, (members, r)."""

    attending: Array

    @property
    def row_places(self) -> Array:
        """Places of the tokens that attend."""
        return self.attending


@lru_cache(maxsize=8)
def attending_members(tokens: MemberLayout) -> AttendingMembers:
    """The layout of followed tokens that attend to groups."""
    given = {part.name: getattr(tokens.groups, part.name) for part in fields(GroupLayout)}
    return AttendingMembers(**given | {"seen": tokens.groups.seen[tokens.group]}, attending=tokens.places)


def _alike(tokens: MemberLayout, count: int) -> Array:
    """1 for a token, or a representative, and itself or the same one of another sequence, of so many."""
    return np.tile(np.eye(count // tokens.sequences), (tokens.sequences, tokens.sequences))


def of_groups(branch: Branch[Any]) -> Branch[Any]:
    """A branch that is given what tokens of a group have in common, and makes the same of each of them."""

    def of_members(tokens: MemberLayout, kernel: Array) -> tuple[Array, BranchPullback[Array], Recorded]:
        groups = replace(tokens.groups, apart=True) if tokens.apart else tokens.groups
        out, back, recorded = branch(groups, tokens.pooled(kernel))

        def pullback(gradient: Array, overlaps: Overlaps[Array]) -> tuple[Array, SquaredNorms]:
            below, energies = back(tokens.pooled(gradient), overlaps)
            return tokens.spread(below), energies

        return tokens.spread(out), pullback, recorded

    return cast(Branch[Any], of_members)  # of this layout alone
