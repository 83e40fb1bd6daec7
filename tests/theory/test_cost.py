"""What a prediction samples and is said to take: counts by sizes alone, memory beside what it holds, and a clock."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from theory import Stack, predict
from theory.configurations import stack_from_config
from theory.first_step.cost import first_step_cost, measured_pace
from theory.first_step.prediction import first_step
from theory.mean_field import cost, prediction
from theory.mean_field.cost import has_cheaper_groups, is_grouped, measured_seconds, prediction_cost, quick_patterns
from theory.mean_field.prediction import predicted_seconds
from theory.mean_field.text_law import TextLaw

BASE = Stack(placement="pre", width=512, vocab=64, depth=2)
QUERIES = replace(BASE, query_key_scale=1.0, heads=4)
TIED = replace(BASE, embeddings="tied")

HELD = {
    "many heads": (replace(QUERIES, tokens=32, heads=16), {"patterns": 4}),
    "rotary": (replace(QUERIES, tokens=24, rotary=1.0), {"patterns": 4}),
    "a source": (replace(QUERIES, tokens=16, source_tokens=12), {"patterns": 16}),
    "causal": (replace(BASE, tokens=256, mask="causal"), {}),
    "tied": (replace(TIED, tokens=16), {"patterns": 32}),
    "tied, own patterns": (replace(TIED, tokens=16, heads=4, query_key_scale=1.0), {"patterns": 16}),
    "groups": (replace(QUERIES, tokens=600, mask="causal", rotary=1.0), {"patterns": 4, "grouped": True}),
    "experts in groups": (
        replace(QUERIES, tokens=600, mask="causal", experts=16, experts_per_token=2), {"patterns": 2, "grouped": True}
    ),
    "text": (replace(QUERIES, tokens=128, mask="causal", sequences=2), {"patterns": 2, "text": TextLaw.zipf(1.0, 64)}),
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_memory_is_within_a_factor_of_two_of_what_is_held(name):
    stack, how = HELD[name]
    predict(replace(stack, depth=1), **how)  # what is cached is not held by the prediction
    tracemalloc.start()
    predict(stack, **how)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    text = how.get("text") is not None
    found = prediction_cost(
        stack, patterns=how.get("patterns"), grouped=text or how.get("grouped", False), text=text
    ).bytes
    assert 1e6 < held
    assert 0.5 < found / held < 2.0


@pytest.mark.quick
def test_counts_of_published_networks():
    """As many groups and patterns on every machine: those that commands print the errors of."""
    found = {}
    for name in ("pythia-1.4b", "llama-3-8b", "bert-base", "mixtral-8x7b"):
        stack = replace(stack_from_config(like=name)[0], tokens=512)
        batch = replace(stack, sequences=2)
        found[name] = (
            quick_patterns(replace(stack, tokens=16)), quick_patterns(stack, grouped=True), is_grouped(stack),
            quick_patterns(batch, grouped=True, text=True),
        )  # fmt: skip
    assert found == {
        "pythia-1.4b": (32, 4, True, 2), "llama-3-8b": (16, 4, True, 2), "bert-base": (64, 23, True, 8),
        "mixtral-8x7b": (8, 4, True, 2),
    }  # fmt: skip


class Clock:
    """One on which each look takes some seconds."""

    def __init__(self, seconds):
        self.seconds, self.now = seconds, 0.0

    def __call__(self):
        self.now += self.seconds
        return self.now


def test_a_slow_machine_predicts_the_same_numbers(monkeypatch):
    """Where each look at the clock takes an hour, what is asked for is refused or warned of, and not changed."""
    monkeypatch.setattr(cost, "_QUICK", 2.0**16)
    stack = replace(QUERIES, tokens=8)
    before = predict(stack)
    monkeypatch.setattr(cost, "MEASURED", prediction_cost(stack).seconds / 1.5)
    monkeypatch.setattr(cost.time, "thread_time", Clock(3600.0))
    monkeypatch.setattr(prediction, "_SLOWEST", 1e6)
    assert prediction_cost(stack).seconds < 1.0
    with pytest.raises(ValueError, match=r"^max_time 8 s is too short: a prediction would take about [\d.]+e"):
        predict(stack, max_time=8.0)
    with pytest.warns(UserWarning, match="^a prediction would take about .* max_time= sets a limit"):
        after = predict(stack, patterns=quick_patterns(stack))
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_least_batch_is_small_and_what_it_takes_is_extrapolated(monkeypatch):
    """One is run, whose seconds are those of the clock times how much more the whole is by the estimate."""
    ran = []
    monkeypatch.setattr(cost.time, "thread_time", Clock(3.0))
    stack = replace(QUERIES, tokens=4096, depth=40)
    found = measured_seconds(stack, 1000.0, lambda each: each.depth * each.tokens**2 * 1e-6, ran.append)
    (least,) = ran
    assert (least.depth, least.tokens) == (1, 512)
    assert found == pytest.approx(1000.0 * 3.0 / (512**2 * 1e-6))
    given = replace(BASE, tokens=2, mask="given", mask_rows="[[1, 0], [1, 1]]")
    assert measured_seconds(given, 7.0, lambda _: 5.0, ran.append) == 7.0, "none is small enough"
    assert measured_seconds(stack, 0.1, lambda _: 0.1, ran.append) == 0.1, "none is worth a batch"
    assert len(ran) == 1


def test_the_clock_is_of_what_a_prediction_takes():
    """Within a factor of two on a shared machine, of groups of tokens and of the first step alike."""
    stack = replace(QUERIES, tokens=128, depth=24, mask="causal")
    how = {"patterns": 4, "grouped": True}
    said = predicted_seconds(stack, **how)
    began = cost.time.thread_time()
    predict(stack, **how)
    assert 0.5 < said / (cost.time.thread_time() - began) < 2.0
    step = Stack(placement="pre", width=128, depth=4, tokens=16, vocab=512, mask="causal")
    said = measured_pace([step], ["adam"]) * first_step_cost(step, "adam").seconds
    began = cost.time.thread_time()
    first_step(step, "adam")
    assert 0.5 < said / (cost.time.thread_time() - began) < 2.0


def test_one_token_has_a_cost():
    for stack in (BASE, QUERIES, TIED, replace(TIED, query_key_scale=1.0), replace(QUERIES, rotary=1.0)):
        assert 0 < prediction_cost(replace(stack, tokens=1), patterns=1).seconds < 1


@pytest.mark.quick
def test_limits_hold_before_anything_is_computed(monkeypatch):
    stack = replace(QUERIES, tokens=4096, rotary=1.0, heads=8, loss_on="last")  # groups have no rule for it
    monkeypatch.setattr(prediction, "predicted_seconds", lambda *_, **__: 100.0)
    monkeypatch.setattr(prediction, "recursion", lambda *_: pytest.fail("nothing is to be computed"))
    with pytest.raises(ValueError, match=r"^max_time 10 s is too short: a prediction would take about"):
        predict(stack, max_time=10.0, memory=1e18)
    with pytest.raises(ValueError, match=r"^memory 0.001 GB is too small: the prediction would hold about"):
        predict(stack, memory=1e6, max_time=1e18)
    monkeypatch.setattr(prediction, "_machine_memory", lambda: 1e9)
    with pytest.raises(ValueError, match="^tokens are too many: .* this machine has 1 GB"):
        predict(stack, max_time=1e18)
    for name in ("max_time", "memory"):
        for bad in (0.0, -1.0, float("nan"), True):
            with pytest.raises(ValueError, match=f"^{name} must be a positive number or None"):
                predict(BASE, **{name: bad})


def test_limits_hold_for_corrections_too():
    with pytest.raises(ValueError, match="^max_time .* is too short"):
        predict(Stack(depth=1000), finite_width=True, max_time=1e-6)


def test_what_takes_more_than_a_minute_says_so(monkeypatch):
    monkeypatch.setattr(prediction, "_LONG", 1e-6)
    with pytest.warns(UserWarning, match="^a prediction would take about .* max_time= sets a limit") as said:
        predict(BASE, patterns=4)
    assert said[0].filename == __file__
    with pytest.raises(ValueError, match="^max_time .* is too short"):
        predict(BASE)  # who asked for nothing waits for no more than that
    predict(BASE, max_time=1e3)  # who gives a limit knows


def test_no_patterns_are_as_many_as_take_some_seconds(monkeypatch):
    monkeypatch.setattr(cost, "_QUICK", 2.0**18)
    stack = replace(QUERIES, tokens=32, heads=4, depth=8)
    count = quick_patterns(stack)
    assert 4 <= count < 4096
    plain, asked = predict(stack), predict(stack, patterns=count)
    assert all(np.array_equal(plain[name], asked[name]) for name in plain)


def test_groups_are_cheaper():
    exchangeable = replace(QUERIES, tokens=40)
    assert has_cheaper_groups(exchangeable)
    assert predict(exchangeable, grouped=True)["loss"] > 0
    assert prediction_cost(replace(exchangeable, tokens=4096), grouped=True).seconds < 10
    assert has_cheaper_groups(replace(exchangeable, mask="causal"))
    assert not has_cheaper_groups(replace(exchangeable, loss_on="last"))
    assert not has_cheaper_groups(replace(BASE, tokens=4096)), "two numbers are a kernel"


@pytest.mark.quick
def test_tokens_that_stand_for_themselves_are_no_groups():
    """The first twelve under a causal mask: with no more tokens nothing is left out, and nothing saved."""
    assert not has_cheaper_groups(replace(QUERIES, tokens=12, mask="causal"))
    assert has_cheaper_groups(replace(QUERIES, tokens=17, mask="causal"))
    deep = replace(QUERIES, tokens=12, mask="causal", depth=1000, heads=64, rotary=1.0)
    assert prediction_cost(deep).seconds > 10
    assert not is_grouped(deep)
    assert is_grouped(replace(deep, tokens=64))


@pytest.mark.filterwarnings("error")
def test_one_token_takes_one_pattern():
    """Its weights are 1, so that nothing reaches queries and keys, and nothing scatters."""
    stack, _ = stack_from_config(like="pythia-1.4b", tokens=1)
    assert quick_patterns(stack) == 4
    found = predict(stack)
    assert not found["grad_sq_WQ"].any()
    assert not found["grad_sq_WK"].any()
    np.testing.assert_allclose(found["grad_sq_WV"], predict(stack, patterns=64)["grad_sq_WV"], rtol=1e-9)
    assert (found.errors["grad_sq_WV"] < 1e-9 * found["grad_sq_WV"]).all()


@pytest.mark.parametrize(("sequences", "at_once"), [(1, 2), (2, 1)])
def test_memory_of_a_text_is_of_what_is_predicted_at_once(sequences, at_once):
    """Both ends of how often one text repeats words, and of two sequences one pattern, where one is large."""
    large = replace(QUERIES, tokens=4096, mask="causal", depth=200, heads=32, width=4096, sequences=sequences)
    one, four = (prediction_cost(large, grouped=True, text=True, patterns=patterns).bytes for patterns in (1, 4))
    assert cost.grouped_chunk(large, text=True) == at_once
    assert four == pytest.approx(at_once * one)
