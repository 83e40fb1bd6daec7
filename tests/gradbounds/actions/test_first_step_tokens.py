"""`predict --first-step` of a model: the most tokens that fit, and Adam's rate carried on from them in one sentence."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from gradbounds.actions.first_step_tokens import Halves, extrapolated, most_tokens, steps_cost
from gradbounds.budget import Budget
from gradbounds.cli import main
from gradbounds.described_network import Description
from theory.configurations import RECIPES
from theory.first_step.cost import first_step_cost
from theory.first_step.prediction import first_step

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40,
    "intermediate_size": 96, "max_position_embeddings": 256,
}  # fmt: skip
OF = Description(config=LLAMA)


def stack_of(tokens):
    return OF.read({"tokens": tokens})[0]


def taken(tokens):
    """Seconds of a rate of Adam at so many tokens, and at half as many."""
    whole, half = stack_of(tokens), stack_of(tokens // 2)
    return (steps_cost([whole], ["adam"], None) + first_step_cost(half, "adam", None)).seconds


def most(seconds, given=(), optimizers=("adam",)):
    chosen = most_tokens(dict(given), OF, optimizers, patterns=None, max_time=f"{seconds:.6f}s", memory="2GB")
    return chosen.get("tokens")


def test_the_most_tokens_that_fit_are_taken():
    """No more than the context or what theory has; those that are given are kept, as where Adam has no step."""
    tokens = (8, 16, 32, 64)
    seconds = [taken(each) for each in tokens]
    for limit in (1.01 * seconds[0], 1.01 * max(seconds[:3]), 1e6):
        assert most(limit) == max(each for each, time in zip(tokens, seconds, strict=True) if time <= limit)
    assert most(1e6) == 64
    short = Description(config=LLAMA | {"max_position_embeddings": 32})
    assert most_tokens({}, short, ["adam"], patterns=None, max_time="1h", memory="2GB") == {"tokens": 32}
    assert most(1e6, {"tokens": 8}) == 8
    assert most(1e6, optimizers=("sgd",)) is None
    assert most(0.001) is None


def test_the_sentence_has_theory_s_rates_and_an_extrapolation(tmp_path, capsys):
    """Of what is computed the numbers are those of `first_step`; beyond, the powers of the doublings go on."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    line = ["predict", "--first-step", "--config", str(tmp_path / "config.json"), "--optimizer", "adam"]
    line += ["--max-time", f"{1.01 * taken(8) + 2.0}s", "--patterns", "4"]
    assert main([*line, "--tokens", "8"]) == 0
    said = capsys.readouterr().out
    rates = {tokens: first_step(stack_of(tokens), "adam", patterns=4).critical_rate for tokens in (8, 4, 2)}
    sentence = re.search(
        r"At 8 tokens the critical rate of Adam's first step is (\S+); at twice the tokens it changes by the factor "
        r"(\S+) \+- \S+ from 4 to 8, (\S+) \+- \S+ from 2 to 4;\n"
        r"by extrapolation, which nothing judges, at n tokens that times \(n/8\)\^(\S+) to \^(\S+): (\S+) to (\S+) at "
        r"the configuration's context of 256, of which this family's published peaks are (\S+) to (\S+) times\.",
        said,
    )
    rate, once, twice, *powers = map(float, sentence.groups()[:5])
    assert rate == pytest.approx(rates[8], rel=0.005)
    assert (once, twice) == pytest.approx((rates[8] / rates[4], rates[4] / rates[2]), abs=0.006)
    assert sorted(powers) == pytest.approx(sorted(np.log2([rates[8] / rates[4], rates[4] / rates[2]])), abs=0.006)
    low, high, least, largest = map(float, sentence.groups()[5:])
    assert low <= rate * 32 ** min(powers) * 1.05 and high >= rate * 32 ** max(powers) / 1.05
    peaks = [recipe.rate for recipe in RECIPES if recipe.family == "llama"]
    assert (least, largest) == pytest.approx((min(peaks) / high, max(peaks) / low), rel=0.1)
    assert main([*line, "--tokens", "8", "--all"]) == 0
    assert "by extrapolation" not in capsys.readouterr().out


def test_halves_are_as_many_as_fit():
    stack = stack_of(16)
    half, quarter = (first_step_cost(stack_of(tokens), "adam", None).seconds for tokens in (8, 4))
    for seconds, tokens in ((0.5 * half, []), (1.01 * half, [8]), (1.01 * (half + quarter), [8, 4])):
        halves = Halves.of(stack, Budget(seconds, 1e9), None)
        assert [each.tokens for each in halves.stacks] == tokens
        assert halves.cost.seconds <= seconds


def test_an_extrapolation_holds_its_powers_with_their_errors():
    """Exact of a power law, whose rate at eight times as many tokens is known."""
    table = pd.DataFrame({"tokens": [16, 8, 4], "critical_rate": [1.0, 2.0**0.5, 2.0]})
    table["power"], table["power_sem"] = [-0.5, -0.5, np.nan], [0.0, 0.0, np.nan]
    assert extrapolated(table, 128) == pytest.approx((8**-0.5, 8**-0.5))
    table["power_sem"] = [0.1, 0.0, np.nan]
    assert extrapolated(table, 128) == pytest.approx((8**-0.7, 8**-0.3))
