"""Tied embeddings: words that repeat, both uses of the matrix, and the overlaps on the way back."""

from dataclasses import replace

import numpy as np
import pytest

from gradbounds.actions.verify import check
from gradbounds.cli import main
from simulate import sample
from simulate.text import read_windows
from tests.helpers.agreement import deviations, off
from tests.helpers.twins.relaxed import deviation
from theory import Stack, predict

TEXT = "the cat sat on the mat and the dog sat on the cat and the cat saw the dog on the mat " * 3
TIED = {"embeddings": "tied", "sequences": 2, "output_scale": 1.3, "label_smoothing": 0.1}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("output_transform", ["none", "added"])
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_the_network_is_the_slow_one_on_a_text(text, placement, output_transform):
    stack = Stack(placement=placement, width=12, depth=2, tokens=4, vocab=9, output_transform=output_transform, **TIED)
    assert deviation(stack, read_windows(text, tokens=4, vocab=9)) < 1e-9


def test_behind_a_transform_words_add_to_their_own_matrix_alone(text):
    """All but the gradient of W_emb is as untied; that has the inputs' part too, which repeated words share."""
    tied = Stack(width=1024, depth=2, tokens=4, vocab=9, output_transform="added", activation="gelu", **TIED)
    samples = sample(tied, draws=256, seed=0, text=text)
    windows = samples.cell.text.ids
    assert off(samples, predict(tied, windows))[0] <= 1
    untied = predict(replace(tied, embeddings="untied"), windows)
    others = [name for name in untied if name != "grad_sq_Wemb"]
    assert all(np.array_equal(untied[name], predict(tied, windows)[name]) for name in others)
    assert {row["quantity"] for row in deviations(samples, untied) if row["of what is allowed"] > 1} == {"grad_sq_Wemb"}


@pytest.mark.parametrize(
    "case", [{"placement": "pre", "mask": "causal"}, {"sequences": 2, "label_smoothing": 0.1}], ids=str
)
def test_theory_is_what_samples_do_on_a_text(text, case):
    """Words that repeat, and labels that are words of the window; within 3% or 4 standard errors."""
    stack = Stack(**{"width": 1024, "depth": 2, "tokens": 5, "vocab": 12, "embeddings": "tied"} | case)
    samples = sample(stack, draws=128, seed=0, text=text)
    worst, names = off(samples, predict(stack, samples.cell.text.ids))
    assert worst <= 1, names


USUAL = {"activation": "gelu", "ffn_ratio": 4.0, "mask": "causal", "output_projection": "random"}
QUERIES = [
    {"query_key_scale": 1.0, "width": 1024, "depth": 1},
    {"query_key_scale": 1.0, "placement": "pre", "depth": 3},
    USUAL | {"query_key_scale": 1.5, "heads": 4, "kv_heads": 2, "window": 3, "logit_softcap": 2.0},
    USUAL | {"query_key_scale": 0.8, "heads": 8, "head_width": 64, "rotary": 0.5, "placement": "pre"},
    USUAL | {
        "init_std": 0.02, "depth_scaling": "depth", "embedding_scale": 0.02, "output_scale": 0.64, "placement": "pre",
        "query_key_scale": 0.64, "positions": "learned", "heads": 16, "norm_epsilon": 1e-5,
    },
    {"query_key_scale": 0.7, "heads": 8, "query_key_norm": "all", "placement": "peri", "sequences": 2},
    {"attention_dropout": 0.3, "query_key_scale": 1.0, "ffn": "gated", "activation": "silu", "heads": 2},
]  # fmt: skip


@pytest.mark.parametrize("case", QUERIES, ids=str)
def test_random_queries_and_keys(case):
    """Every quantity of every layer within 3% or 4 standard errors, of samples and of theory together."""
    stack = Stack(**{"width": 512, "depth": 2, "tokens": 4, "vocab": 64, "embeddings": "tied"} | case)
    worst, names = off(sample(stack, draws=128, seed=0), predict(stack, patterns=256))
    assert worst <= 1, names


