"""The comparison of a module with the network that it should be: first its matrices, then activations and gradients.

One sample determines the standard deviation of a d x m matrix with relative error 1/sqrt(2 d m), and a wrong deviation
is a cause. Activations and gradients vary more and follow from the matrices, so they are judged only if all matrices
agree.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from checks.models.alarm import WHOLE_MODEL, Alarm, Finding, escaped, merged, of_weights
from checks.models.exact_alarms import values
from checks.models.streams import residual_of_normed
from checks.statistics import CHANCE
from simulate.modules.branch_ends import ends_branch
from simulate.modules.probe import ALONE, Probed
from theory import Stack
from theory.configurations import stack_from_config
from theory.configurations.classes import CLASSES
from theory.configurations.family import DEVIATION
from theory.stack.initializations import Law
from theory.stack.stack import BY_LAYER
from theory.stack.weights import copies, gain, weight_shapes

WEIGHT_RATE = 1e-4
"""The false-alarm rate: how often at most a healthy module of one width and depth has a matrix that differs."""
# What differs by less is the same for practical purposes: of deviations, and of energies and squared gradients of
# theory, which is not exact at finite width.
_SAME = 0.02
_FAR_IN_ALL, _FAR_IN_ONE = 2.0, 4.0
_WIDE = 8
_ENDS, _QUERIES = {"WO", "XO", "W2"}, {"WQ", "WK", "XQ", "XK"}
_ALL_ENDS = {*_ENDS, "S2"}
# Matrices that are one parameter: queries, keys, values, a gate and units.
_PACKED = 5
# The response to the scale of its input below which something is a norm.
_IS_NORM = 0.1
# The deviation of a standard normal number between -2 and 2.
_CUT = Law(cut=2.0).variance ** 0.5

Places = tuple[tuple[int, int], str, Finding]


class _Matrix(NamedTuple):
    """A parameter of a list's layers, with the matrices of the Stack to which it corresponds.

    Attributes:
        name: the parameter's name.
        roles: the names of the matrices in the Stack.
        layers: the layers that have the parameter.
        ratios: the parameter's standard deviation divided by the Stack's, one number per layer.
        low: the smallest ratio that chance explains, one number per layer.
        high: the largest such ratio, one number per layer.
    """

    name: str
    roles: tuple[str, ...]
    layers: NDArray[np.int64]
    ratios: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def off(self, from_ratios: NDArray[np.float64] | float = 1.0) -> NDArray[np.bool_]:
        """Return, per layer, whether the ratio of standard deviations differs from `from_ratios` beyond chance."""
        relative = self.ratios / from_ratios
        return ~((relative >= np.minimum(self.low, 1 - _SAME)) & (relative <= np.maximum(self.high, 1 + _SAME)))


def against_initialization(
    frame: pd.DataFrame, table: pd.DataFrame, stack: Callable[[int, int], Stack], roles: Mapping[str, tuple[str, ...]]
) -> list[Alarm]:
    """Report where modules differ from the networks that they should be.

    The matrices are compared first; activations and gradients only if all matrices agree. A matrix differs if its
    standard deviation is off by at least 2% and by more than chance allows at the false-alarm rate `WEIGHT_RATE`, for
    normal entries. A mean squared activation or squared gradient differs if it is off by four standard errors and by a
    factor of four in one layer, or of two in all layers in the same direction. This needs networks whose width is at
    least eight times the depth. The layer with the largest deviation is named.

    Args:
        frame: the measured numbers, as in `simulate.Probed.frame`.
        table: the result of `layer_tables.against_theory` for the same inputs, loss and initialization.
        stack: a function of a width and a depth that returns the Stack.
        roles: the Stack's names of a layer's parameters.
    """
    findings: list[Places] = []
    for (width, depth, part), rows in frame[frame["layer"] > 0].groupby(["width", "depth", "part"], sort=False):
        network = stack(int(width), int(depth))
        here = list(_matrices_differ(rows, network, roles))
        layers = sorted(rows["layer"].unique())
        if not here and not network.composition.stream_norm and residual_of_normed(rows, layers):
            what = (
                "residual connections carry the normalized residual stream; those of the Stack carry the "
                "residual stream itself"
            )
            here = [Finding(WHOLE_MODEL, "theory", what)]
        if not here:
            chosen = (table["width"] == width) & (table["depth"] == depth) & (table["part"] == part)
            here = list(_numbers_differ(table[chosen & (width >= _WIDE * depth)]))
        findings += [((int(width), int(depth)), str(part), finding) for finding in here]
    return merged(findings)


def described_stack(measured: Probed) -> Stack | None:
    """Return the network that a module's own configuration describes; None if no configuration can be read."""
    with suppress(ValueError):
        return stack_from_config(measured.config, tokens=max(measured.words, 2))[0] if measured.config else None
    return None


