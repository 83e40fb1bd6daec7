"""Which single change would even out a network's layers, and what is said where none does."""

import re
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from checks.stacks.gradients_by_layer import layer_columns, layer_table
from gradbounds import budget
from gradbounds.actions import remedies
from gradbounds.actions.batch import Asked
from gradbounds.actions.remedies import code_of, is_rounded_away
from gradbounds.cli import main
from gradbounds.described_network import Description
from gradbounds.layer_summary import profiles
from gradbounds.network_text import with_cosines
from gradbounds.result import Frames, Result
from theory import Stack, predict
from theory.mean_field.cost import prediction_cost
from theory.mean_field.tied.text_output import LARGEST_OWN_PROBABILITY, OwnTokenError

STACK = Stack(width=64, depth=2, tokens=4, vocab=16)
TIED = replace(STACK, depth=6, placement="pre", embeddings="tied")


@pytest.mark.parametrize("change", ["tied", "untied"])
def test_lines_of_code_multiply_embeddings_and_positions_alone(change):
    """The embedded tokens grow by the factor of the change, and the head does not change."""
    tied = replace(TIED, positions="learned", embedding_scale=0.5, heads=4)
    _, *untie, find, line = code_of(tied, replace(tied, embeddings=change, embedding_scale=2.0))
    assert len(untie) == (change == "untied") and not code_of(tied, replace(tied, embedding_scale=2.0, heads=2))
    model = nn.ModuleList([nn.Embedding(16, 64), nn.Embedding(4, 64), nn.Linear(64, 16, bias=False)])
    model.append(nn.Embedding(32, tied.heads))  # as T5's relative positions
    model.append(nn.Embedding(4, 64))  # as T5's encoder, which shares the weight
    model[4].weight = model[1].weight
    biases = model[3](torch.arange(32)).clone()
    if change == "tied":
        model[2].weight = model[0].weight
    inputs, head = (lambda: (model[0](torch.arange(4)) + model[1](torch.arange(4))).detach()), model[2].weight.clone()
    before = inputs()
    exec(f"{find}\n{line}", {"model": model, "torch": torch})
    assert (
        torch.equal(inputs(), 4.0 * before)
        and torch.equal(biases, model[3](torch.arange(32)))
        and torch.equal(model[2].weight, head)
    )


@pytest.mark.parametrize(
    ("stack", "change"),
    [
        (replace(STACK, depth=6, tokens=8, vocab=512, output_projection="random"), {"depth_scaling": "depth"}),
        (replace(STACK, depth=6, placement="pre"), {"embedding_scale": 5.0}),
        (replace(STACK, depth=6, placement="pre", query_key_scale=0.5, heads=4), {"embedding_scale": 5.0}),
        (
            replace(TIED, vocab=4096, output_scale=0.5),
            {"embedding_scale": 5.0},
        ),
        (TIED, {"embeddings": "untied", "embedding_scale": 5.0}),
        (replace(STACK, depth=6, tokens=10**6), {"placement": "peri"}),
    ],
)
def test_what_is_uneven_over_layers_has_a_remedy(stack, change):
    """One change that leaves a fifth between first and last layer, or half in the logarithm, of all matrices."""

    def furthest(network):
        norms = layer_table(predict(network, patterns=64), None)
        norms = norms[norms["quantity"].str.startswith("grad_") & (norms["layer"] > 0)]
        ends = [rows["predicted"].iloc[[0, -1]] for _, rows in norms.groupby("quantity")]
        assert len(ends) >= 3
        return float(np.exp(max(abs(np.log(first / last)) for first, last in ends)))

    table = layer_table(predict(stack, patterns=64), None)
    found, line = remedies.remedy(stack, table, budget.Budget.of("1m", "1GB"))
    assert line == found.line() and found.values == change
    head = line.partition("Not")[0]
    assert ("embedded tokens" in head) == (stack.embeddings == "tied" and [*change] == ["embedding_scale"])
    here, there = furthest(stack), furthest(replace(stack, **change))
    assert here > 1.5 and there < max(1.2, here**0.5) and found.first_over_last == pytest.approx(there, abs=0.03)
    smaller = replace(stack, **change | {"embedding_scale": 2.0})
    assert "embedding_scale" not in change or there < 1.2 <= furthest(smaller), "the smallest of 1, 2, 5"


def test_a_remedy_is_one_line_for_compare(capsys):
    assert main(["predict", "--placement", "pre"]) == 0
    row = "even out the layers: --compare embedding_scale=5 (rms of input embeddings 1 -> 5); cost: layers 2 to 6 then"
    assert f"{row} add 11% of the stream's mean square, not 76% Learning" in " ".join(capsys.readouterr().out.split())


NO_LIMITS = budget.Budget.of(None, None)
ALIKE = Stack(placement="pre", width=64, depth=12, tokens=64, vocab=64, embedding_scale=0.1)
CHANGES = [
    (ALIKE, 5.0),
    (replace(ALIKE, vocab=4096, embeddings="tied", embedding_scale=0.05, output_scale=0.3), 2.0),
    (replace(ALIKE, ffn="gated", query_key_scale=1.0, heads=2, mask="causal", depth=8), None),  # cosine 0.7
]


