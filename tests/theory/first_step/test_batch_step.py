"""The step of a batch of text: the positions that represent it, and the scale of its tangent kernel."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from simulate.curvature.first_step import sampled_steps
from theory import Stack
from theory.first_step.batch_step import (
    ERRORS,
    BatchStep,
    _Positions,
    _Represented,
    batch_steps,
    cost_of_steps,
    noise_rank,
)
from theory.first_step.experts import Experts
from theory.first_step.noise_scale import noise_scale
from theory.first_step.prediction import first_step
from theory.mean_field.text_law import TextLaw

STACK = Stack(
    placement="pre", width=64, depth=2, tokens=2, vocab=256, heads=2, mask="causal", output_projection="random",
    query_key_scale=1.0, embedding_scale=0.02, activation="gelu", ffn_ratio=4.0,
)  # fmt: skip
LAW = TextLaw.zipf(1.0, 256)


def test_a_small_batch_is_taken_as_it_is():
    """One sequence of two tokens is represented by its two positions, two by four, with a mean over eight batches."""
    step, two, eight = (batch_steps(STACK, ["sgd"], 1, LAW, positions=count)["sgd"] for count in (64, 2, 8))
    assert (step.gain, step.curvature) == (two.gain, two.curvature) == (eight.gain, eight.curvature)
    assert step.curvature == pytest.approx(
        np.mean([batch_steps(STACK, ["sgd"], 1, LAW, seed=seed, networks=1)["sgd"].curvature for seed in range(8)])
    )
    more = batch_steps(STACK, ["sgd"], 2, LAW, positions=8)["sgd"]
    assert more.gain != batch_steps(STACK, ["sgd"], 2, LAW, positions=2)["sgd"].gain


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch's derivatives
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_experts_move_as_those_of_sampled_networks(optimizer):
    """The only expert is an MLP; with four, gain and curvature are within the stated errors of sampled networks."""
    dense = replace(STACK, tokens=8, query_key_scale=0.0)
    one = replace(dense, experts=1, router_norm="sum")
    (first, second) = (batch_steps(each, [optimizer], 1, LAW, networks=1)[optimizer] for each in (dense, one))
    four = replace(one, width=128, experts=4, experts_per_token=2, embedding_scale=1.0, query_key_scale=1.0)
    drawn, step = [sampled_steps(four, (optimizer,), seed=k, ends=False) for k in range(6)], first_step(four, optimizer)
    for name in ("gain", "curvature"):
        assert getattr(first, name) == pytest.approx(getattr(second, name)), name
        assert getattr(step, name) == pytest.approx(
            np.mean([getattr(x[optimizer], name) for x in drawn]), rel=ERRORS[name]
        )


def test_experts_with_the_same_tokens_count_one_by_one(monkeypatch):
    """Where all experts have all tokens, one set of four moves as four sets of one."""
    four = replace(STACK, tokens=8, experts=4, experts_per_token=4, router_norm="sum")
    together, made = batch_steps(four, ["adam"], 1, LAW, networks=1)["adam"], Experts.__post_init__

    def apart(experts: Experts) -> None:
        made(experts)
        assert [part[1] for part in experts.parts] == [4]
        experts.parts = [(at, 1, *others) for at, count, *others in experts.parts for _ in range(count)]

    monkeypatch.setattr(Experts, "__post_init__", apart)
    single = batch_steps(four, ["adam"], 1, LAW, networks=1)["adam"]
    assert (single.gain, single.curvature) == pytest.approx((together.gain, together.curvature))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_step_is_rescaled_as_a_linear_model_is(optimizer):
    """A Jacobian twice as large has a tangent kernel 4 times as large; a sign keeps its size."""
    jacobian, residual = np.random.default_rng(0).standard_normal((2, 6, 6))

    def step(times):
        gradient = times * jacobian.T @ residual[0]
        update = gradient if optimizer == "sgd" else np.sign(gradient)
        moved = times * jacobian @ update
        return BatchStep(
            optimizer, float(gradient @ update), float(moved @ moved), float(np.square(moved).mean()),
            {"W1": np.array([np.linalg.norm(update)])},
        )  # fmt: skip

    found, expected = step(1.0).rescaled(4.0), step(2.0)
    for name in ("gain", "curvature", "critical_rate", "logit_change_sq", "logit_move"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name)), name
    assert found.relative_updates["W1"] == pytest.approx(expected.relative_updates["W1"])


def test_the_noise_of_words_has_its_rank():
    """Singular values of a Gaussian square matrix have a mean of 8/(3π) root mean squares; repeated words lower it."""
    law = np.full(2**14, 2.0**-14)
    for side in (64, 128):
        assert noise_rank(law, 2**14, (side, side)) == pytest.approx((8 / (3 * np.pi)) ** 2 * side, rel=0.02), side
    # A matrix four times as large as is sampled has nearly the rank of one that is sampled whole.
    law = TextLaw.zipf(1.0, 2048).frequencies
    generator = np.random.default_rng(1)
    tokens, labels = generator.choice(2048, (2, 8192), p=law)
    a, b = (x - law @ x for x in generator.standard_normal((2, 2048, 512)))
    singular = np.linalg.svd(a[tokens].T @ b[labels], compute_uv=False)
    assert noise_rank(law, 8192, (512, 512)) == pytest.approx(singular.sum() ** 2 / (singular**2).sum(), rel=0.15)


@pytest.mark.parametrize("mask", ["causal", "none"])
def test_positions_in_groups_represent_many_short_sequences(mask):
    """64 positions have SGD's gain and curvature of sixteen sequences; in one group: 1.12 and 1.71, 1.15 and 1.56."""
    sizes = {"depth": 4, "tokens": 8, "vocab": 1024, "query_key_scale": 0.3, "init_std": 0.02}
    stack, law, exact = replace(STACK, mask=mask, **sizes), TextLaw.zipf(1.0, 1024), []
    for seed in range(2):
        generator = np.random.default_rng(seed)
        chosen = _Positions.exact(stack, 16, law.frequencies, generator, repeat=True)
        every = _Represented.of(stack, chosen, law.frequencies, seed, generator, 1)
        exact.append(every.step("sgd", ["WQ", "WK", "WV", "WO", "W1", "W2", "Wemb"]))
    few = batch_steps(stack, ["sgd"], 16, law)["sgd"]
    for name in ("gain", "curvature"):
        assert getattr(few, name) == pytest.approx(np.mean([getattr(one, name) for one in exact]), rel=0.1), name


