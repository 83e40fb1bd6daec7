"""What the theory of a first step takes, as counted beforehand, beside processor time and memory."""

import time
import tracemalloc

import pytest

from theory import Stack
from theory.first_step.cost import first_step_cost
from theory.first_step.prediction import first_step


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "polar"])
def test_the_estimate(optimizer):
    """Within a factor of three of memory, and of five of time, for these machines are shared."""
    stack = Stack(placement="pre", width=128, depth=2, tokens=8, vocab=512, mask="causal")
    cost = first_step_cost(stack, optimizer)
    tracemalloc.start()
    began = time.process_time()
    first_step(stack, optimizer)
    seconds, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert cost.seconds / 5 < seconds < cost.seconds * 5
    assert cost.bytes / 3 < peak < cost.bytes * 3


def test_it_grows_with_what_is_asked_for():
    """Signs take longest; layers cost, and tokens where samples are as many."""
    stack = Stack(width=512, depth=4, tokens=16, vocab=4096)
    sgd, adam = (first_step_cost(stack, name).seconds for name in ("sgd", "adam"))
    assert sgd < adam
    for field, value in (("depth", 8), ("tokens", 64)):
        larger = Stack(**({"width": 512, "depth": 4, "tokens": 16, "vocab": 4096} | {field: value}))
        assert first_step_cost(larger, "sgd").seconds > sgd