def against_description(probed: Probed, given: Stack | None, *, trained: bool) -> tuple[list[Alarm], list[str]]:
    """Return alarms and notes about differences between one module and the network that it should be.

    Compared are the number of layers, whether embedding and output matrix are tied, and, unless weights are trained,
    the standard deviations of all matrices and the gains of norms. A parameter is matched with matrices of the network
    that have as many entries; the matrices that end a branch are known by their names. If several fit, the one with the
    nearest standard deviation is used.

    Args:
        probed: the measured module.
        given: the expected network. If None, it is read from the module's own configuration; differences are then only
            notes if the configuration does not name its model family.
        trained: whether the weights are trained.
    """
    network = given or described_stack(probed)
    if network is None:
        return [], []
    frame, words = probed.frame, "the Stack's" if given else "its configuration's"
    findings = list(_of_lists(frame, network, several=given is not None))
    alarms = [] if given else list(_of_both_ends(frame, network, probed.config))
    if not trained:
        parts = [part for part, depth in _depths(frame).items() if depth == network.depth]
        if given or len(_depths(frame)) == 1 or network.source_tokens:
            rows = {part: frame[(frame["part"] == part) & (frame["layer"] > 0)] for part in parts}
            for part, here in rows.items():
                differ = _matrices_differ(here, network, roles_by_size(here, network))
                findings += [(ALONE, part, finding) for finding in differ]
        alarms += [*([] if given else _of_ends(frame, network, probed.config)), *_of_norms(probed)]
    alarms += merged(findings)
    alarms = [replace(alarm, where=(), what=alarm.what.replace("the Stack's", words)) for alarm in alarms]
    if given or "model_type" in probed.config:
        return alarms, []
    return [], [
        f"the module differs from its configuration (read as a nanoGPT model): {alarm.what}" for alarm in alarms
    ]


def _depths(frame: pd.DataFrame) -> dict[str, int]:
    return {str(part): int(depth) for part, depth in frame[frame["layer"] > 0].groupby("part")["layer"].max().items()}


def _of_lists(frame: pd.DataFrame, network: Stack, *, several: bool) -> Iterator[Places]:
    """Compare the number of layers with the Stack's, if the module has a single list of layers."""
    depths = _depths(frame)
    if len(depths) == 1 and not several:
        ((part, depth),) = depths.items()
        if depth != network.depth:
            what = "has {} layers; the Stack's number of layers is {}"
            yield ALONE, part, Finding(WHOLE_MODEL, "structure", what, (depth, network.depth))


def roles_by_size(rows: pd.DataFrame, network: Stack) -> dict[str, tuple[str, ...]]:
    """Match the parameters of a module's layers with the matrices of a network by their numbers of entries."""
    one_each = {role: shape for role, shape in weight_shapes(network).items() if copies(network, role) == 1}
    sizes = {role: int(np.prod(shape)) for role, shape in one_each.items()}
    first = rows.drop_duplicates(["parameter", "quantity"]).pivot_table("value", "parameter", "quantity")
    first = first[first["shortest"].notna()] if "shortest" in first else first.iloc[:0]
    ends_named = any(map(ends_branch, first.index))
    known = {}
    for name, row in first.iterrows():
        end = ends_branch(str(name))
        pool = [role for role in sizes if not ends_named or (role in _ALL_ENDS) == end]
        several = range(1, 2 if end else _PACKED + 1)
        fits = [
            of for count in several for of in combinations(pool, count) if sum(sizes[r] for r in of) == row["entries"]
        ]
        if fits:
            square = float(row["weight"]) ** 2
            known[str(name)] = min(fits, key=lambda of: abs(_log(square) - _log(sum(_square(network, r) for r in of))))
    return known


