"""Translation models at initialization held against large-width theory, and against section 3.4 of the paper."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from studies.fig3.sentence_pairs import SentencePair, predict_minibatch
from studies.parallel_text import END, ParallelText
from studies.translation_model import Translation
from theory import Stack
from theory.mean_field.concentration import excess_probability

INGREDIENTS: dict[str, dict[str, Any]] = {
    "cross-attention": {"cross": False},
    "causal mask": {"causal": False},
    "dropout": {"dropout": 0.0},
    "repeated words": {"repeated": False},
    "label distribution": {"real_labels": False},
    "label smoothing": {"smoothing": 0.0},
    "tied output matrix": {"tied": False},
}
"""What can be switched off, and how."""

LEAST_PAIRS = 4
"""Fewer pairs make no group to predict."""

NOTHING_LEFT_OUT = "nothing"
"""The name of a model with all its ingredients."""


def without(translation: Translation, base: Translation) -> str:
    """Which ingredient of a base model a model lacks, `NOTHING_LEFT_OUT` if none."""
    return ", ".join([name for name in _ingredients(base) if _lacks(translation, name)]) or NOTHING_LEFT_OUT


def _lacks(translation: Translation, name: str) -> bool:
    return all(getattr(translation, field) == value for field, value in INGREDIENTS[name].items())


def _ingredients(base: Translation) -> list[str]:
    return [name for name in INGREDIENTS if not _lacks(base, name)]


def stack_of(translation: Translation, target_length: int, source_length: int) -> Stack:
    """The network of large-width theory.

    A tied output matrix has no rule with a source, and is taken as untied; the norms' ε of 1e-5 is left out.
    """
    t = translation
    # torch.nn draws queries, keys and values as one (3d, d) matrix: entries of variance 1/(2d).
    scale = 1.0 if t.initialization == "xavier" else 0.5**0.5
    return Stack(
        placement=t.placement, width=t.width, depth=t.depth, tokens=target_length, vocab=t.vocab, heads=t.heads,
        source_tokens=source_length if t.cross else 0, ffn_ratio=t.ffn_width / t.width, query_key_scale=scale,
        initialization="xavier_uniform" if t.initialization == "xavier" else "pytorch", output_projection="random",
        mask="causal" if t.causal else "none", positions="sinusoidal", dropout=t.dropout,
        label_smoothing=t.smoothing,
    )  # fmt: skip


def predicted(
    translation: Translation, text: ParallelText, *, effective_pairs: float, groups: int = 24, patterns: int = 4,
    finite_width: bool = True, seed: int = 0,
) -> pd.DataFrame:  # fmt: skip
    """A mini-batch's gradient norms by theory, as rows of `studies.measurements.measure`.

    Args:
        translation: the model.
        text: whose pairs are sampled.
        effective_pairs: of the mini-batch, its tokens squared over the sum of its pairs' lengths squared.
        groups: of four pairs that are predicted; words repeat between them as they do in the text.
        patterns: of attention, for each.
        finite_width: draw the products of tokens at the model's width, which gradients of queries and keys ask for.
        seed: of pairs, patterns and what is drawn instead of words or labels.
    """
    generator = np.random.default_rng(seed)
    chosen = generator.permutation(len(text))[: 4 * min(groups, len(text) // 4)]
    pairs = [_pair(translation, text, k, generator) for k in chosen]
    lengths = [int(np.median([len(getattr(pair, name)) for pair in pairs])) for name in ("target", "source")]
    quantities = predict_minibatch(
        stack_of(translation, *lengths), pairs, size=effective_pairs, groups=len(pairs) // 4, patterns=patterns,
        embedding_dropout=translation.dropout, finite_width=finite_width, seed=seed,
    )  # fmt: skip
    rows = []
    for name, squares in quantities.items():
        part, _, matrix = name.rpartition("grad_sq_")
        if (part or name.startswith("grad_sq_")) and matrix != "Wemb":
            place = "encoder" if part else "decoder"
            norms = enumerate(np.sqrt(squares), start=1)
            rows += [(place, layer, matrix, "predicted", float(norm)) for layer, norm in norms]
    return pd.DataFrame(rows, columns=["part", "layer", "matrix", "statistic", "value"])


def _pair(translation: Translation, text: ParallelText, k: int, generator: np.random.Generator) -> SentencePair:
    source, target = text.sources[k], text.targets[k]
    inputs, labels = target[:-1], target[1:]
    if not translation.repeated:
        # No two are equal, whatever the words.
        source, inputs = (generator.integers(2**62, size=len(ids)) for ids in (source, inputs))
    if not translation.real_labels:
        labels = generator.integers(END + 1, text.vocab, len(labels))
    return SentencePair(source, inputs, labels)


def profiles(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds with its standard error, of E‖∇‖ and ‖E ∇‖ of every matrix and layer, beside the prediction.

    Args:
        frame: rows of `measure` and `predicted`, with a column per field of the Translation, seed, and "without".
    """
    keys = ["placement", "initialization", "depth", "without", "part", "layer", "matrix"]
    rows = frame[frame["matrix"] != ""]
    table = rows.groupby([*keys, "statistic"])["value"].agg(["mean", "sem"]).unstack("statistic")
    table.columns = [f"{statistic}{'' if what == 'mean' else ' sem'}" for what, statistic in table.columns]
    return table.drop(columns="predicted sem", errors="ignore").reset_index()


