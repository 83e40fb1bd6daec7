"""The vocabulary: defaults, validation, what differs from the paper."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from theory import Stack
from theory.mean_field.inputs import loss_positions

SUM_TO_ZERO = "^norm_epsilon must be above 0 with placement .* and inputs that sum to zero"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("placement", "sideways", "^placement must be one of 'post', 'pre', .*, got 'sideways'"),
        ("width", 0, "^width must be an integer of at least 2, got 0"),
        ("width", 1, "^width must be"),
        ("width", 64.0, "^width must be an integer of at least 2, got 64.0"),
        ("width", True, "^width must be"),
        ("width", "64", "^width must be an integer of at least 2, got '64'"),
        ("depth", -1, "^depth must be an integer of at least 1, got -1"),
        ("tokens", 0, "^tokens must be"),
        ("vocab", 1, "^vocab must be an integer of at least 2, got 1"),
        ("output_scale", 0, "^output_scale must be a positive finite number, from 1e-100 to 1e100, got 0"),
        ("output_scale", float("nan"), "^output_scale must be"),
        ("output_scale", float("inf"), "^output_scale must be"),
        ("output_scale", None, "^output_scale must be"),
        ("value_gain", "1", "^value_gain must be .*, got '1'"),
        ("branch_scale", b"1", "^branch_scale must be .*, got b'1'"),
        ("depth", None, "^depth must be"),
    ],
)
def test_a_stack_that_makes_no_sense_cannot_be_made(field, value, message):
    with pytest.raises(ValueError, match=message):
        Stack(**{field: value})


def test_inputs_that_sum_to_zero_are_refused_where_their_mean_is_normalized():
    """Not where attention takes another mean, where the norm has an epsilon, or where none follows."""
    fields = {"input_correlation": -1 / 3, "tokens": 4}
    for more in ({"norm_epsilon": 0.1}, {"mask": "causal"}, {"query_key_scale": 1.0}, {"positions": "learned"}):
        Stack(placement="peri", **fields, **more)
    Stack(placement="pre", **fields)
    Stack(placement="output", tokens=2, input_gram=[[1, -2], [-2, 4]])  # one of twice the size, not normalized before


@pytest.mark.parametrize(("fields", "message"), [
    ({"leaky_slope": 0.2}, "^leaky_slope requires activation 'leaky_relu', got 'relu'"),
    ({"leaky_slope": 2.0, "activation": "leaky_relu"}, r"^leaky_slope must be a number in \[-1, 1\], got 2.0"),
    ({"label_groups": 9}, "^label_groups must be at most tokens = 8, and 0 with tied embeddings, got 9"),
    ({"label_groups": 2, "embeddings": "tied"}, "^label_groups must be at most tokens = 8, and 0 with tied embeddings"),
    ({"branches": "attention", "embeddings": "tied"}, "^branches must be 'both' with a source or tied embeddings"),
    ({"branches": "feed_forward", "source_tokens": 2}, "^branches must be 'both' with a source or tied embeddings"),
    ({"mask": "given"}, "^mask_rows must have tokens = 8 rows with mask 'given', .*, got ''"),
    ({"mask_rows": [[1, 0], [1, 1]], "tokens": 2}, "^mask_rows must have tokens = 2 rows with mask 'given'"),
    ({"mask": "given", "mask_rows": [[1, 0], [0, 0]]}, "^mask_rows must be a square matrix of 0 and 1 with a 1 in"),
    ({"encoder_depth": 2}, "^encoder_depth must be 0 without source_tokens, which an encoder reads, got 2"),
    ({"transform_gain": 0.5}, "^transform_gain must be 1 without output_transform, got 0.5"),
    ({"window": 2}, "^window requires mask 'causal', got 2 with mask 'none'"),
    ({"residual_scale": -1.0}, "^residual_scale must be a number from 0 to 1e100, or None .*, got -1.0"),
    ({"branch_gain": float("inf")}, "^branch_gain must be a positive finite number, from 1e-100 to 1e100 .*, got inf"),
    ({"branch_gain": 0.0}, "matrices of zeros have no norm; branch_scale 0 takes branches out.* or None .*, got 0.0"),
    ({"init_std": 0}, "^init_std must be a positive finite number, .*matrices of zeros have no norm.*, got 0"),
    ({"branch_scale": "own"}, r"^branch_scale must be a number from 0 to 1e100, or None \(own .*, got 'own'"),
    ({"experts": -1}, "^experts must be an integer of at least 0, got -1"),
    ({"experts": 4, "experts_per_token": 0}, "^experts_per_token must be an integer of at least 1, got 0"),
    ({"experts": 4, "experts_per_token": 5}, "^experts_per_token must be at most experts = 4, got 5"),
    ({"experts_per_token": 2}, "^experts must be at least 1 with experts_per_token, got 0"),
    ({"shared_ratio": 1.0}, "^experts must be at least 1 with shared_ratio, got 0"),
    ({"experts": 4, "routed_scale": 0}, "^routed_scale must be a positive finite number"),
    ({"experts": 4, "shared_ratio": 0.3}, "^shared_ratio must be 0, or make .* an integer from 1 .*, got 0.3"),
    ({"experts": 4, "shared_gate": "sigmoid"}, "^shared_ratio must be above 0 with shared_gate 'sigmoid', got 0"),
    ({"experts": 4, "dense_ratio": 2.0}, "^dense_layers must be above 0 with dense_ratio 2.0, got 0"),
    ({"experts": 4, "dense_layers": 6}, "^dense_layers must be less than depth = 6, .*, got 6"),
    ({"experts": 4, "branches": "attention"}, "^experts must be 0 with source_tokens, without feed-forward branches"),
    ({"router_gain": 2.0}, "^router_gain requires experts, got router_gain 2.0"),
    ({"residual_scale": 0, "branch_scale": 0}, "^residual_scale must be above 0 with a branch_scale of 0"),
    ({"residual_scale": 0, "placement": "rezero"}, "^residual_scale must be above 0 with a branch_scale of 0"),
    ({"residual_scale": 0, "attention_dropout": 0.1}, "^residual_scale must be above 0 with attention_dropout"),
    ({"residual_scale": 0, "tokens": 2, "input_correlation": -1}, "^residual_scale .* with inputs that sum to zero"),
    ({"ffn_ratio": 0.3}, "^ffn_ratio must make .* an integer from 1 to 9007199254740992, got 0.3 at width 512"),
    ({"input_gram": [[1]]}, "^input_gram must have tokens = 8 rows"),
    ({"input_gram": [[1, 2], [2, 1]], "tokens": 2}, "^input_gram must be a symmetric positive semidefinite matrix"),
    ({"input_gram": "[[1, 0], [0", "tokens": 2}, "^input_gram must be a symmetric positive semidefinite matrix"),
    ({"input_correlation": -0.5}, r"^input_correlation must be at least -1/\(tokens - 1\) = -0.142857"),
    (
        {"input_correlation": 0.5, "input_gram": np.eye(8)},
        "^input_gram must have .* cannot be combined with input_corr",
    ),
    ({"attention_dropout": 0.1, "placement": "peri"}, "^norm_epsilon must be above 0 with attention_dropout"),
    ({"input_gram": [[1, -2], [-2, 4]], "tokens": 2, "placement": "peri"}, SUM_TO_ZERO),
    ({"input_correlation": -1 / 7, "placement": "output"}, SUM_TO_ZERO),
    ({"input_correlation": -0.5, "tokens": 1, "source_tokens": 3, "placement": "peri"}, SUM_TO_ZERO),
    ({"width": 65, "positions": "sinusoidal"}, "^width must be even for sinusoidal positions, got 65"),
    ({"normalization": "none", "norm_epsilon": 1}, "^norm_epsilon must be 0 with normalization 'none', got 1"),
    ({"heads": 3}, "^heads must divide width = 512, got 3"),
    ({"query_key": "tied", "key_gain": 2.0}, "^query_gain and key_gain must be 1 with query_key "),
    ({"query_key_norm": "head", "query_key_scale": 1.0, "query_gain": 0.0}, "^query_gain .* above 0 with query_key_"),
    ({"heads": 8, "kv_heads": 3}, "^kv_heads must be 0 or divide heads = 8, .*, got 3"),
    ({"heads": 8, "kv_heads": 16}, "^kv_heads must be 0 or divide heads = 8, .*, got 16"),
    ({"heads": 8, "kv_heads": 4, "query_key": "tied"}, "^kv_heads must be 0 or divide .* with query_key 'tied'"),
    ({"width": 12, "heads": 12, "rotary": 1.0}, "^rotary must be 0 with a source, or rotate at least two"),
    ({"rotary": 1.0, "source_tokens": 2}, "^rotary must be 0 with a source, or rotate at least two"),
    ({"query_key_norm": "head"}, "^query_key_scale must be above 0 with query_key_norm"),
    ({"head_width": 32}, "^output_projection must be 'random' with head_width"),
    *(({"query_key_scale": 1.0, "query_key": "tied", name: value}, "^query_key must be 'untied' with query_key_norm")
      for name, value in (("query_key_norm", "head"), ("rotary", 1.0), ("logit_softcap", 1.0))),
])  # fmt: skip
def test_fields_that_contradict_each_other_or_have_no_effect_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Stack(**fields)


def test_numpy_integers_become_plain_ones():
    stack = Stack(width=np.int64(64), depth=np.int32(3), output_scale=np.float32(2))
    assert stack == Stack(width=64, depth=3, output_scale=2.0)
    assert type(stack.width) is int
    assert type(stack.output_scale) is float


@given(
    st.builds(
        Stack,
        placement=st.sampled_from(["post", "pre"]),
        width=st.integers(2, 1000),
        depth=st.integers(1, 100),
        tokens=st.integers(1, 64),
        vocab=st.integers(2, 1000),
        output_scale=st.floats(1e-3, 100),
    )
)
def test_what_differs_from_the_defaults_is_all_there_is(stack):
    assert Stack(**stack.non_default()) == stack
    assert all(getattr(Stack(), name) != value for name, value in stack.non_default().items())


def test_the_loss_on_the_last_token_is_that_of_every_sequence():
    assert loss_positions(Stack(tokens=3, sequences=2, loss_on="last")).tolist() == [0, 0, 1, 0, 0, 1]


def test_the_repr_is_short_and_makes_the_same_stack():
    stack = Stack(placement="pre", width=64, input_gram=[[1.0, 0.5], [0.5, 1.0]], tokens=2)
    assert repr(stack) == "Stack(placement='pre', width=64, tokens=2, input_gram='[[1.0, 0.5], [0.5, 1.0]]')"
    assert eval(repr(stack)) == stack
    assert repr(Stack()) == "Stack()"


@pytest.mark.parametrize("fields", [{}, {"input_correlation": 0.3}, {"input_gram": "[[2.0, 0.5], [0.5, 1.0]]"}])
def test_energies_of_inputs_are_the_diagonal_of_their_covariance(fields):
    stack = Stack(tokens=2, **fields)
    assert stack.input_energies.tolist() == stack.input_covariance.diagonal().tolist()


def test_a_million_tokens_are_described_without_their_covariance():
    """Which would be 8 TB: what sums to zero is told from the correlation alone."""
    assert Stack(placement="peri", tokens=10**6).tokens == 10**6
    with pytest.raises(ValueError, match=SUM_TO_ZERO):
        Stack(placement="peri", tokens=10**6, input_correlation=-1 / (10**6 - 1))
