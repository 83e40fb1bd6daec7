"""A probed module beside the Stack that it is to be: its matrices first, then what they make of stream and gradients.

The deviation of a matrix is known from one draw to a part 1/sqrt(2 d m) of it, and at fault itself; energies and
gradients scatter more, and follow from it. So where matrices differ nothing else is judged.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from checks.models.alarm import WHOLE_MODEL, Alarm, Finding, escaped, merged
from checks.models.streams import residual_of_normed
from checks.statistics import CHANCE
from theory import Stack
from theory.stack.initializations import INITIALIZATIONS, Law
from theory.stack.stack import BY_LAYER
from theory.stack.weights import gain, weight_shapes

WEIGHT_RATE = 1e-4
"""How often a healthy module of a width and depth has a matrix that differs, at most, over all its matrices."""
# What differs by less is the same for practical purposes: of deviations, and of energies and squared gradients of
# theory, which is not exact at finite width.
_SAME = 0.02
_FAR_IN_ALL, _FAR_IN_ONE = 2.0, 4.0
_WIDE = 8
_ENDS, _QUERIES = {"WO", "XO", "W2"}, {"WQ", "WK", "XQ", "XK"}
_SHARDS = (2, 4, 8, 16, 32, 64)
# The deviation of a standard normal number between -2 and 2.
_CUT = Law(cut=2.0).variance ** 0.5

Places = tuple[tuple[int, int], str, Finding]


class _Matrix(NamedTuple):
    """A parameter of a list's layers beside the matrices of a Stack that it is.

    Attributes:
        name: of it.
        roles: of these matrices.
        layers: in which it is.
        ratios: its deviation over the Stack's, in every layer.
        low: what this is at least by chance; a number a layer, likewise high.
        high: at most.
    """

    name: str
    roles: tuple[str, ...]
    layers: NDArray[np.int64]
    ratios: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def off(self, from_ratios: NDArray[np.float64] | float = 1.0) -> NDArray[np.bool_]:
        """In which layers its deviation is beyond chance another one than so many times the Stack's."""
        relative = self.ratios / from_ratios
        return ~((relative >= np.minimum(self.low, 1 - _SAME)) & (relative <= np.maximum(self.high, 1 + _SAME)))


def against_initialization(
    frame: pd.DataFrame, table: pd.DataFrame, stack: Callable[[int, int], Stack], roles: Mapping[str, tuple[str, ...]]
) -> list[Alarm]:
    """Where a module is not the Stack that it is to be: its matrices, or else its stream, its energies and gradients.

    A matrix differs by 2% at least and by more than chance allows at `WEIGHT_RATE`, of squares of normal numbers. An
    energy or a squared gradient differs by four standard errors, and by a factor of four in a layer or of two in all of
    them to one side, of networks with eight times as many coordinates as layers; the layer that is furthest off is
    named.

    Args:
        frame: as `simulate.Probed` has it.
        table: of `layer_tables.against_theory`, whose Stack has the factory's inputs, loss and initialization.
        stack: of a width and a depth.
        roles: what the parameters of a layer are called in the Stack.
    """
    findings: list[Places] = []
    for (width, depth, part), rows in frame[frame["layer"] > 0].groupby(["width", "depth", "part"], sort=False):
        network = stack(int(width), int(depth))
        here = list(_matrices_differ(rows, network, roles))
        layers = sorted(rows["layer"].unique())
        if not here and not network.composition.stream_norm and residual_of_normed(rows, layers):
            what = "residual connections hold the normed stream, and the Stack's the stream itself"
            here = [Finding(WHOLE_MODEL, "theory", what)]
        if not here:
            chosen = (table["width"] == width) & (table["depth"] == depth) & (table["part"] == part)
            here = list(_numbers_differ(table[chosen & (width >= _WIDE * depth)]))
        findings += [((int(width), int(depth)), str(part), finding) for finding in here]
    return merged(findings)