def _run(stack, table):
    return Result(about="", values={"stack": stack}, tables=Frames({"layers": table}))


@pytest.mark.parametrize(("stack", "size"), CHANGES)
def test_an_option_has_embeddings_whose_tokens_differ(stack, size):
    """Its numbers are those of more samples, and the next smaller embeddings have a cosine over 1/2."""

    def layers(scale):
        how = {"text": remedies.law_of(stack, "zipf:1"), "patterns": 8, "grouped": True}
        table = layer_columns(predict(replace(stack, embedding_scale=scale), **how), None)
        return table, profiles(with_cosines(table), "predicted")

    streams = {scale: layers(scale)[1] for scale in (stack.embedding_scale, 1.0, 2.0, 5.0)}
    assert (np.diff([each["cosine"] for each in streams.values()], axis=0) < 0.0).all(), "it falls in every layer"
    option = remedies.option_of(_run(stack, layers(stack.embedding_scale)[0]), "zipf:1", None, NO_LIMITS)
    assert (option and option.values) == (size and {"embedding_scale": size})
    if option:
        before, smaller, after = (streams[each] for each in (stack.embedding_scale, {5.0: 2.0, 2.0: 1.0}[size], size))
        shares = [1.0 - each["hidden_energy"][0] / each["hidden_energy"][-1] for each in (before, after)]
        numbers = pytest.approx((*shares, after["cosine"].max()), abs=0.03)
        assert (*option.added, option.cosine) == numbers and option.cosine <= 0.5 < smaller["cosine"].max()


@pytest.mark.parametrize(
    ("cosines", "size"),
    [
        ({2.0: 0.5, 5.0: 0.0}, 2.0),
        ({2.0: 0.6, 5.0: None}, 2.0),
        ({2.0: 0.95, 5.0: None}, None),
        ({2.0: 0.6, 5.0: 0.5}, 5.0),
        ({0.2: 0.87, 0.5: 0.7, 1.0: None, 2.0: None, 5.0: None}, 0.5),  # a tied network predicts its own token
        ({0.2: 0.89, 0.5: None, 1.0: None, 2.0: None, 5.0: None}, None),
    ],
)
def test_an_option_has_a_cosine_of_at_most_one_half_or_the_lowest(cosines, size, monkeypatch):
    """A network that predicts its own token too often has no gradients, so that smaller embeddings are tested."""
    sizes, stack = [], replace(ALIKE, experts=8, experts_per_token=2)
    table = {"quantity": np.array(["hidden_energy", "cosine"]), "layer": np.ones(2, int)}

    def stream_of_text(changed, law):
        sizes.append(changed.embedding_scale)
        cosine = cosines[changed.embedding_scale]
        stream = {"hidden_energy": np.array([1.0, 4.0]), "token_correlation": np.array([0.0, 4.0 * (cosine or 0.0)])}
        return stream, LARGEST_OWN_PROBABILITY + 0.01 * (cosine is None)

    monkeypatch.setattr(remedies, "stream_of_text", stream_of_text)
    option, fine = (
        remedies.option_of(_run(stack, table | {"predicted": each}), "zipf:1", None, NO_LIMITS)
        for each in ([16.0, 0.89], [16.0, 0.88])
    )
    cost, of_test = (
        remedies.cost_of_option(stack, None).seconds,
        prediction_cost(replace(stack, sequences=1), patterns=2, grouped=True, text=True, coarse=True).seconds,
    )
    assert cost == pytest.approx(0.55 * of_test), "a test has no backward pass"
    assert not remedies.option_of(
        _run(stack, table | {"predicted": [16.0, 0.89]}), "zipf:1", None, replace(NO_LIMITS, seconds=0.9 * cost)
    )
    assert fine is None and len(sizes) <= 5 and (option and option.values["embedding_scale"]) == size
    words = (f"rms of input embeddings 0.1 -> {size}".removesuffix(".0"), cosines.get(size), (0.0, 0.75))
    assert option is None or (option.words, option.cosine, option.added, option.own) == (
        *words,
        LARGEST_OWN_PROBABILITY,
    )
    # The share of the fullest of 8 experts in 300 routers, each with 4000 tokens of this cosine; +- 0.008.
    assert option is None or option.fullest == pytest.approx(
        {0.5: 0.691, 0.6: 0.743, 0.7: 0.796}[option.cosine], abs=0.025
    )