PARALLEL = {"layout": "parallel"}
BRANCHES = [
    {},
    PARALLEL,
    PARALLEL | {"placement": "pre", "depth": 3},
    PARALLEL | USUAL | {"placement": "post", "query_key_scale": 1.0, "heads": 4},
    PARALLEL | {"placement": "pre", "feed_forward_factor": 0.5, "attention_factor": 2.0, "residual_scale": 0.7},
    {"depth": 6, "placement": "pre", "branch_scale": 0.3},
]


@pytest.mark.parametrize("case", BRANCHES, ids=str)
def test_branches(case):
    """Every quantity of every layer within 3% or 4 standard errors: each branch knows what it made, and no other.

    A factor of branches occurs twice in the product of both uses of the matrix.
    """
    fields = {"width": 1024, "depth": 2, "tokens": 4, "vocab": 64, "embeddings": "tied"}
    stack = Stack(**fields | case)
    worst, names = off(sample(stack, draws=128, seed=0), predict(stack, patterns=512))
    assert worst <= 1, names


def test_small_queries_tend_to_none():
    """By two ways, with errors of at most 1%: samples of the logits share moments, or have points of their own."""
    fields = {"width": 256, "depth": 3, "tokens": 3, "vocab": 16, "embeddings": "tied", "output_projection": "random"}
    for ffn in ("plain", "gated"):
        none, small = (predict(Stack(query_key_scale=s, ffn=ffn, **fields), patterns=1024) for s in (0.0, 1e-3))
        for name, value in none.items():
            allowed = 5 * np.hypot(none.errors[name], small.errors[name]) + 2e-3 * value
            assert (np.abs(small[name] - value) <= allowed).all(), name


def test_a_wide_network_is_sure_of_its_own_words():
    """Its logit grows like √d, and the loss with it; a position's own ‖∂L/∂x_L‖² tends to 2 σ_e²."""
    losses = []
    for width in (2**10, 2**14, 2**18):
        stack = Stack(placement="pre", width=width, depth=1, tokens=2, vocab=100, embeddings="tied")
        prediction = predict(stack, patterns=512)
        losses.append(float(prediction["loss"]))
    assert np.diff(np.log(losses)) == pytest.approx(np.log(4), abs=0.03)
    assert float(prediction["loss_gradient_sq"]) == pytest.approx(2 * (1 - 1 / 100), rel=0.02)


def test_what_has_no_rule_is_sampled_and_shown(tmp_path, capsys):
    """`check` judges nothing of it and does not fail; figures need a prediction."""
    out = str(tmp_path / "run")
    line = "--placement pre --embeddings tied --dropout 0.1 --width 16 --depth 1 2 3 --tokens 2 --vocab 4"
    assert main(["sweep", "--out", out, *line.split()]) == 0
    for flags in ((), ("--layers",)):
        assert main(["check", out, *flags]) == 0
        said = capsys.readouterr().out
        assert "0 agree within 3%, 0 are consistent" in said and "dL/dW2" in said
        assert "Theory has no rule for 3 of 3 networks: stack must have untied embeddings" in said
    assert "Samples, root mean squares: 64 networks" in said and "wide enough" not in said
    table = check(out).to_frame()
    assert table["predicted"].isna().all()
    assert (table[table["quantity"] == "grad_sq_W2"]["mean"] > 0).all()
    capsys.readouterr()
    assert main(["figures", out, "--out", str(tmp_path / "figures")]) == 2
    assert (
        "run must have networks with a feed-forward branch that large-width theory can predict"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("fields", [{"vocab": 7}, {"input_correlation": 0.5}, {"input_gram": np.eye(8).tolist()}])
def test_words_are_independent_and_distinct(fields):
    with pytest.raises(ValueError, match="^embeddings must be untied "):
        Stack(embeddings="tied", **fields)