def growth(
    frame: pd.DataFrame, matrix: str = "W2", part: str = "decoder", statistic: str = "mean norm"
) -> pd.DataFrame:
    """Least-squares slope of ln‖∇‖ over the layers, of each model, and by theory.

    Args:
        frame: as in `profiles`.
        matrix: whose gradient.
        part: "encoder" or "decoder".
        statistic: of `studies.measurements.measure`.

    Returns:
        One row per placement, initialization, depth and missing ingredient: growth (mean over seeds), sem, seeds,
        predicted, NaN where there is none.
    """
    rows = frame[(frame["matrix"] == matrix) & (frame["part"] == part)]
    rows = rows[rows["statistic"].isin([statistic, "predicted"])]
    fits = []
    for key, group in rows.groupby(["placement", "initialization", "depth", "without", "statistic", "seed"]):
        fits.append((*key, stats.linregress(group["layer"], np.log(group["value"])).slope))
    slopes = pd.DataFrame(
        fits, columns=["placement", "initialization", "depth", "without", "statistic", "seed", "slope"]
    )
    keys = ["placement", "initialization", "depth", "without"]
    measured = slopes[slopes["statistic"] == statistic].groupby(keys)["slope"].agg(["mean", "sem", "size"])
    theory = slopes[slopes["statistic"] == "predicted"].groupby(keys)["slope"].mean()
    measured.columns = ["growth", "sem", "seeds"]
    return measured.join(theory.rename("predicted"), how="outer").reset_index()


def shares(grown: pd.DataFrame) -> pd.DataFrame:
    """How much of a model's growth is gone without each ingredient, 1 − slope without / slope with; and by theory."""
    keys = ["placement", "initialization", "depth"]
    whole = grown[grown["without"] == NOTHING_LEFT_OUT].set_index(keys)
    rows = grown[grown["without"] != NOTHING_LEFT_OUT].set_index(keys)
    joined = rows.join(whole[["growth", "sem", "predicted"]].add_suffix(" with"), how="inner")
    ratio = joined["growth"] / joined["growth with"]
    error = ratio.abs() * np.hypot(joined["sem"] / joined["growth"], joined["sem with"] / joined["growth with"])
    return joined.assign(
        share=1 - ratio, share_sem=error, share_predicted=1 - joined["predicted"] / joined["predicted with"]
    ).reset_index()  # fmt: skip


def last_norms(frame: pd.DataFrame) -> pd.DataFrame:
    """‖∇_{W2}‖ of the last decoder layer of whole models, per seed: columns of the model, seed, value."""
    rows = frame[(frame["matrix"] == "W2") & (frame["part"] == "decoder") & (frame["layer"] == frame["depth"])]
    return rows[(rows["statistic"] == "mean norm") & (rows["without"] == NOTHING_LEFT_OUT)]


def labelled(found: pd.DataFrame, translation: Translation, seed: int, base: Translation) -> pd.DataFrame:
    """Rows of one model with its fields, its seed, and what it lacks of a base model."""
    return found.assign(**asdict(translation), seed=seed, without=without(translation, base))


def ablated(base: Translation) -> list[Translation]:
    """The model without each of the ingredients that it has."""
    return [replace(base, **INGREDIENTS[name]) for name in _ingredients(base)]


def excess_shares(frame: pd.DataFrame) -> pd.DataFrame:
    """δ(ε) of the last hidden states of whole models, beside the exact law of one token of the simplified model.

    Returns:
        Columns placement, initialization, depth, width, seed, epsilon, share, predicted.
    """
    last = (frame["part"] == "decoder") & (frame["layer"] == frame["depth"])
    rows = frame[last & frame["statistic"].str.startswith("excess ") & (frame["without"] == NOTHING_LEFT_OUT)]
    epsilon = rows["statistic"].str.removeprefix("excess ").astype(float)
    kept = ["placement", "initialization", "depth", "width", "seed"]
    table = rows[kept].assign(epsilon=epsilon, share=rows["value"]).sort_values([*kept, "epsilon"])
    laws = []
    for (placement, depth, width), group in table.groupby(["placement", "depth", "width"]):
        stack = Stack(placement=placement, depth=int(depth), width=int(width), tokens=1)
        laws.append(pd.Series(excess_probability(stack, group["epsilon"].to_numpy()), index=group.index))
    return table.assign(predicted=pd.concat(laws) if laws else pd.Series(dtype=float))