def test_rows_state_the_option_and_the_change_for_sgd():
    table = layer_columns(predict(replace(ALIKE, vocab=16)), None)
    option = remedies.Option("rms a -> b", {"embedding_scale": 2.0}, 0.456, (0.97, 0.65), 0.13)
    change = remedies.Remedy("rms a -> c", {"embedding_scale": 50.0}, 1.1, added=(0.97, 0.004))
    partly = replace(change, first_over_last=1.6)
    rows = [remedies.change_rows(table, None, *each) for each in ((change, option), (change, None), (partly, None))]
    effect = "(rms a -> b): tokens' cosine at most 0.46, tied head predicts the token itself with 13%"
    added, label = (
        "; cost: layers 2 to 12 then add {}% of the stream's mean square, not 97%",
        "  if you use SGD   to even out the layers",
    )
    assert rows[0] == [f"  option           --compare embedding_scale=2 {effect}{added.format(65)}"]
    (row,) = remedies.change_rows(table, None, None, replace(option, own=0.0, fullest=0.348))
    assert "cosine at most 0.46, fullest expert under 35%; cost: " in row
    assert rows[1:] == [
        [f"{label}{words}: --compare embedding_scale=50 (rms a -> c){added.format(0.4)}"] for words in ("", " partly")
    ]


@pytest.mark.parametrize(
    ("after", "first", "ratio"), [((1.0, 0.6), 4.0, 1 / 0.6), ((1.9, 0.3), 12.0, 1 / 0.3), ((0.4, 0.4), 4.0, None)]
)
def test_the_change_of_a_batch_has_the_worst_ratio_either_way(after, first, ratio, monkeypatch):
    """A ratio of 0.4 counts as 2.5; a change that does not halve the logarithm of the worst ratio is not advised."""

    def predicted(w2, wv):
        names = np.repeat(["grad_W2", "grad_WV", "hidden_energy"], 2)
        table = {"quantity": names, "layer": [1, 2] * 3, "predicted": [w2, 1.0, wv, 1.0, 1.0, 1.0]}
        return Result(about="", tables=Frames({"layers": table}))

    monkeypatch.setattr(remedies, "quick_batch", lambda *asked, **how: predicted(*after))
    before, how = predicted(first, 0.6), dict.fromkeys(("patterns", "max_time"))
    found = remedies.change_of_batch(Asked({}, "zipf:1"), 64, Description(), before, "", {}, **how)
    assert (found and found.first_over_last) == (ratio and pytest.approx(ratio))


def test_a_change_that_makes_more_matrices_less_even_is_not_advised():
    """Pre-LN evens out the small gradients of queries in Post-LN, and no others."""
    assert not remedies._evens_out({"WQ": 0.001, "WV": 1.0, "W2": 1.0}, {"WQ": 1.2, "WV": 2.0, "W2": 3.0})
    assert remedies._evens_out({"WQ": 3.0, "WV": 2.0, "W2": 1.0}, {"WQ": 1.2, "WV": 1.1, "W2": 1.3})


def test_what_is_even_or_takes_long_has_no_remedy(monkeypatch):
    """Nothing is said of what is even; else why there is none, with what could be asked."""
    limits = budget.Budget.of("1m", "1GB")
    even, pre = (replace(STACK, depth=6, placement=name) for name in ("deepnorm", "pre"))
    assert remedies.remedy(even, layer_table(predict(even), None), limits) == (None, "")
    table = layer_table(predict(pre), None)
    monkeypatch.setattr(remedies, "furthest", lambda table: 4.0)
    found, line = remedies.remedy(pre, table, limits)
    assert found is None
    assert re.fullmatch(
        r"- No change that evens out the layers' gradients was found: .* the ratio: 0 of \d \(in 2 s\)\.",
        line,
    )
    assert [*map(remedies.search_seconds, (0.1, 4.0, 60.0))] == [2.0, 8.0, 20.0], "twice what the prediction takes"
    monkeypatch.setattr(remedies, "_SECONDS", 1e-9)
    assert remedies.remedy(pre, table, limits)[1].endswith("the ratio: 0 of 0 (in 1e-09 s).")


def test_a_change_that_has_no_gradients_is_not_advised(monkeypatch):
    """A changed network that predicts its own token raises an error where tokens are grouped."""
    monkeypatch.setattr(remedies.Way, "predicted", mock.Mock(side_effect=OwnTokenError("", 0.43, 11.5)))
    assert remedies.remedy(TIED, layer_table(predict(TIED), None), budget.Budget.of("1m", "1GB"))[0] is None


@pytest.mark.parametrize(("branch", "is_lost"), [(2**-11, True), (2**-8, False)])
def test_bfloat16_rounds_small_branches_away(branch, is_lost):
    """The part of 94 branches that a sum in bfloat16 keeps is 0.28 and 0.97, for branches 2^-11 and 2^-8 times it."""
    generator = torch.Generator().manual_seed(0)
    stream = start = torch.randn(65536, generator=generator).to(torch.bfloat16)
    branches = branch * torch.randn(94, 65536, generator=generator)
    for each in branches:
        stream = stream + each.to(torch.bfloat16)
    added, exact = (stream - start).float(), branches.sum(0)
    assert (float((added * exact).sum() / exact.square().sum()) < 0.5) == is_lost
    assert is_rounded_away(94 * branch**2, 48) == is_lost