@pytest.mark.parametrize("sequences", [8, 16])
def test_merged_positions_have_the_squared_gradient_of_a_tied_batch(sequences):
    """Without merged positions, the gain of SGD was 0.82 and 0.85 times the squared gradient."""
    sizes = {"tokens": 32, "vocab": 2048, "width": 192, "heads": 3, "query_key_scale": 0.28, "output_scale": 0.28}
    law, tied = TextLaw.zipf(1.0, 2048), {"embeddings": "tied", "depth_scaling": "depth", "init_std": 0.02}
    stack = replace(STACK, **sizes, **tied)
    squares = noise_scale(stack, text=law).grad_sq(sequences)
    gain = batch_steps(stack, ["sgd"], sequences, law)["sgd"].gain
    assert gain == pytest.approx(sum(float(np.nansum(square)) for square in squares.values()), rel=0.1)


def test_a_small_batch_costs_eight_batches():
    """In CPU seconds, 64 positions took 1.08 and 6.47 at depth 2 and 6, where one representation took 0.16 and 1.12."""
    plain = Stack(width=64, vocab=128, tokens=16, depth=2)
    gated = replace(plain, depth=6, heads=8, vocab=512, ffn="gated", activation="silu", query_key_scale=1.0)
    for stack, sequences, seconds in ((plain, 4, 1.08), (plain, 64, 0.16), (gated, 4, 6.47), (gated, 64, 1.12)):
        assert cost_of_steps(stack, ["sgd", "adam"], sequences).seconds == pytest.approx(seconds, rel=0.25)


@pytest.mark.parametrize("more", [{}, {"heads": 16}, {"embeddings": "tied"}, {"vocab": 2**15, "width": 256}])
def test_the_memory_of_a_step_is_an_upper_bound(more):
    """The estimate is between the memory of the arrays that are held at once and 1.5 times as much."""
    stack = replace(STACK, tokens=256, depth=3, **{"heads": 8, "vocab": 1024} | more)
    tracemalloc.start()
    batch_steps(stack, ["sgd", "adam"], 4, TextLaw.zipf(1.0, stack.vocab))
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 1.0 < cost_of_steps(stack, ["sgd", "adam"], 4).bytes / held < 1.5
