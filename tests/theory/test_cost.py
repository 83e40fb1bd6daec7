"""What a prediction takes, as counted beforehand, beside operations that are counted while it runs, and its memory."""

import time
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.counted_operations import counted, peak_bytes
from theory import Stack, predict
from theory.configurations import PUBLISHED, stack_from_config
from theory.mean_field import cost, prediction
from theory.mean_field.cost import Cost, has_cheaper_groups, is_grouped, prediction_cost, quick_patterns
from theory.mean_field.text_law import TextLaw

BASE = Stack(placement="pre", width=512, vocab=64, depth=2)
QUERIES = replace(BASE, query_key_scale=1.0, heads=4)
TIED = replace(BASE, embeddings="tied")

NETWORKS = {
    "one head": (replace(QUERIES, tokens=16, heads=1), 64),
    "many heads": (replace(QUERIES, tokens=32, heads=16), 4),
    "post": (replace(QUERIES, placement="post", tokens=32), 16),
    "peri, causal": (replace(QUERIES, placement="peri", tokens=24, mask="causal"), 16),
    "chunks of one": (replace(QUERIES, tokens=128, heads=32, depth=1), 2),
    "deep": (replace(QUERIES, tokens=16, depth=24), 8),
    "rotary": (replace(QUERIES, tokens=24, rotary=1.0), 4),
    "rotary, grouped, gated": (
        replace(QUERIES, tokens=16, rotary=1.0, kv_heads=2, ffn="gated", activation="silu", norm_epsilon=1e-5), 8,
    ),
    "rotary, no norms": (replace(QUERIES, placement="unnormed", tokens=24, rotary=1.0), 4),
    "norms and caps": (replace(QUERIES, tokens=16, query_key_norm="head", logit_softcap=5.0), 32),
    "a source": (replace(QUERIES, tokens=16, source_tokens=12), 16),
    "dropped weights": (replace(BASE, tokens=16, attention_dropout=0.1), 64),
    "two sequences": (replace(QUERIES, tokens=16, sequences=2), 8),
    "causal": (replace(BASE, tokens=256, mask="causal"), None),
    "causal, GELU": (replace(BASE, tokens=256, mask="causal", activation="gelu"), None),
    "tied, own patterns": (replace(TIED, tokens=16, heads=4, query_key_scale=1.0), 16),
    "experts": (replace(BASE, tokens=24, experts=8, experts_per_token=2, mask="causal"), 16),
    "tied, experts": (
        replace(TIED, tokens=16, experts=16, experts_per_token=4, ffn="gated", activation="silu", shared_ratio=1.0), 8,
    ),
    "tied, rotary": (replace(TIED, tokens=16, heads=4, query_key_scale=1.0, rotary=1.0), 8),
}  # fmt: skip

GROUPED = {
    "rotary, 600 tokens": (replace(QUERIES, tokens=600, mask="causal", rotary=1.0), 4),
    "post, 2000 tokens": (replace(QUERIES, placement="post", tokens=2000, heads=8, mask="causal"), 4),
    "gated, normed, capped, 300 tokens": (
        replace(
            QUERIES, tokens=300, mask="causal", ffn="gated", activation="silu", query_key_norm="head", logit_softcap=5.0
        ), 4,
    ),
    "no norms, 600 tokens": (replace(QUERIES, placement="unnormed", tokens=600, mask="causal"), 4),
    "a window, 512 tokens": (replace(QUERIES, tokens=512, mask="causal", window=64), 2),
    "causal, 4000 tokens": (replace(BASE, tokens=4000, mask="causal"), None),
    "causal, GELU, 4000 tokens": (replace(BASE, tokens=4000, mask="causal", activation="gelu"), None),
    "experts, gated, 600 tokens": (
        replace(
            QUERIES, tokens=600, mask="causal", experts=16, experts_per_token=2, ffn="gated", activation="silu",
            shared_ratio=1.0,
        ), 2,
    ),
    "no mask, 1000 tokens": (replace(QUERIES, tokens=1000), 16),
    "tied, rotary, gated, 600 tokens": (
        replace(
            TIED, tokens=600, vocab=5000, mask="causal", query_key_scale=1.0, heads=8, kv_heads=2, rotary=1.0,
            ffn="gated", activation="silu", output_projection="random", output_scale=0.02,
        ), 4,
    ),
    "tied, causal, GELU, 2000 tokens": (
        replace(TIED, tokens=2000, vocab=4096, mask="causal", activation="gelu", output_scale=0.02), 4,
    ),
}  # fmt: skip

