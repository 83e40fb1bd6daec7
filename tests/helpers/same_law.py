"""Whether two sets of draws have one law: means, variances, covariances and distributions of every recorded number."""

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from simulate import Cell
from simulate.runs.sample import sample_blocks
from simulate.text import TextWindows
from theory import Stack

Array = NDArray[np.float64]
# Per comparison of two sets of draws, split over all the numbers it compares.
FALSE_ALARM = 1e-5


_BATCH = 16


def repeated_words(stack: Stack) -> TextWindows:
    """Windows in which words repeat, so that rows of tokens are equal: a b a c a b a c ... and one word alone."""
    pattern = [1 + (k % 4 == 1) + 2 * (k % 4 == 3) for k in range(stack.tokens + 1)]
    ids = np.array([pattern, [1] * (stack.tokens + 1)], dtype=np.int64) % stack.vocab
    return TextWindows(ids=ids, digest="0" * 64, source="repeated words")


def numbers(stack: Stack, engine: str, draws: int, seed: int, *, repeat: bool = False, dtype: str = "float64") -> Array:
    """Recorded numbers as columns, (draws, numbers), of the first, the middle and the last layer.

    Fourth roots, which have light tails and do not mind that at d = 8 a draw may have no active hidden unit; only
    correlations, which may be negative, as they are.
    """
    cell = Cell(stack, engine, dtype=dtype, text=repeated_words(stack) if repeat else None)
    # Blocks that share a batch have the numbers that they have by themselves, with fewer calls.
    count = cell.blocks(draws)
    starts = range(0, count, _BATCH)
    blocks = [one for k in starts for one in sample_blocks(cell, seed, range(k, min(k + _BATCH, count)))]
    layers = sorted({0, stack.depth // 2, stack.depth - 1})
    columns = []
    for name in blocks[0]:
        if name == "head_norm" or (name.endswith("token_correlation") and np.isnan(blocks[0][name]).all()):
            continue
        values = np.concatenate([b[name] for b in blocks])[:draws].astype(float)
        values = values[:, layers] if values.ndim == 2 else values[:, None]
        columns.append(values if name.endswith("token_correlation") else values**0.25)
    return np.concatenate(columns, axis=1)


def differences(first: Array, second: Array) -> list[str]:
    """Which numbers differ by more than chance allows, in words; empty for one law.

    Welch's z of means, of squared deviations and of products of deviations of pairs, and two-sample Kolmogorov-Smirnov
    tests. With 20000 draws a mean off by 0.07 standard deviations, a variance off by 10%, a correlation off by 0.07, or
    a distribution function off by 0.03 is seen with probability above 1/2.
    """
    count = first.shape[1]
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    limit = stats.norm.isf(FALSE_ALARM / (2 * (3 * count + len(pairs))))
    found = []
    deviations = [(a - a.mean(0)) / np.sqrt(first.var(0) + second.var(0)) for a in (first, second)]
    for what, (x, y) in {
        "mean": (first, second),
        "variance": (deviations[0] ** 2, deviations[1] ** 2),
        "covariance": tuple(np.stack([d[:, i] * d[:, j] for i, j in pairs], 1) for d in deviations),
    }.items():
        error = np.sqrt(x.var(0) / len(x) + y.var(0) / len(y))
        z = np.abs(x.mean(0) - y.mean(0)) / np.where(error > 0, error, 1)
        found += [f"{what} {k}: {z[k]:.1f} > {limit:.1f}" for k in np.flatnonzero(z > limit)]
    distribution = [stats.ks_2samp(first[:, k], second[:, k]).pvalue for k in range(count)]
    found += [f"distribution {k}: {p:.1e}" for k, p in enumerate(distribution) if p < 2 * stats.norm.sf(limit)]
    return found
