"""Which way a prediction goes within time and memory, and what is said where there is none."""

import re
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from gradbounds import budget as asked
from gradbounds.actions.first_line import scale_of_batch
from gradbounds.budget import SOON, Budget, OverBudgetError, by_estimates, chosen_way, each_once, way
from gradbounds.units import seconds_of
from theory import NoRuleError, Stack, predict
from theory.mean_field.cost import Cost, prediction_cost, quick_patterns
from theory.mean_field.text_law import TextLaw

ENOUGH = Budget(60.0, 4e9)
CAUSAL = Stack(placement="pre", width=512, depth=2, tokens=16, heads=4, vocab=64, query_key_scale=1.0, mask="causal")
LAST = replace(CAUSAL, loss_on="last")
"""Without a rule for groups of tokens."""


@pytest.mark.quick
def test_what_is_cheap_is_predicted_as_it_was_asked_for():
    stack = replace(CAUSAL, tokens=4)
    one = way(stack, None, ENOUGH)
    assert (one.arguments, one.said) == ({"patterns": quick_patterns(stack)}, "")
    assert way(stack, 8, ENOUGH).arguments == {"patterns": 8}
    assert way(Stack(), 8, ENOUGH).arguments == {"grouped": False}, "nothing is sampled"
    found = one.predicted()
    assert all(np.array_equal(found[name], value) for name, value in predict(stack).items())


def test_within_many_answers_each_prediction_is_made_once():
    """Of a network and of the batches of one: not another's, not by another law, and none is kept afterwards."""
    stack, laws = Stack(width=64, depth=2, tokens=4, vocab=16), [TextLaw.zipf(k, 16) for k in (1.0, 1.0, 1.1)]
    with each_once():
        first, again, other = (way(each, None, ENOUGH).predicted() for each in (stack, stack, replace(stack, depth=3)))
        zipf, same, steeper = (scale_of_batch(stack, law, None, ENOUGH) for law in laws)
        distinct = scale_of_batch(stack, None, None, ENOUGH)
    assert first is again and zipf is same
    assert len({id(each) for each in (first, other, zipf, steeper, distinct)}) == 5
    assert (other.stack.depth, steeper.norm(8)[0] > zipf.norm(8)[0] > distinct.norm(8)[0]) == (3, True)
    assert way(stack, None, ENOUGH).predicted() is not first


def test_fewer_patterns_are_the_most_that_fit():
    """Within ten seconds where no number was asked for, within the budget where one was."""
    stack = replace(LAST, tokens=256, depth=12, heads=8)
    for patterns, limit in ((None, SOON), (4096, 60.0)):
        one = way(stack, patterns, ENOUGH)
        count = one.arguments["patterns"]
        assert one.cost.seconds <= limit < prediction_cost(stack, patterns=2 * count).seconds
        assert one.said == f"{count} attention samples instead of {patterns or quick_patterns(stack)}"
    memory = prediction_cost(LAST, patterns=64).bytes
    assert way(LAST, 1024, Budget(60.0, memory)).arguments == {"patterns": 64}


def test_groups_come_before_fewer_patterns_than_theirs():
    """With as many patterns as were asked for, or as take some seconds; and with fewer where the budget has no more."""
    stack = replace(CAUSAL, tokens=256, depth=12, heads=8)
    count = quick_patterns(stack, grouped=True)
    assert count > 4 == quick_patterns(stack)
    fitting = next(
        c for c in (4096 >> k for k in range(12)) if prediction_cost(stack, patterns=c, grouped=True).seconds < 20
    )
    for patterns, expected in ((None, count), (4096, fitting), (8, 8)):
        one = way(stack, patterns, Budget(20.0, 4e9))
        assert one.arguments == {"grouped": True, "patterns": expected}
        less = f" instead of {patterns}" if expected < (patterns or 0) else ""
        assert one.said.endswith(f"with {expected} attention samples{less}")
    assert way(stack, 4096, Budget(1e5, 4e12)).arguments == {"patterns": 4096}, "as asked for"
    few = prediction_cost(stack, patterns=2, grouped=True).seconds
    assert way(stack, None, Budget(1.01 * few, 4e9)).arguments == {"grouped": True, "patterns": 2}
    # Half of 4096 patterns of all tokens scatter less than 64 of representatives.
    stack = replace(CAUSAL, tokens=32)
    half = prediction_cost(stack, patterns=2048)
    assert way(stack, 4096, Budget(1.1 * half.seconds, 4e9)).arguments == {"patterns": 2048}


@pytest.mark.quick
def test_first_tokens_are_no_groups():
    """All twelve stand for themselves, and a prediction that takes longer than ten seconds is waited for."""
    one = way(replace(CAUSAL, tokens=12, depth=2000, heads=64, rotary=1.0), None, Budget(1e4, 4e10))
    assert one.cost.seconds > SOON
    assert "grouped" not in one.arguments


def test_fixed_attention_of_many_tokens_is_grouped():
    """Where all of them take longer than ten seconds, or more memory than there is."""
    stack = Stack(tokens=4096, mask="causal")
    assert way(stack, None, Budget(60.0, 4e10)).arguments == {"grouped": True}
    assert prediction_cost(replace(stack, tokens=1024)).seconds < SOON
    assert way(replace(stack, tokens=1024), None, ENOUGH).arguments == {"grouped": False}
    assert way(replace(stack, tokens=1024), None, Budget(60.0, 2e8)).arguments == {"grouped": True}
    assert way(Stack(tokens=10**6), None, ENOUGH).arguments == {"grouped": False}, "two numbers are a kernel"


def test_two_patterns_are_waited_for_where_nothing_is_cheaper(monkeypatch):
    monkeypatch.setattr(asked, "SOON", 1e-6)
    assert way(LAST, None, ENOUGH).arguments == {"patterns": quick_patterns(LAST)}