TEXTS = {
    "text, even weights": (replace(QUERIES, query_key_scale=0.0, tokens=512, mask="causal", sequences=2, depth=6), 2),
    "text": (replace(QUERIES, tokens=128, mask="causal", sequences=2, depth=1), 2),
    "text, tied, rotary": (
        replace(
            TIED, tokens=128, vocab=256, mask="causal", sequences=2, query_key_scale=1.0, heads=4, output_scale=0.15,
            rotary=1.0, output_projection="random", depth=1,
        ), 2,
    ),
}  # fmt: skip

FIXED = {
    "tied": (replace(TIED, tokens=16), 32),
    "tied, gated": (replace(TIED, tokens=12, ffn="gated", activation="silu"), 32),
    "tied, many words": (replace(TIED, tokens=16, vocab=20_000), 16),
}


@pytest.mark.parametrize("name", [*NETWORKS, *GROUPED])
def test_operations_and_memory_are_as_many_as_are_counted(name):
    """Within a factor of 1.25 of products and of 2.5 of the rest, of which seconds are made; of bytes, within two.

    At sizes of some megabytes; what is cached before is not held by the prediction, so that it is counted first.
    """
    stack, patterns = (NETWORKS | GROUPED)[name]
    wanted = {"patterns": patterns, "grouped": name in GROUPED}
    found, expected = prediction_cost(stack, **wanted), counted(stack, **wanted)
    assert expected.products > 0
    assert 1 / 1.25 < found.products / expected.products < 1.25
    assert 1 / 1.5 < found.matrices / expected.matrices < 1.5
    assert 1 / 2.5 < found.entries / expected.entries < 2.5
    held = peak_bytes(stack, **wanted)
    assert held > 1e6
    assert 0.5 < found.bytes / held < 2.0


@pytest.mark.parametrize("name", TEXTS)
def test_operations_and_memory_of_a_text(name):
    """As above, of a law of text, which has a probe beside every representative."""
    stack, patterns = TEXTS[name]
    law = TextLaw.zipf(1.0, stack.vocab)
    found = prediction_cost(stack, grouped=True, text=True, patterns=patterns)
    expected = counted(stack, text=law, patterns=patterns)
    assert 1 / 1.25 < found.products / expected.products < 1.25
    assert 1 / 1.5 < found.matrices / expected.matrices < 1.5
    assert 1 / 1.5 < found.entries / expected.entries < 1.5
    assert 0.5 < found.bytes / peak_bytes(stack, text=law, patterns=patterns) < 2.0


@pytest.mark.parametrize("name", FIXED)
def test_memory_is_as_much_as_is_held(name):
    stack, patterns = FIXED[name]
    predict(replace(stack, depth=1), patterns=patterns)
    found, expected = prediction_cost(stack, patterns=patterns).bytes, peak_bytes(stack, patterns=patterns)
    assert expected > 1e6
    assert 0.5 < found / expected < 2.0


def test_a_text_takes_as_often_what_a_window_takes():
    """Of many windows, which are predicted in chunks, operations are as many times as many; memory is a chunk's."""
    stack = replace(BASE, tokens=32, mask="causal")
    one, many = (prediction_cost(stack, windows) for windows in (1, 1024))
    assert many.products == pytest.approx(1024 * one.products)
    windows = np.arange(1024 * 33).reshape(1024, 33) % 50
    predict(stack, windows[:1])
    assert 0.5 < many.bytes / peak_bytes(stack, windows=windows) < 2.0


def test_seconds_add_up_and_memory_does_not():
    one = Cost(calls=1.0, entries=2.0, slow=3.0, products=4.0, matrices=5.0, bytes=6.0)
    both = one + one.times(3.0)
    assert both.seconds == pytest.approx(4.0 * one.seconds)
    assert both.bytes == 6.0


@pytest.mark.quick
def test_a_cost_is_had_in_a_millisecond():
    """Of a network of any size, whose prediction would take years."""
    huge = replace(QUERIES, width=2**16, tokens=10**6, depth=1000, heads=512, rotary=1.0)
    for stack in (huge, replace(TIED, tokens=10**6, vocab=10**6, query_key_scale=1.0), replace(BASE, tokens=10**6)):
        prediction_cost(stack)
        start = time.perf_counter()
        for _ in range(20):
            found = prediction_cost(stack)
        assert (time.perf_counter() - start) / 20 < 1e-3
        assert 0 < found.seconds < np.inf
    assert prediction_cost(huge).seconds > 1e15