def _matrices_differ(rows: pd.DataFrame, network: Stack, roles: Mapping[str, tuple[str, ...]]) -> Iterator[Finding]:
    """What is wrong with matrices, by its cause where that is known: one finding a cause."""
    matrices, findings = _compared(rows, network, roles)
    yield from findings
    left = [matrix for matrix in matrices if matrix.off().any()]
    explained: dict[str, list[_Matrix]] = {}
    causes = _causes(network)
    if left and _share_a_factor(left) and all(any(m.off(of(m)).any() for m in left) for of in causes.values()):
        # What all have is one fault, also where it is that of a cause in some of them.
        causes = {}
    for words, of_matrix in causes.items():
        for matrix in [m for m in left if not m.off(of_matrix(m)).any()]:
            explained.setdefault(words, []).append(matrix)
            left.remove(matrix)
    if {_MISSING, _ADDED} <= {*explained}:
        missing, added = explained.pop(_MISSING), explained.pop(_ADDED)
        yield from _deviations(f"{_ADDED} {_names(added)} and is missing in {_names(missing)}", [*missing, *added])
    for words, group in explained.items():
        yield from _deviations(f"{words} {_names(group)}", group)
    everywhere = [m for m in left if m.off().all() and len({*(m.ratios > 1)}) == 1]
    for larger in (True, False):
        if group := [m for m in everywhere if (m.ratios[0] > 1) == larger]:
            yield from _deviations(_names(group), group)
    for matrix in left:
        for k in np.flatnonzero(matrix.off()) if all(matrix is not m for m in everywhere) else ():
            words = f"{escaped(matrix.name)} has a deviation {{}} times the Stack's"
            yield Finding(int(matrix.layers[k]), "theory", words, (float(matrix.ratios[k]),))


def _deviations(words: str, group: list[_Matrix]) -> Iterator[Finding]:
    """One finding of all layers, which shows the range of ratios."""
    ratios = np.concatenate([matrix.ratios for matrix in group])
    have = "has a deviation" if len(group) == 1 else "have deviations"
    for ratio in (ratios.min(), ratios.max()):
        end = f"{have} {{}} times the Stack's" if words == _names(group) else "(deviation {} times the Stack's)"
        yield Finding(WHOLE_MODEL, "theory", f"{words} {end}", (float(ratio),))


def _share_a_factor(group: list[_Matrix]) -> bool:
    common = float(np.median(np.concatenate([matrix.ratios for matrix in group])))
    return common > 0 and not any(matrix.off(common).any() for matrix in group)


def _names(group: list[_Matrix]) -> str:
    return escaped(", ".join(matrix.name for matrix in group))


_FACTOR = "the factor 1/sqrt(2 L) of matrices that end a branch"
_MISSING = f"{_FACTOR} is missing in"
_ADDED = f"{_FACTOR} stands on"


def _causes(network: Stack) -> dict[str, Callable[[_Matrix], NDArray[np.float64] | float]]:
    """Known causes, and what each makes of the deviation of a matrix over the Stack's: nan where it is none."""
    by_layer = network.depth_scaling in BY_LAYER
    # Of which matrices the Stack's factor is.
    ends = _ENDS | ({"W1"} if network.depth_scaling == "layer_up" else set())

    def factor(matrix: _Matrix) -> NDArray[np.float64]:
        return np.sqrt(2.0 * matrix.layers) if by_layer else np.full(len(matrix.layers), (2.0 * network.depth) ** 0.5)

    def scaled(matrix: _Matrix) -> bool:
        return network.depth_scaling != "none" and {*matrix.roles} <= ends

    causes: dict[str, Callable[[_Matrix], NDArray[np.float64] | float]] = {
        _MISSING: lambda m: factor(m) if scaled(m) else np.nan,
        _ADDED: lambda m: np.nan if scaled(m) else 1 / factor(m),
    }
    if (beta := network.composition.gain(network.depth)) != 1.0:
        factor_name = f"{network.composition.title}'s factor of weights"
        causes[f"{factor_name} is missing in"] = lambda m: _changed(
            network, m, lambda role: 1 if role in _QUERIES else 1 / beta
        )
        causes[f"{factor_name} stands on"] = lambda m: _changed(
            network, m, lambda role: beta if role in _QUERIES else 1
        )
    causes["as normal numbers cut at two deviations:"] = lambda _: _CUT
    for shards in _SHARDS:
        causes[f"as drawn with the fan of one of {shards} shards:"] = partial(_of_shard, network, shards)
    return causes


def _changed(network: Stack, matrix: _Matrix, factor: Callable[[str], float]) -> float:
    """The deviation over the Stack's, of one of whose matrices each has so many times its own."""
    squares = {role: _square(network, role) for role in matrix.roles}
    return float((sum(factor(role) ** 2 * square for role, square in squares.items()) / sum(squares.values())) ** 0.5)


def _square(network: Stack, role: str) -> float:
    """E||W||_F^2 of a matrix."""
    return gain(network, role) * weight_shapes(network)[role][1]