@pytest.mark.parametrize(
    "stack",
    [
        replace(LAST, tokens=4096),
        Stack(tokens=20_000, mask="causal", loss_on="last"),
        replace(CAUSAL, tokens=10**6, window=8),
        replace(LAST, tokens=1024, embeddings="tied", vocab=2048, depth=12),
    ],
)
def test_an_error_says_what_it_takes_and_what_to_change(stack):
    with pytest.raises(OverBudgetError) as raised:
        way(stack, None, ENOUGH)
    said = re.fullmatch(
        rf"theory would take about .+ and .+ for {stack.tokens} tokens( with 2 .* samples)?, more than the 1.0 min of "
        r"--max-time(?: and the 3.7 GiB of --memory)?; --tokens (\d+) is within the limits.*",
        str(raised.value),
    )
    assert said is not None, str(raised.value)
    fewer = int(said[2])
    way(replace(stack, tokens=fewer), None, ENOUGH)
    with pytest.raises(OverBudgetError):
        way(replace(stack, tokens=2 * fewer), None, ENOUGH)


def test_waiting_is_offered_where_it_is_of_use(monkeypatch):
    monkeypatch.setattr(asked, "free_memory", lambda: 1e10)
    stack = replace(LAST, tokens=512, depth=12)
    with pytest.raises(OverBudgetError) as raised:
        way(stack, None, Budget(1.0, 4e9))
    longer = re.search(r"--max-time (\w+) allows it", str(raised.value))
    way(stack, 2, Budget(seconds_of(longer[1]), 4e9))
    with pytest.raises(OverBudgetError, match=r"more than the 977 KiB of --memory; .*--memory [\d.]+GB allows it"):
        way(stack, None, Budget(1e4, 1e6))
    with pytest.raises(OverBudgetError, match=r"--max-time [1-9]\d*s allows it"):
        way(replace(CAUSAL, tokens=4096, depth=12, heads=8), None, Budget(0.1, 4e9))
    with pytest.raises(OverBudgetError) as raised:
        way(replace(stack, tokens=10**6), None, ENOUGH)
    assert "allows it" not in str(raised.value)


def test_one_token_and_given_masks_have_no_fewer():
    little = Budget(1e-9, 4e9)
    for stack in (Stack(tokens=1), Stack(tokens=2, mask="given", mask_rows="[[1, 0], [1, 1]]")):
        with pytest.raises(OverBudgetError) as raised:
            way(stack, None, little)
        assert "--tokens" not in str(raised.value)


def test_without_a_rule_there_is_no_way():
    with pytest.raises(NoRuleError):
        way(Stack(embeddings="tied", dropout=0.1), None, ENOUGH)


def test_limits_that_nobody_gave_are_the_same_everywhere(monkeypatch):
    """A minute by the estimate and 4 GB, which a machine refuses that has less; those that are given ask a clock."""
    monkeypatch.setattr(asked, "free_memory", lambda: 1e8)
    assert Budget.of(None, None) == Budget(60.0, 4e9, free=1e8)
    assert Budget.of("90s", "1GB") == Budget(90.0, 1e9, is_clocked=True)
    with by_estimates():
        assert Budget.of("90s", "1GB") == Budget(90.0, 1e9)
    stack = replace(CAUSAL, tokens=256, depth=12, heads=8)
    assert chosen_way(stack, None, ENOUGH).cost.bytes > 1e8
    with pytest.raises(OverBudgetError, match="more than the 95.4 MiB of free memory; --tokens"):
        way(stack, None, Budget.of(None, None))


def test_a_slow_machine_goes_the_same_way_and_refuses(monkeypatch):
    """A least batch that takes thousands of seconds: only who gave a time is refused, and the choice is no other."""
    stack = replace(CAUSAL, tokens=256, depth=12, heads=8)
    quick = [way(stack, patterns, ENOUGH) for patterns in (None, 4096)]
    monkeypatch.setattr(asked, "_clocked", lambda *_, **__: 5000.0)
    assert [way(stack, patterns, ENOUGH) for patterns in (None, 4096)] == quick
    with pytest.raises(OverBudgetError, match="about 1.4 CPU h .* the 1.0 min of --max-time; --max-time 167m "):
        way(stack, None, replace(ENOUGH, is_clocked=True))
    longer = replace(ENOUGH, seconds=6000.0, is_clocked=True)
    assert way(stack, None, longer).arguments == quick[0].arguments
    with pytest.raises(OverBudgetError, match="theory for two sequences with .* takes about 1.4 CPU h and"):
        scale_of_batch(stack, None, None, replace(ENOUGH, is_clocked=True))


def test_a_fast_machine_predicts_what_the_estimate_would_refuse(monkeypatch):
    monkeypatch.setattr(asked, "_clocked", lambda *_, **__: 1.0)
    stack = replace(LAST, tokens=512, depth=12)
    with pytest.raises(OverBudgetError):
        way(stack, None, Budget(1.0, 4e9))
    assert way(stack, None, Budget(1.0, 4e9, is_clocked=True)).arguments == {"patterns": 2}


def test_groups_of_tokens_are_predicted_on_one_thread(monkeypatch):
    """As their estimate has it; what is not in groups keeps the threads that it is given."""
    threads = []

    def seen(stack, **arguments):
        threads.append({each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"})

    monkeypatch.setattr(asked, "predict", seen)
    with threadpool_limits(2, user_api="blas"):
        for grouped in (True, False):
            asked.Way(Stack(), {"grouped": grouped}, Cost()).predicted()
    assert threads[0] == {1}
    assert threads[1] != {1}
