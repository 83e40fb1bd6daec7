"""Norms of queries and keys, rotary positions and capped logits: the network against torch's modules, and limits."""

import numpy as np
import pytest
import torch

from simulate import Cell
from simulate.network import transformer as network
from simulate.network.dense import DenseEngine
from simulate.network.random_streams import RandomStreams
from simulate.runs.inputs import network_inputs
from tests.helpers.twins.attention_module import ROLES, Model
from theory import Stack, predict

MODULES = [
    {"placement": "pre", "query_key_norm": "head", "rotary": 1.0, "rotary_base": 7.0, "window": 2},
    {
        "placement": "peri",
        "query_key_norm": "all",
        "rotary": 1.0,
        "rotary_base": 7.0,
        "logit_softcap": 0.7,
        "tokens": 3,
    },
]


@pytest.mark.parametrize("case", MODULES, ids=lambda case: case["placement"])
def test_the_network_is_that_of_torchs_modules(case):
    """Of the same matrices, but for the order of a head's coordinates, of which torch's module rotates neighbours."""
    stack = Stack(**{"width": 16, "depth": 2, "tokens": 4, "vocab": 5, "heads": 4, "kv_heads": 2, "mask": "causal",
                     "query_key_scale": 1.5, "normalization": "rms", "norm_epsilon": 0.1, "output_projection": "random",
                     } | case)  # fmt: skip
    engine = DenseEngine(RandomStreams([0], 1), torch.float64, keep=True)
    x, labels, _ = network_inputs(Cell(stack, "dense", dtype="float64"), engine)
    record = network.run(stack, engine, x, labels)
    model = Model(stack).double()
    for role, name in ROLES.items():
        for layer, matrix in zip(model.layers, engine.weights[role], strict=True):
            columns = matrix[0].unflatten(1, (-1, 4))
            columns = columns[:, :, [0, 2, 1, 3]] if name in "qk" else columns
            layer.maps[name].weight.data = columns.flatten(1).T
    model.head.weight.data = engine.weights["Wemb"][0][0].T
    for name, value in model.quantities(x[0], labels[0]).items():
        own = record.per_network[name] if name in record.per_network else torch.stack(record.per_layer[name], 1)[0]
        np.testing.assert_allclose(own.detach().numpy().squeeze(), value, rtol=1e-9, err_msg=name)


def test_without_queries_nothing_is_done_to_them():
    plain = predict(Stack(depth=2))
    for fields in ({"rotary": 1.0}, {"logit_softcap": 1.0}):
        other = predict(Stack(depth=2, **fields))
        for name, value in plain.items():
            np.testing.assert_allclose(other[name], value, rtol=1e-9, err_msg=name)


def test_a_norm_makes_the_scale_of_no_effect_but_for_gradients_of_its_own():
    """Which are smaller by s²."""
    fields = {"depth": 2, "tokens": 4, "vocab": 16, "width": 64, "query_key_norm": "head"}
    small, large = (predict(Stack(**fields, query_key_scale=s), patterns=16) for s in (0.1, 2.0))
    for name, value in small.items():
        ratio = 400.0 if name in ("grad_sq_WQ", "grad_sq_WK") else 1.0
        np.testing.assert_allclose(value, ratio * large[name], rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("fields", [{"query_key_norm": "head"}, {"rotary": 1.0}, {"logit_softcap": 1.0}], ids=str)
def test_what_has_no_rule(fields):
    with pytest.raises(ValueError, match="^query_key must be 'untied' with query_key_norm, rotary or logit_softcap"):
        Stack(query_key_scale=1.0, query_key="tied", **fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"width": 12, "heads": 12, "rotary": 1.0}, "^rotary must be 0 with a source, or rotate at least two"),
        ({"rotary": 1.0, "source_tokens": 2}, "^rotary must be 0 with a source, or rotate at least two"),
        ({"query_key_norm": "head"}, "^query_key_scale must be above 0 with query_key_norm"),
        ({"heads": 8, "kv_heads": 3}, "^kv_heads must be 0 or divide heads = 8"),
        ({"head_width": 32}, "^output_projection must be 'random' with head_width"),
    ],
)
def test_what_attention_does_not_take(fields, said):
    with pytest.raises(ValueError, match=said):
        Stack(**fields)