def _of_shard(network: Stack, shards: int, matrix: _Matrix) -> float:
    """The deviation over the whole's of what was drawn for a part: of rows, if it ends a branch, or of columns."""
    if network.init_std is not None or len(matrix.roles) != 1:
        return np.nan
    (role,) = matrix.roles
    d_in, d_out = weight_shapes(network)[role]
    parts = (d_in // shards, d_out) if role in _ENDS else (d_in, d_out // shards)
    if 0 in parts:
        return np.nan
    drawn = INITIALIZATIONS[network.initialization].gain
    return float((drawn(role, *parts) / parts[0] / (drawn(role, d_in, d_out) / d_in)) ** 0.5)


def _compared(
    rows: pd.DataFrame, network: Stack, roles: Mapping[str, tuple[str, ...]]
) -> tuple[list[_Matrix], list[Finding]]:
    """Parameters that the Stack knows, and the findings of those that have other shapes, or are 0 there alone."""
    shapes = weight_shapes(network)
    known = {name: tuple(chosen) for name, chosen in roles.items() if {*chosen} <= {*shapes}}
    norms = rows[(rows["quantity"] == "weight") & rows["parameter"].isin(known)]
    table = (
        norms.assign(value=np.square(norms["value"])).groupby(["parameter", "layer"])["value"].agg(["mean", "count"])
    )
    sizes = rows[rows["quantity"] == "entries"].groupby(["parameter", "layer"])["value"].max()
    tails = WEIGHT_RATE / 2 / max(len(table), 1) * np.array([1, -1]) + np.array([0, 1])
    matrices, findings = [], []
    for name in [name for name in known if name in table.index.get_level_values(0)]:
        squares, entries = table.loc[name], sizes[name].to_numpy()
        theirs = sum(float(np.prod(shapes[role])) for role in known[name])
        expected = np.array([sum(_square(network.of_layer(int(k)), r) for r in known[name]) for k in squares.index])
        if (entries != theirs).any():
            words = f"{escaped(name)} has {{}} entries, and the Stack's {{}}"
            findings.append(Finding(WHOLE_MODEL, "theory", words, (float(entries.max()), theirs), digits=10))
        elif not (expected > 0).all():
            if (squares["mean"] > 0).all():
                findings.append(Finding(WHOLE_MODEL, "theory", f"{escaped(name)} is not 0, and the Stack's is"))
        elif np.isfinite(squares["mean"]).all():
            freedom = entries * squares["count"].to_numpy()
            low, high = (np.sqrt(stats.chi2.ppf(tail, freedom) / freedom) for tail in tails)
            ratios = np.sqrt(squares["mean"].to_numpy() / expected)
            matrices.append(_Matrix(name, known[name], squares.index.to_numpy(), ratios, low, high))
    return matrices, findings


def _numbers_differ(table: pd.DataFrame) -> Iterator[Finding]:
    """The energy and the gradient that are furthest from theory's, each with its layer, and what else is far."""
    rows = table[(table["noise"] > 0) & (table["ratio"] > 0)]
    if rows.empty:
        return
    logs, noise = np.log(rows["ratio"]), rows["noise"] / rows["ratio"]
    # Few seeds tell an error badly: the errors of all layers of a quantity are taken together.
    usual = np.sqrt(np.square(noise).groupby(rows["quantity"]).transform("mean"))
    sizes = logs.abs().where(logs.abs() > CHANCE * np.maximum(noise, usual), 0.0)
    least = (np.sign(logs) * sizes).groupby(rows["quantity"]).agg(["min", "max"])
    alike = (least["min"] > np.log(_FAR_IN_ALL)) | (least["max"] < -np.log(_FAR_IN_ALL))
    rows = rows.assign(size=sizes)[rows["quantity"].map(alike) | (sizes > np.log(_FAR_IN_ONE))]
    words, numbers, named = [], list[float](), set()
    for forward in (True, False):
        far = rows[(rows["quantity"] == "hidden_energy") == forward]
        if not far.empty:
            (row,) = far.nlargest(1, "size").itertuples()
            name = "energy of the stream" if forward else f"|gradient|^2 of {escaped(row.quantity)}"
            words.append(f"{name} is {'{} times' if row.ratio > 1 else '1/{} of'} theory's in layer {{}}")
            numbers += [float(np.exp(row.size)), row.layer]
            named.add(row.quantity)
    if words:
        rest = escaped(", ".join(name for name in rows["quantity"].unique() if name not in named))
        further = [f"gradients of {rest} are far from it too"] if rest else []
        yield Finding(WHOLE_MODEL, "theory", "; ".join([*words, *further]), tuple(numbers))