@pytest.mark.quick
def test_a_cost_of_groups_is_had_in_a_millisecond():
    """Of a window, whose representatives are half as many as its tokens, too; nothing of their size is made."""
    huge = replace(QUERIES, width=2**16, tokens=10**6, depth=1000, heads=512, mask="causal")
    for window in (0, 8):
        start = time.process_time()
        for _ in range(20):
            found = prediction_cost(replace(huge, window=window), patterns=4, grouped=True)
        assert (time.process_time() - start) / 20 < 1e-3
    assert found.seconds > 1e9
    assert found.bytes > 1e15


def test_one_token_has_a_cost():
    for stack in (BASE, QUERIES, TIED, replace(TIED, query_key_scale=1.0), replace(QUERIES, rotary=1.0)):
        assert 0 < prediction_cost(replace(stack, tokens=1), patterns=1).seconds < 1


@pytest.mark.quick
def test_limits_hold_before_anything_is_computed(monkeypatch):
    stack = replace(QUERIES, tokens=4096, rotary=1.0, heads=8, loss_on="last")  # groups have no rule for it
    monkeypatch.setattr(prediction, "recursion", lambda *_: pytest.fail("nothing is to be computed"))
    with pytest.raises(ValueError, match=r"^max_time must be longer here, got 10 s: a prediction would take about"):
        predict(stack, max_time=10.0, memory=1e18)
    with pytest.raises(ValueError, match=r"^memory must be larger here, got 0.001 GB: a prediction would take about"):
        predict(stack, memory=1e6, max_time=1e18)
    monkeypatch.setattr(prediction, "_machine_memory", lambda: 1e9)
    with pytest.raises(ValueError, match="^tokens must be fewer here: .* the machine has 1 GB"):
        predict(stack, max_time=1e18)
    for name in ("max_time", "memory"):
        for bad in (0.0, -1.0, float("nan"), True):
            with pytest.raises(ValueError, match=f"^{name} must be a positive number or None"):
                predict(BASE, **{name: bad})


def test_limits_hold_for_corrections_too():
    with pytest.raises(ValueError, match="^max_time must be longer here"):
        predict(Stack(depth=1000), finite_width=True, max_time=1e-6)


def test_a_target_stops_at_the_time():
    stack = replace(QUERIES, tokens=4, depth=1)
    once = prediction_cost(stack, patterns=4096).seconds
    with pytest.raises(ValueError, match="^target must be larger, or max_time longer: with 4096 patterns"):
        predict(stack, target=1e-9, max_time=1.5 * once)


def test_what_takes_more_than_a_minute_says_so(monkeypatch):
    monkeypatch.setattr(prediction, "_LONG", 1e-6)
    with pytest.warns(UserWarning, match="^a prediction would take about .* max_time= refuses") as said:
        predict(BASE, patterns=4)
    assert said[0].filename == __file__
    with pytest.raises(ValueError, match="^max_time must be longer here"):
        predict(BASE)  # who asked for nothing waits for no more than that
    predict(BASE, max_time=1e3)  # who gives a limit knows


def test_no_patterns_are_as_many_as_take_some_seconds():
    """And 4096 where there is a target, as for whoever asks for precision."""
    stack = replace(QUERIES, tokens=32, heads=16, depth=24)
    count = quick_patterns(stack)
    assert 4 < count < 4096
    plain, asked = predict(stack), predict(stack, patterns=count)
    assert all(np.array_equal(plain[name], asked[name]) for name in plain)
    small = replace(QUERIES, tokens=2, depth=1, heads=1)
    aimed, precise = predict(small, target=1.0), predict(small, patterns=4096)
    assert all(np.array_equal(aimed[name], precise[name]) for name in aimed)


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


@pytest.mark.quick
def test_some_thousand_tokens_of_a_published_network_take_some_seconds():
    """Of four patterns at least: a fixed number on every machine."""
    stack = replace(stack_from_config(PUBLISHED["llama-3-8b"])[0], tokens=4096)
    assert is_grouped(stack)
    assert quick_patterns(stack, grouped=True) == 4
    assert 4 < prediction_cost(stack, grouped=True).seconds < 15
    assert quick_patterns(replace(stack, depth=2), grouped=True) > 16


def test_chunks_are_those_of_the_prediction(monkeypatch):
    """Kernels at once are as many as the cost counts: with smaller chunks memory falls with the estimate."""
    stack, patterns = NETWORKS["one head"]
    before = prediction_cost(stack, patterns=patterns).bytes, peak_bytes(stack, patterns=patterns)
    monkeypatch.setattr(cost, "CHUNK_ENTRIES", 2 * stack.rows**2 * stack.depth * 8)
    after = prediction_cost(stack, patterns=patterns).bytes, peak_bytes(stack, patterns=patterns)
    assert after[0] < before[0] / 2
    assert after[1] < before[1] / 2


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
