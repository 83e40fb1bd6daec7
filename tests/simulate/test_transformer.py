"""The network against torch.nn modules that hold the same weights, and on which device its numbers stay."""

import numpy as np
import pytest
import torch

from simulate import sample
from simulate.network import transformer as network
from simulate.network.conditioned import ConditionedEngine
from simulate.network.dense import DenseEngine
from simulate.network.random_streams import RandomStreams
from simulate.runs.cell import Cell
from simulate.runs.inputs import network_inputs, source_inputs
from tests.helpers.twins.encoder import quantities
from theory import QUANTITIES, Stack

DRAWS = 3


def largest_deviation(stack: Stack, device: str = "cpu") -> float:
    """Over all quantities and draws, the relative deviation of the network from its twin, both in float64."""
    streams = RandomStreams([11], DRAWS, device)
    engine = DenseEngine(streams, torch.float64, keep=True)
    inputs = streams.normal(stack.tokens, stack.width, dtype=torch.float64)
    labels = streams.integers(stack.vocab, stack.tokens)
    record = network.run(stack, engine, inputs, labels)
    record.network("head_norm", engine.spectral_norm("Wemb"))
    found = record.per_network | {name: torch.stack(layers, 1) for name, layers in record.per_layer.items()}
    assert set(found) == {name for name, q in QUANTITIES.items() if q.in_paper}, (
        "a recorded quantity has no name, or a name is not recorded"
    )
    engine.weights = {role: [w.cpu() for w in weights] for role, weights in engine.weights.items()}
    worst = 0.0
    for draw in range(DRAWS):
        for name, value in quantities(stack, engine, inputs.cpu(), labels.cpu(), draw).items():
            mine = found[name][draw].cpu().numpy()
            assert mine.shape == value.shape, name
            assert (np.isnan(mine) == np.isnan(value)).all(), name
            worst = max(worst, float(np.nan_to_num(np.abs(mine / value - 1)).max()))
    return worst


# Rounding: some hundred products of width 12 at 1e-16 each; energies of gradients square them once more.
ROUNDING = 1e-11


@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize(
    ("depth", "tokens", "vocab", "output_scale"), [(1, 1, 2, 1.0), (2, 5, 7, 1.0), (4, 3, 20, 3.5), (3, 16, 12, 0.1)]
)
def test_equals_torch_modules_with_the_same_weights(placement, depth, tokens, vocab, output_scale):
    stack = Stack(
        placement=placement, width=12, depth=depth, tokens=tokens, vocab=vocab, output_scale=output_scale
    )  # fmt: skip
    assert largest_deviation(stack) < ROUNDING


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_equals_torch_modules_on_the_gpu(placement):
    assert largest_deviation(Stack(placement=placement, width=12, depth=3, tokens=5, vocab=7), "cuda") < 1e-10


ROWS = str([[int(j <= i) for j in range(8)] for i in range(8)])
KINDS = {
    "queries": {"query_key_scale": 1.0, "heads": 4, "kv_heads": 2, "rotary": 1.0, "mask": "given", "mask_rows": ROWS},
    "tied": {"placement": "pre", "embeddings": "tied", "mask": "causal", "window": 2},
    "zipf": {"labels": "zipf", "label_groups": 2, "loss_share": 0.5, "dropout": 0.1, "positions": "sinusoidal"},
    "source": {"placement": "rezero", "source_tokens": 3, "query_key_scale": 1.0, "input_correlation": 0.3},
    "experts": {"depth": 2, "experts": 2, "ffn": "gated", "shared_ratio": 1.0, "dense_layers": 1},
}


def numbers_without_memory(engine, fields):
    """The recorded tensors of a batch on torch's device without numbers: what waits or mixes devices raises."""
    cell = Cell(Stack(**{"width": 16, "depth": 1, "tokens": 8, "vocab": 8} | fields))
    streams = RandomStreams([0], 2)
    streams.device, streams._generators = torch.device("meta"), [None]
    made = engine(streams, torch.float32)
    record = network.run(cell.stack, made, *network_inputs(cell, made), source_inputs(cell.stack, made))
    return [*record.per_network.values(), *(one for layers in record.per_layer.values() for one in layers)]


@pytest.mark.parametrize("engine", [DenseEngine, ConditionedEngine])
@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_a_batch_stays_on_its_device(engine, fields):
    found = numbers_without_memory(engine, fields)
    assert len(found) > 10
    assert all(one.is_meta for one in found)


def test_full_gradients_and_weights_when_asked():
    streams = RandomStreams([5], 2)
    stack = Stack(width=6, depth=2, tokens=3, vocab=4)
    engine = DenseEngine(streams, torch.float64, keep=True)
    network.run(stack, engine, streams.normal(3, 6, dtype=torch.float64), torch.zeros(2, 3).long())
    for role, maps in (("W1", 2), ("W2", 2), ("WV", 2), ("Wemb", 1)):
        gradients = torch.stack(engine.full_gradients[role], 1)
        assert gradients.shape == (2, maps, *engine.weights[role][0].shape[1:])
        torch.testing.assert_close(gradients.square().sum((-2, -1)), engine.gradients.of(role), rtol=1e-12, atol=0)


@pytest.mark.parametrize("source", [0, 1])
def test_the_weight_of_one_token_is_dropped(source):
    """Of energies 1 + b, b = 0 where the weight is dropped: half of 64 draws, and outside of 16..48 once in 20000."""
    stack = Stack(placement="unnormed", tokens=1, source_tokens=source, width=64, depth=1, attention_dropout=0.5)
    energies = sample(stack, draws=64, seed=0)["cross_energy" if source else "attention_energy"][:, 0]
    own = sample(stack, draws=64, seed=0)["attention_energy"][:, 0] if source else 1.0
    dropped = int((energies < own + 0.5).sum())
    assert 16 <= dropped <= 48
