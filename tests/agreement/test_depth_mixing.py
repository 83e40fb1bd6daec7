"""Residual streams that mix: the network against a slow twin, theory against samples, and known special cases."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from simulate import Cell, sample
from simulate.network import transformer as network
from simulate.network.conditioned import ConditionedEngine
from simulate.network.dense import DenseEngine
from simulate.network.random_streams import RandomStreams
from simulate.runs.inputs import network_inputs
from tests.helpers.agreement import off
from tests.helpers.twins.relaxed import GATE, deviation
from theory import Stack, predict
from theory.stack.depth_mixing import SCHEMES, mixing_matrix

# Root seed of the stacks that are compared.
MIXED = 77_04

_CHOICES = {
    "activation": ("gelu", "silu", "tanh"),
    "ffn": ("gated",),
    "ffn_ratio": (0.5, 2.0),
    "output_projection": ("random",),
    "normalization": ("rms", "none"),
    "mask": ("causal",),
    "layout": ("parallel",),
    "branch_scaling": ("depth", "layer"),
    "embedding_scale": (0.5, 2.0),
    "dropout": (0.1,),
    "query_key_scale": (0.5, 1.0),
    "sequences": (2,),
    "loss_on": ("last",),
    "positions": ("learned",),
}
_SIZES = {"placement": ("pre", "pre", "pre", "peri", "output", "scaled"), "width": (512, 1024), "vocab": (16, 64)}


def mixed_stack(generator: np.random.Generator) -> Stack:
    """One stack of 1 to 4 layers and 2 to 6 tokens; every other field relaxes the paper's setting with probability 1/4.

    Half of the matrices are published ones. The others have entries uniform in [-1, 1.5], 30% of which below the first
    column are 0.
    """
    while True:
        fields = {name: some[generator.integers(len(some))] for name, some in _SIZES.items()}
        fields |= {
            name: some[generator.integers(len(some))] for name, some in _CHOICES.items() if generator.random() < 0.25
        }
        fields |= {"depth": int(generator.integers(1, 5)), "tokens": int(generator.integers(2, 7))}
        rows = 1 + fields["depth"] * (1 if "layout" in fields else 2)
        matrix = np.tril(generator.uniform(-1.0, 1.5, (rows, rows)) * (generator.random((rows, rows)) > 0.3)).round(3)
        matrix[:, 0] += matrix[:, 0] == 0.0
        published = tuple(SCHEMES)[generator.integers(len(SCHEMES))]
        fields["depth_mixing"] = published if generator.random() < 0.5 else matrix
        try:
            return Stack(**fields)
        except ValueError:
            continue


SMALL = Stack(placement="pre", width=16, depth=3, tokens=4, vocab=5)
ROWS = np.tril(np.random.default_rng(0).uniform(0.5, 1.5, (7, 7)))


def recorded(stack, engine):
    """Inputs, labels and quantities of a batch of networks in float64."""
    x, labels, words = network_inputs(Cell(stack, "dense", dtype="float64"), engine)
    record = network.run(stack, engine, x, labels, words)
    return x, labels, record.per_network | {name: torch.stack(of, 1) for name, of in record.per_layer.items()}


@pytest.mark.parametrize("scheme", [*SCHEMES, json.dumps(ROWS.tolist())], ids=[*SCHEMES, "rows"])
def test_the_network_is_the_slow_one(scheme):
    assert deviation(replace(SMALL, depth_mixing=scheme)) < 1e-9


def random_cases(count):
    generator = np.random.default_rng(MIXED)
    return [mixed_stack(generator) for _ in range(count)]


@pytest.mark.parametrize("stack", random_cases(12), ids=[str(i) for i in range(12)])
def test_theory_is_what_samples_do(stack):
    """Every quantity of every layer is within 3% or 4 standard errors, in networks that are fixed by a seed."""
    worst, names = off(sample(stack, draws=64, seed=1), predict(stack))
    assert worst <= 1, names


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"query_key_scale": 1.0, "mask": "causal"},
        {"positions": "sinusoidal", "dropout": 0.1, "mask": "causal"},
        {"layout": "parallel", "normalization": "rms"},
        {"placement": "peri", "output_projection": "random"},
        {"placement": "unnormed", "final_norm": "added"},
        {"placement": "rezero"},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())) or "pre",
)
def test_ones_are_the_plain_residual_stream(fields):
    """To rounding, in theory and in both engines with the same random numbers."""
    plain = replace(SMALL, **fields)
    ones = replace(plain, depth_mixing="denseformer")
    before, after = predict(plain, patterns=8), predict(ones, patterns=8)
    assert all(np.allclose(before[name], after[name], rtol=1e-12, atol=0) for name in before)
    for engine in (DenseEngine, ConditionedEngine):
        *_, before = recorded(plain, engine(RandomStreams([0], 2), torch.float64))
        *_, after = recorded(ones, engine(RandomStreams([0], 2), torch.float64))
        assert all(torch.allclose(before[name], after[name], rtol=1e-7, atol=1e-12) for name in before)


def test_fixed_gates_are_factors_of_stream_and_branches():
    """A Highway with fixed gates has fields of its own. The gradient of a branch is T² that of the stream."""
    gated = predict(replace(SMALL, depth_mixing="highway", query_key_scale=1.0), patterns=8)
    factors = replace(SMALL, residual_scale=1 - GATE, branch_scale=GATE, query_key_scale=1.0)
    expected = {name: np.array(value) for name, value in predict(factors, patterns=8).arrays.items()}
    expected["stream_gradient_sq"] = expected["stream_gradient_sq"] * GATE**2
    assert all(np.allclose(gated[name], value, rtol=1e-12) for name, value in expected.items())


@pytest.mark.parametrize("scheme", ["attention_residuals", "hyper_connections"])
def test_norms_remove_the_factor_of_a_row(scheme):
    """With equal weights in each row, loss and gradients are those of Pre-LN."""
    mixed, plain = predict(replace(SMALL, depth_mixing=scheme)), predict(SMALL)
    same = [name for name in plain if name == "loss" or name.startswith("grad_sq_")]
    assert all(np.allclose(mixed[name], plain[name], rtol=1e-12) for name in same)
    assert mixed["hidden_energy"][-1] != pytest.approx(plain["hidden_energy"][-1], rel=0.5)


def test_a_chain_is_a_network_without_residual():
    chain = predict(replace(SMALL, depth_mixing=np.eye(7).tolist()))
    without = predict(replace(SMALL, residual_scale=0.0))
    assert all(np.allclose(chain[name], without[name], rtol=1e-12) for name in without)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depth_mixing": "densformer"}, "^depth_mixing must be one of 'none', .* Did you mean denseformer"),
        ({"depth_mixing": [[1, 1], [1, 1]]}, "^depth_mixing must be .* lower-triangular matrix without a row or"),
        ({"depth_mixing": [[1, 0], [1, 0]]}, "^depth_mixing must be .* lower-triangular matrix without a row or"),
        ({"depth_mixing": [[1, 0], [1e11, 1]]}, "^depth_mixing must be .* lower-triangular"),
        ({"depth_mixing": "[[1, 0], [1, NaN]]"}, "^depth_mixing must be .* lower-triangular"),
        ({"depth_mixing": [[1, 0], [1, 1]]}, "^depth_mixing requires a matrix of 7 rows, one more than sub-layers"),
        ({"placement": "post"}, "^depth_mixing requires a placement without a norm of the residual stream"),
        ({"placement": "residual"}, "^depth_mixing requires a placement without a norm of the residual stream"),
        ({"residual_scale": 0.5}, "^depth_mixing requires residual_scale 1"),
        ({"source_tokens": 2}, "^depth_mixing requires no source_tokens"),
        ({"experts": 2}, "^depth_mixing requires no experts"),
        ({"embeddings": "tied", "vocab": 64}, "^depth_mixing requires embeddings 'untied'"),
        ({"lower_placement": "peri", "lower_share": 0.4}, "^depth_mixing requires one placement"),
        ({"depth_mixing": np.eye(7), "branch_scale": 0}, "^depth_mixing requires a weight of the embedding in every"),
    ],
)
def test_other_networks_are_refused_in_one_line(fields, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **{"depth_mixing": "highway"} | fields)


def test_the_default_changes_no_key():
    assert "depth_mixing" not in SMALL.non_default() and mixing_matrix(SMALL) is None
    rows = replace(SMALL, depth=1, depth_mixing=((1, 0, 0), (1, 2, 0), (-0.0, 1, 1)))
    assert rows.depth_mixing == "[[1.0, 0.0, 0.0], [1.0, 2.0, 0.0], [0.0, 1.0, 1.0]]"
    assert Stack(**rows.non_default()) == rows