def _log(value: float) -> float:
    return float(np.log(max(value, 1e-30)))


def _of_ends(frame: pd.DataFrame, network: Stack, config: Mapping[str, Any]) -> Iterator[Alarm]:
    """Compare the standard deviations of embeddings and output matrix with the Stack's; a padding row may be 0."""
    std = next((float(config[name]) for name in DEVIATION if isinstance(config.get(name), float)), None)
    root, vocab = network.width**0.5, network.vocab
    scales = {network.embedding_scale, network.embedding_scale / root, network.output_scale / root}
    for name, rows in _of_words(frame, network):
        entries = vocab * network.width
        if std is not None and np.isfinite(rows["weight"]):
            ratios = [rows["weight"] / entries**0.5 / scale for scale in {std, std * _CUT, *scales} if scale > 0]
            ratio = min(ratios, key=lambda value: abs(_log(value)))
            tail = stats.chi2.ppf(1 - WEIGHT_RATE / 2, entries) / entries
            if not (1 - 1 / vocab) ** 0.5 * min(1 - _SAME, (2 - tail) ** 0.5) <= ratio <= max(1 + _SAME, tail**0.5):
                times = rows["weight"] / entries**0.5 / std
                yield of_weights("theory", [name], f"has {times:.3g} times the Stack's standard deviation")


def _of_words(frame: pd.DataFrame, network: Stack) -> list[tuple[str, pd.Series]]:
    """Return the parameters outside of layers that have one row per token id, with their measured numbers."""
    outside = frame[(frame["layer"] == 0) & (frame["parameter"] != "")]
    table = outside.pivot_table("value", "parameter", "quantity", sort=False)
    table = table.reindex(columns=["weight", "entries", "shared", "embedding"])
    return [(str(name), row) for name, row in table[table["entries"] == network.vocab * network.width].iterrows()]


def _of_both_ends(frame: pd.DataFrame, network: Stack, config: Mapping[str, Any]) -> Iterator[Alarm]:
    """Check whether the output matrix is tied to the embeddings as in the class of the model's configuration."""
    known, asked = CLASSES.get(str(config.get("model_type"))), config.get("tie_word_embeddings")
    tied = network.embeddings == "tied" if known is None or not isinstance(asked, bool) else known.tied[asked]
    rows = dict(_of_words(frame, network))
    words = [name for name, row in rows.items() if row["embedding"] == 1]
    others = [name for name in rows if name not in words]
    both = [name for name in words if rows[name]["shared"] == 1]
    # Positions may be as many as words, which come first.
    if tied and words and others:
        what = f"is not the same matrix as {words[0]}, but its configuration ties them (tie_word_embeddings)"
        yield of_weights("structure", others, what)
    if not tied and both and not others and not network.source_tokens:
        what = "is also the output matrix, but its configuration does not tie them (tie_word_embeddings)"
        yield of_weights("structure", both, what)


def _of_norms(probed: Probed) -> Iterator[Alarm]:
    """Report norms whose gain is not 1, the value before training."""
    factors: dict[str, list[float]] = {}
    tests = probed.tests
    response, says = (values(tests, f"norm_{what}") for what in ("response", "says"))
    for at, size in values(tests, "norm_gain").items():
        if response[at] < _IS_NORM and says[at] == 1 and abs(size - 1) > _SAME:
            factors.setdefault(at[2], []).append(size)
    if factors:
        gains = [size for of in factors.values() for size in of]
        ends = " to ".join(dict.fromkeys(f"{end:.3g}" for end in (min(gains), max(gains))))
        yield of_weights("norm", list(factors), f"have gain {ends}; the Stack's norms have gain 1 before training")


def _matrices_differ(rows: pd.DataFrame, network: Stack, roles: Mapping[str, tuple[str, ...]]) -> Iterator[Finding]:
    """Report matrices whose standard deviations are wrong, grouped by their common cause if it is known."""
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
            words = f"{escaped(matrix.name)} has {{}} times the Stack's standard deviation"
            yield Finding(int(matrix.layers[k]), "theory", words, (float(matrix.ratios[k]),))


