"""Initializations against torch's own: the network and the theory share them, so that neither can tell the other."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from scipy import stats
from torch import nn

from simulate.network.random_streams import RandomStreams
from theory import Stack
from theory.stack.initializations import INITIALIZATIONS
from theory.stack.weights import gain, law, weight_shapes

DRAWN = {
    "xavier_normal": nn.init.xavier_normal_,
    "xavier_uniform": nn.init.xavier_uniform_,
    "fan_in": partial(nn.init.kaiming_normal_, nonlinearity="linear"),
    "he": partial(nn.init.kaiming_normal_, nonlinearity="relu"),
}


def test_gains_are_those_of_torch():
    """65536 entries and more: their mean square has a relative error of 0.55% at most."""
    generator = torch.Generator().manual_seed(0)
    for name, draw in DRAWN.items():
        stack = Stack(width=256, ffn_ratio=4.0, initialization=name, output_projection="random")
        for role, (d_in, d_out) in weight_shapes(stack).items():
            weight = draw(torch.empty(d_out, d_in), generator=generator)
            assert gain(stack, role) == pytest.approx(d_in * float(weight.square().mean()), rel=0.03), (name, role)


@pytest.mark.parametrize("cut", [0.5, 2.0, 5.0])
def test_cut_normals_are_those_of_torch(cut):
    """65536 entries: the mean square has a relative error of 0.55% at most, and none is beyond the cut."""
    stack = Stack(width=256, init_std=0.03, query_key_scale=0.48, truncation=cut)
    drawn = nn.init.trunc_normal_(torch.empty(256, 256), 0.0, 0.03, -0.03 * cut, 0.03 * cut, torch.Generator())
    ours = RandomStreams([0], 1).entries(256, 256, std=1.0, law=law(stack), dtype=torch.float32)
    assert ours.square().mean() == pytest.approx(1, rel=0.03)
    assert float(ours.abs().max()) * law(stack).variance ** 0.5 <= cut * (1 + 1e-6)
    for role in ("WV", "WQ"):  # 0.48 is 0.03 * sqrt(256)
        assert gain(stack, role) == pytest.approx(256 * float(drawn.square().mean()), rel=0.03)
    assert gain(stack, "W1") == pytest.approx(256 * 0.03**2 * stats.truncnorm.var(-cut, cut), rel=1e-6)


def test_the_gain_of_torch_layers():
    """As constructed, with one matrix of queries, keys and values; of a global generator, which is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(256, 4, 1024)
    weights = {
        "WV": layer.self_attn.in_proj_weight[512:], "WO": layer.self_attn.out_proj.weight,
        "W1": layer.linear1.weight, "W2": layer.linear2.weight,
    }  # fmt: skip
    stack = Stack(width=256, ffn_ratio=4.0, initialization="pytorch", output_projection="random")
    assert set(weights) == set(weight_shapes(stack))
    assert set(INITIALIZATIONS) == {*DRAWN, "pytorch"}
    for role, weight in weights.items():
        assert gain(stack, role) == pytest.approx(weight.shape[1] * float(weight.detach().square().mean()), rel=0.03)


def test_standard_deviations_of_ones_own():
    """Written out, since the network takes them from where theory does."""
    stack = Stack(
        width=64, depth=6, ffn_ratio=4.0, ffn="gated", output_projection="random", init_std=0.02, value_gain=0.5,
        projection_gain=1.5, gate_gain=2.0, up_gain=3.0, down_gain=0.7, depth_scaling="depth",
    )  # fmt: skip
    ends = {"WO": 0.02 * 1.5, "W2": 0.02 * 0.7}
    usual = {"WV": 0.02 * 0.5, "WG": 0.02 * 2.0, "W1": 0.02 * 3.0}

    def stds(one):
        return {role: (gain(one, role) / shape[0]) ** 0.5 for role, shape in weight_shapes(one).items()}

    assert stds(stack) == pytest.approx(usual | {role: std / 12**0.5 for role, std in ends.items()})
    by_layer = replace(stack, depth_scaling="layer")
    assert stds(by_layer.of_layer(3)) == pytest.approx(usual | {role: std / 6**0.5 for role, std in ends.items()})
    with_w1 = stds(replace(stack, depth_scaling="layer_up").of_layer(3))
    assert with_w1 == pytest.approx(stds(by_layer.of_layer(3)) | {"W1": usual["W1"] / 6**0.5})
    with pytest.raises(ValueError, match="^depth_scaling must be 'none' or 'depth' where layers are alike"):
        gain(replace(stack, depth_scaling="layer_up"), "W1")
    with pytest.raises(ValueError, match="^depth_scaling must be 'none' or 'depth' where layers are alike"):
        gain(by_layer, "W2")
    assert stds(replace(stack, depth_scaling="none")) == pytest.approx(usual | ends)
