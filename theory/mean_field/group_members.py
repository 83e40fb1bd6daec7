"""Groups of tokens in networks with experts, where several tokens of every group are computed separately.

A router sends every token to experts of its own, so that products of two tokens of a group differ from pair to pair,
and gradients with them. So some tokens of every group are computed, each with its own choice of experts. Their pairs
have the law of all pairs. Attention needs the common part of the tokens of a group instead: the mean of their products,
and the variance of these (docs/report.md).
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
"""The largest number of tokens that are computed for each of the two representatives of a group."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MemberLayout(GroupLayout):
    """The operations on kernels if several tokens are computed for each representative of a group.

    Each token represents an equal part of the representative's tokens.

    Attributes:
        groups: the other layout, with r representatives.
        group: index of the representative of each token, (members,).
    """

    groups: GroupLayout
    group: NDArray[np.intp]

    @classmethod
    def of(cls, groups: GroupLayout) -> MemberLayout:
        """Choose the tokens that are computed for each representative of a group of tokens, at most `MEMBERS`."""
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
            group=group, coarse=groups.coarse,
        )  # fmt: skip

    def repeated(self, sequences: int, *, apart: bool = False) -> MemberLayout:
        """Repeat the tokens of one sequence for several sequences that do not attend to each other."""
        every = super(MemberLayout, self).repeated(sequences, apart=apart)
        group = np.add.outer(np.arange(sequences) * len(self.groups.sizes), self.group).ravel()
        given = {part.name: getattr(every, part.name) for part in fields(GroupLayout)}
        return MemberLayout(**given, groups=self.groups.repeated(sequences, apart=apart), group=group)

    @property
    def first(self) -> NDArray[np.intp]:
        """The index of the first token that is computed for each representative of a group, (r,)."""
        return np.searchsorted(self.group, np.arange(len(self.groups.sizes)))

    def pooled(self, kernel: Array) -> Array:
        """Return the mean product of tokens from two groups, over the pairs of tokens that are computed, (..., r, r).

        Two tokens of one representative count as one token of it and one of its twin.

        Args:
            kernel: kernel of the computed tokens, (..., members, members).
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
        """Assign the product of two groups of tokens to every pair of their tokens, (..., members, members)."""
        twins, pairs = self.groups.twins, (..., self.group[:, None], self.group)
        of_two = (kernel[..., twins] + kernel[..., twins, :]) / 2.0 - kernel
        of_two = kernel + _alike(self, len(twins)) * of_two
        return np.where(_alike(self, len(self.group)) > 0.0, kernel[pairs], of_two[pairs])

    def unlike(self, kernel: Array) -> Array:
        """Return the standard deviation of the products x_i·x_j/d over pairs of different tokens of a group, (..., r).

        The function subtracts row and column means: a row's weights change by differences of values, and the part that
        all tokens share cancels. The divisor is the number of pairs, not of degrees of freedom, because the means over
        pairs contain the remaining variance.

        Args:
            kernel: kernel of the computed tokens, (..., members, members).
        """
        members, group, twins = self._members(), self.group, self.groups.twins
        counts = members.sum(0)
        of_rows = kernel @ members / counts
        means = members.T @ of_rows / counts[:, None]
        alone = kernel - of_rows[..., group] - of_rows.mT[..., group, :] + means[..., group[:, None], group]
        squares = members.T @ np.square(alone) @ members
        return np.asarray(np.sqrt(squares[..., np.arange(len(twins)), twins] / (counts * counts[twins])))

    def _members(self) -> Array:
        """Return a matrix that is 1 where a token belongs to a representative, and 0 elsewhere, (members, r)."""
        return np.equal(self.group[:, None], np.arange(len(self.groups.sizes))).astype(float)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AttendingMembers(GroupLayout):
    """The operations on kernels for attention from several tokens of each group to the groups.

    The rows of `seen` are these tokens, (members, r).

    Attributes:
        attending: positions of the computed tokens.
    """

    attending: Array

    @property
    def row_places(self) -> Array:
        """The positions of the tokens that attend to others."""
        return self.attending


@lru_cache(maxsize=8)
def attending_members(tokens: MemberLayout) -> AttendingMembers:
    """Prepare the attention from several tokens of each group to the groups of tokens."""
    given = {part.name: getattr(tokens.groups, part.name) for part in fields(GroupLayout)}
    return AttendingMembers(**given | {"seen": tokens.groups.seen[tokens.group]}, attending=tokens.places)


def _alike(tokens: MemberLayout, count: int) -> Array:
    """Return a matrix that is 1 where two indices are the same token or representative, in one sequence or in two.

    Args:
        tokens: layout of the computed tokens.
        count: number of rows.
    """
    return np.tile(np.eye(count // tokens.sequences), (tokens.sequences, tokens.sequences))


def of_groups(branch: Branch[Any]) -> Branch[Any]:
    """Return a branch that acts on groups of tokens and gives its output to all tokens of each group.

    Args:
        branch: the branch of the groups.
    """

    def of_members(tokens: MemberLayout, kernel: Array) -> tuple[Array, BranchPullback[Array], Recorded]:
        groups = replace(tokens.groups, apart=True) if tokens.apart else tokens.groups
        out, back, recorded = branch(groups, tokens.pooled(kernel))

        def pullback(gradient: Array, overlaps: Overlaps[Array]) -> tuple[Array, SquaredNorms]:
            below, energies = back(tokens.pooled(gradient), overlaps)
            return tokens.spread(below), energies

        return tokens.spread(out), pullback, recorded

    return cast(Branch[Any], of_members)  # of this layout alone
