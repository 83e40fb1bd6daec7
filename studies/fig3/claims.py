"""Verdicts on section 3.4 of the paper: hidden norms, the last layer against depth, and gradients over the layers."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
from scipy import stats

from checks.statistics import Agreement, Estimate, estimate, scalar_agreement
from checks.verdict import Setting, Subject, Verdict, Word, interval_of, sentence
from studies.fig3.table import NOTHING_LEFT_OUT, excess_shares, growth, last_norms
from studies.measurements import ALMOST
from theory import Stack, predict
from theory.paper.claims import CLAIMS

_EPSILON, _DELTA = (float(CLAIMS["C1"].numbers[name]) for name in ("epsilon", "delta"))
_ABOUT = float(CLAIMS["C2"].numbers["post"])
_SHARE_MARGIN = 0.01
# Widths of real models are finite, and their text is sampled.
_AGREES = 0.15


def section_3_4(frame: pd.DataFrame, about: str) -> list[Verdict]:
    """Verdicts on models of the paper's initialization, with intervals over seeds.

    Args:
        frame: as in `studies.fig3.table.profiles`.
        about: the text, in words, for the setting.
    """
    frame = frame[frame["initialization"] == "xavier"]
    verdicts: list[Verdict] = []
    for placement in ("post", "pre"):
        models = frame[frame["placement"] == placement]
        if not models.empty:
            verdicts += [*_concentration(models, about), *_against_depth(models, about), *_over_layers(models, about)]
    return sorted(verdicts, key=lambda v: v.claim)


def _setting(frame: pd.DataFrame, about: str) -> Setting:
    depths = sorted(frame["depth"].unique())
    layers = f"{depths[0]}-{depths[0]}" + (f"..{depths[-1]}-{depths[-1]}" if len(depths) > 1 else "")
    width, vocab = (int(frame[name].iloc[0]) for name in ("width", "vocab"))
    ranges = (("d", width, width), ("V", vocab, vocab))
    return Setting(networks=layers, ranges=ranges, more=f"{about}, {frame['seed'].nunique()} seeds")


def _placement(frame: pd.DataFrame) -> str:
    return str(frame["placement"].iloc[0])


def _concentration(frame: pd.DataFrame, about: str) -> Iterator[Verdict]:
    """C1: δ(0.1) of hidden states over tokens of a model; of the last beside the exact law of one token alone."""
    least = frame[frame["depth"] == frame["depth"].min()]
    table = excess_shares(least)
    table = table[np.isclose(table["epsilon"], _EPSILON)]
    values = table["share"].to_list()
    if len(values) < 2:
        return
    share = estimate(values)
    mean, sem, low, high = _interval(share)
    alone = float(table["predicted"].iloc[0])
    apart = _agreement(mean, alone, sem, len(values), _SHARE_MARGIN) == "differs"
    yield Verdict(
        claim="C1",
        subject=Subject(
            placement=_placement(frame), quantity="P[‖x‖² > 1.1 E‖x‖²] of the last hidden state", kind="share"
        ),
        verdict=_share_word(share),
        claimed=sentence("at most {}", _DELTA),
        predicted=float("nan"),
        measured=mean,
        interval=(max(0.0, low), high),
        agreement="undecided",
        setting=_setting(least, about),
        note=sentence(
            "share of target tokens, of a model's mean; theory has no such network: one token of the simplified "
            "model, without attention to an encoder, dropout and sentences, has {:.3g}, which these samples ",
            alone,
        )
        + sentence("exclude" if apart else "do not exclude"),
    )
    yield from _all_states(least, about)


def _all_states(frame: pd.DataFrame, about: str) -> Iterator[Verdict]:
    """C1 of every layer, since the paper speaks of the hidden states: the one whose share is largest decides."""
    rows = frame[(frame["statistic"] == f"excess {_EPSILON:g}") & (frame["without"] == NOTHING_LEFT_OUT)]
    layers = {place: estimate(group["value"].to_list()) for place, group in rows.groupby(["part", "layer"])}
    if len(layers) < 2:
        return  # of older tables, which have the last layer alone
    worst = max(layers, key=lambda place: float(layers[place].mean))
    mean, _, low, high = _interval(layers[worst])
    level = 1 - 0.05 / len(layers)  # the largest of so many
    words = [_share_word(share, level) for share in layers.values()]
    word: Word = "fails" if "fails" in words else "undecided" if "undecided" in words else "holds"
    yield Verdict(
        claim="C1",
        subject=Subject(placement=_placement(frame), quantity="P[‖x‖² > 1.1 E‖x‖²] of all hidden states", kind="share"),
        verdict=word,
        claimed=sentence("at most {}", _DELTA),
        predicted=float("nan"),
        measured=mean,
        interval=(max(0.0, low), high),
        agreement="undecided",
        setting=_setting(frame, about),
        note=sentence(
            "of {} layers the one with the largest share, {}; {} hold, {} fail, by intervals of {:.1%} each",
            *(len(layers), f"{worst[0]} {worst[1]}", words.count("holds"), words.count("fails"), level),
        ),
    )


def _share_word(share: Estimate, level: float = 0.95) -> Word:
    low, high = (float(end) for end in share.interval(level))
    return "holds" if high <= _DELTA else "fails" if low > _DELTA else "undecided"


def _against_depth(frame: pd.DataFrame, about: str) -> Iterator[Verdict]:
    """C2: the last W2 gradient against the depth."""
    norms = last_norms(frame)
    depths = np.array(sorted(norms["depth"].unique()))
    post = frame["placement"].iloc[0] == "post"
    about_it = partial(Subject, placement=_placement(frame))
    if post:
        values = norms.loc[norms["depth"] == depths[0], "value"].to_list()
        if len(values) > 1:
            mean, sem, low, high = _interval(estimate(values))
            within, beyond = 0.9 * _ABOUT <= low and high <= 1.1 * _ABOUT, low > 1.1 * _ABOUT or high < 0.9 * _ABOUT
            word: Word = "holds" if within else "fails" if beyond else "undecided"
            yield Verdict(
                claim="C2",
                subject=about_it(quantity="last ‖dL/dW2‖"),
                verdict=word,
                claimed=sentence("about {}", _ABOUT),
                predicted=_predicted_last(frame),
                measured=mean,
                interval=(low, high),
                agreement=_agreement(
                    float(np.log(mean)), float(np.log(_predicted_last(frame))), sem / mean, len(values), _AGREES
                ),
                setting=_setting(frame[frame["depth"] == depths[0]], about),
                note=sentence("decoder; about: the interval is within a tenth"),
            )
    if len(depths) < 3:
        return
    fit = stats.linregress(np.log(norms["depth"]), np.log(norms["value"]))
    half = float(stats.t.ppf(0.975, len(norms) - 2)) * fit.stderr
    low, high = fit.slope - half, fit.slope + half
    if post:
        # Constant: less than a tenth between the ends.
        margin = ALMOST / float(np.log(depths[-1] / depths[0]))
        word = (
            "holds" if -margin <= low and high <= margin else "fails" if low > margin or high < -margin else "undecided"
        )
    else:
        word = "holds" if high < 0 else "fails" if low > 0 else "undecided"
    predicted = _simplified_exponent(frame, depths)
    yield Verdict(
        claim="C2",
        verdict=word,
        claimed=sentence("{}" if post else "below {}", 0),
        subject=about_it(quantity="exponent of the last ‖dL/dW2‖ in L", kind="exponent", against="depth"),
        predicted=predicted,
        measured=float(fit.slope),
        interval=(low, high),
        agreement=_agreement(
            float(fit.slope), predicted, fit.stderr, len(norms) - 1, _AGREES / float(np.log(depths[-1] / depths[0]))
        ),
        setting=_setting(frame, about),
        note=sentence(
            "decoder; regression over depths and seeds; constant: less than a tenth from end to end. Theory: the "
            "simplified encoder-decoder with a source as long as the target, the same depths"
        ),
    )


def _predicted_last(frame: pd.DataFrame) -> float:
    rows = frame[(frame["statistic"] == "predicted") & (frame["matrix"] == "W2") & (frame["part"] == "decoder")]
    rows = rows[(rows["without"] == NOTHING_LEFT_OUT) & (rows["layer"] == rows["depth"])]
    return float(rows["value"].mean())


def _simplified_exponent(frame: pd.DataFrame, depths: np.ndarray) -> float:
    placement, width = frame["placement"].iloc[0], int(frame["width"].iloc[0])
    norms = [
        predict(Stack(placement=placement, width=width, depth=int(depth), tokens=16, source_tokens=16))["grad_sq_W2"][
            -1
        ]
        for depth in depths
    ]
    return float(stats.linregress(np.log(depths), 0.5 * np.log(norms)).slope)


def _over_layers(frame: pd.DataFrame, about: str) -> Iterator[Verdict]:
    """C3: growth a layer of the expected gradients of W1 and W2 in both parts; and without cross-attention."""
    least = frame[frame["depth"] == frame["depth"].min()]
    expected = "expected norm" if (least["statistic"] == "expected norm").any() else "mean norm"
    whole = [(part, NOTHING_LEFT_OUT, matrix) for matrix in ("W2", "W1") for part in ("decoder", "encoder")]
    for part, missing, matrix in [*whole, ("decoder", "cross-attention", "W2")]:
        # One mini-batch, as of ablations, has no estimate of the expected gradient.
        table = growth(least, matrix, part, statistic=expected if missing == NOTHING_LEFT_OUT else "mean norm")
        rows = table[table["without"] == missing]
        if rows.empty or not rows["seeds"].iloc[0] >= 2:
            continue
        row = rows.iloc[0]
        _, _, low, high = _interval(Estimate(row["growth"], row["sem"], int(row["seeds"])))
        post = frame["placement"].iloc[0] == "post"
        if post:
            word: Word = "holds" if low > ALMOST else "fails" if high < ALMOST else "undecided"
        else:
            word = "holds" if -ALMOST <= low and high <= ALMOST else "undecided"
            word = "fails" if low > ALMOST or high < -ALMOST else word
        of_mean = missing == NOTHING_LEFT_OUT and expected == "expected norm"
        gradient = f"E dL/d{matrix}" if of_mean else f"dL/d{matrix}"
        claimed = sentence("above {:.3f}" if post else "within {:.3f} of 0", ALMOST)
        margin = _AGREES / (int(row["depth"]) - 1)
        yield Verdict(
            claim="C3",
            verdict=word,
            claimed=claimed,
            subject=Subject(
                placement=_placement(frame),
                quantity=f"ln of the growth of ‖{gradient}‖ a layer, {part}",
                kind="growth",
                against="layer",
            ),
            predicted=float(row["predicted"]),
            measured=float(row["growth"]),
            interval=(low, high),
            agreement=_agreement(row["growth"], row["predicted"], row["sem"], int(row["seeds"]), margin),
            setting=_setting(least, about),
            note=sentence(
                "slope over l of the logarithm of "
                + (
                    "the norm of the expected gradient, its square freed of Var/B of B mini-batches"
                    if of_mean
                    else "the mean norm over mini-batches"
                )
                + ", mean over seeds; grows: by more than a tenth a layer; almost the same: by less. Theory: the "
                "recursion on pairs of the text"
                + (", a mini-batch's norm" if of_mean else "")
                + (
                    ""
                    if missing == NOTHING_LEFT_OUT
                    else "; an ingredient switched off, to see what carries the growth"
                )
            ),
            relaxed="" if missing == NOTHING_LEFT_OUT else f"without {missing}",  # of which the paper says nothing
        )


def _interval(value: Estimate) -> tuple[float, float, float, float]:
    """Mean, standard error, and the 95% interval, of seeds."""
    return float(value.mean), float(value.sem), *interval_of(value)


def _agreement(measured: float, predicted: float, sem: float, seeds: int, margin: float) -> Agreement:
    """Of logarithms or slopes; with few seeds a standard error is widened as Student's t has it."""
    if not np.isfinite(predicted):
        return "undecided"
    wider = float(stats.t.ppf(0.975, seeds - 1) / stats.norm.ppf(0.975))
    return scalar_agreement(measured, predicted, sem * wider, margin)