def _deviations(words: str, group: list[_Matrix]) -> Iterator[Finding]:
    """Report a wrong standard deviation of several matrices in all layers, as the smallest and the largest ratio."""
    ratios = np.concatenate([matrix.ratios for matrix in group])
    have = "has" if len(group) == 1 else "have"
    for ratio in (ratios.min(), ratios.max()):
        times = "{} times the Stack's standard deviation"
        end = f"{have} {times}" if words == _names(group) else f"({times})"
        yield Finding(WHOLE_MODEL, "theory", f"{words} {end}", (float(ratio),))


def _share_a_factor(group: list[_Matrix]) -> bool:
    common = float(np.median(np.concatenate([matrix.ratios for matrix in group])))
    return common > 0 and not any(matrix.off(common).any() for matrix in group)


def _names(group: list[_Matrix]) -> str:
    return escaped(", ".join(matrix.name for matrix in group))


_FACTOR = "the factor 1/sqrt(2 L) for matrices that end a branch"
_MISSING = f"{_FACTOR} is missing in"
_ADDED = f"{_FACTOR} is applied to"


def _causes(network: Stack) -> dict[str, Callable[[_Matrix], NDArray[np.float64] | float]]:
    """Return known causes of wrong standard deviations, with the ratio that each gives a matrix (NaN for none)."""
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
        factor_name = f"the weight factor of {network.composition.title}"
        causes[f"{factor_name} is missing in"] = lambda m: _changed(
            network, m, lambda role: 1 if role in _QUERIES else 1 / beta
        )
        causes[f"{factor_name} is applied to"] = lambda m: _changed(
            network, m, lambda role: beta if role in _QUERIES else 1
        )
    causes["a normal distribution cut at two standard deviations initializes"] = lambda _: _CUT
    return causes


def _changed(network: Stack, matrix: _Matrix, factor: Callable[[str], float]) -> float:
    """Return the ratio of a parameter's standard deviations if each of its matrices is multiplied by its factor."""
    squares = {role: _square(network, role) for role in matrix.roles}
    return float((sum(factor(role) ** 2 * square for role, square in squares.items()) / sum(squares.values())) ** 0.5)


def _square(network: Stack, role: str) -> float:
    """Return the expected squared norm E||W||_F^2 of a matrix of the Stack."""
    return gain(network, role) * weight_shapes(network)[role][1]


def _compared(
    rows: pd.DataFrame, network: Stack, roles: Mapping[str, tuple[str, ...]]
) -> tuple[list[_Matrix], list[Finding]]:
    """Return the parameters with matrices in the Stack, and findings about wrong sizes or matrices that should be 0."""
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
            words = f"{escaped(name)} has {{}} entries; the Stack's matrix has {{}}"
            findings.append(Finding(WHOLE_MODEL, "theory", words, (float(entries.max()), theirs), digits=10))
        elif not (expected > 0).all():
            if (squares["mean"] > 0).all():
                findings.append(Finding(WHOLE_MODEL, "theory", f"{escaped(name)} is not 0; the Stack's matrix is 0"))
        elif np.isfinite(squares["mean"]).all():
            freedom = entries * squares["count"].to_numpy()
            low, high = (np.sqrt(stats.chi2.ppf(tail, freedom) / freedom) for tail in tails)
            ratios = np.sqrt(squares["mean"].to_numpy() / expected)
            matrices.append(_Matrix(name, known[name], squares.index.to_numpy(), ratios, low, high))
    return matrices, findings


def _numbers_differ(table: pd.DataFrame) -> Iterator[Finding]:
    """Report the activation and the gradient that differ most from theory, each with its layer, and name the others."""
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
            name = "mean squared activation" if forward else f"|gradient|^2 of {escaped(row.quantity)}"
            words.append(f"{name} is {'{} times' if row.ratio > 1 else '1/{} of'} theory's in layer {{}}")
            numbers += [float(np.exp(row.size)), row.layer]
            named.add(row.quantity)
    if words:
        rest = escaped(", ".join(name for name in rows["quantity"].unique() if name not in named))
        further = [f"gradients of {rest} also differ from theory"] if rest else []
        yield Finding(WHOLE_MODEL, "theory", "; ".join([*words, *further]), tuple(numbers))
