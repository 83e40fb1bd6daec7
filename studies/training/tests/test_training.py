"""Training: both engines beside a plain loop, their laws, what is the same for the same seed, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from simulate import Cell, sample
from simulate.network.dense import DenseEngine
from simulate.network.random_streams import RandomStreams
from simulate.runs.inputs import input_batches, network_inputs
from simulate.text import TextWindows
from studies.training.maps import LearningMaps
from studies.training.optimizers import Optimizer
from studies.training.schedule import Schedule, roles
from studies.training.tests.twin import trained_slowly
from studies.training.train import batches, train, train_block, trained
from tests.helpers.implied import implied_matrix
from tests.helpers.same_law import differences, repeated_words
from theory import Stack
from theory.first_step.prediction import first_step

POST = Stack(placement="post", width=12, depth=2, tokens=3, vocab=5)
PRE = replace(POST, placement="pre", output_projection="random", ffn_ratio=2.0)
PERI = replace(POST, placement="peri", ffn="gated", activation="silu")


def schedule_of(stack, steps=3, learning_rate=0.1, batch="same", factors=None, **rule):
    return Schedule.of(
        roles(stack),
        steps=steps,
        learning_rate=learning_rate,
        optimizer=Optimizer(**rule),
        factors=factors,
        batch=batch,
    )


CASES = {
    "post, momentum and decay": (POST, schedule_of(POST, momentum=0.6, weight_decay=0.2)),
    "pre, polar, fresh": (
        PRE, schedule_of(PRE, learning_rate=0.05, name="polar", momentum=0.5, weight_decay=0.3, batch="fresh")
    ),
    "peri, gated, by role, warm-up": (
        PERI, schedule_of(PERI, learning_rate={"W1": 0.2, "WG": 0.3, "Wemb": 0.02}, factors=[0.0, 0.5, 1.0])
    ),
    "pre, more tokens than width": (replace(PRE, tokens=20), schedule_of(PRE, learning_rate=0.02, momentum=0.9)),
    "rezero": (
        replace(POST, placement="rezero", ffn_ratio=2.0), Schedule.of(
            [*roles(POST), "scalar"], steps=3, learning_rate=0.3, optimizer=Optimizer(momentum=0.6, weight_decay=0.1),
            factors=None, batch="same",
        )
    ),
    "pre, adam, by role, fresh": (
        PRE, schedule_of(PRE, learning_rate={"W1": 0.02, "WV": 0.03, "Wemb": 0.01}, name="adam", momentum=0.8,
                         weight_decay=0.3, batch="fresh")
    ),
    "post, branches that are nothing": (replace(POST, down_gain=1e-50, value_gain=1e-50), schedule_of(POST)),
}  # fmt: skip


def test_adam_in_mup_keeps_its_changes():
    """The coordinate check: at four times the width features move as much, and 4 times without mu-P's rates.

    Means over 32 draws have a standard error of 2% at most, so that 10% is five of them.
    """
    one = {"steps": 2, "draws": 32, "seed": 0, "optimizer": "adam", "momentum": 0.9}
    for powers, ratio, rate in (((1.0, -0.5), 1.0, 0.2), ((0.0, 0.0), 4.0, 1e-4)):
        changes = []
        for width in (32, 128):
            stack = Stack(placement="pre", width=width, depth=2, tokens=4, vocab=16, output_scale=width ** powers[1])
            change = train(stack, learning_rate=rate * width ** -powers[0], **one)["feature_change_sq"]
            changes.append(float(change[:, 1, -1].mean()) ** 0.5)
        assert changes[1] / changes[0] == pytest.approx(ratio, rel=0.1)


BOTH = [(case, "dense") for case in CASES]
BOTH += [(case, "conditioned") for case, (_, schedule) in CASES.items() if schedule.optimizer.name != "adam"]


@pytest.mark.parametrize(("case", "engine"), BOTH)
def test_training_is_that_of_a_plain_loop(case, engine):
    """At the matrices that were drawn, or that all products imply; to rounding, which training may amplify."""
    stack, schedule = CASES[case]
    maps = LearningMaps(RandomStreams([4], 2), torch.float64, drawn=engine == "dense")
    kept, given = [], batches(Cell(stack, engine), schedule, maps)
    found = trained(stack, schedule, maps, (kept.append(one) or one for one in given))
    if engine == "dense":  # the same seed draws the same matrices
        again = LearningMaps(RandomStreams([4], 2), torch.float64, drawn=True)
        trained(stack, replace(schedule, steps=0), again, batches(Cell(stack, engine), schedule, again))
        matrices = {role: [one.weight for one in group] for role, group in again.maps.items()}
    else:
        matrices = {role: [implied(one) for one in group] for role, group in maps.maps.items()}
    for draw in range(2):
        own = trained_slowly(
            stack,
            {role: [w[draw] for w in group] for role, group in matrices.items()},
            [(x[draw], labels[draw]) for x, labels in kept],
            schedule,
        )
        assert len(own["loss"]) == 4
        for name in set(own) & set(found):
            values = found[name][draw].numpy()
            np.testing.assert_allclose(
                values, own[name].reshape(values.shape).numpy(), rtol=1e-8, atol=1e-25, err_msg=name
            )
        assert ("logit_change_sq" in found) == (schedule.batch == "same")


def implied(one):
    d_in, d_out = one.inputs.directions.shape[2], one.gradients.directions.shape[2]
    generator = torch.Generator().manual_seed(9)
    return implied_matrix(one, one.std * torch.randn(2, d_in, d_out, dtype=torch.float64, generator=generator))


def numbers(stack, schedule, engine, draws):
    """Recorded numbers of steps 1 and the last as columns, fourth roots, which have light tails.

    Each engine has a seed of its own: both begin a stream of random numbers with the inputs.
    """
    cell = Cell(stack, engine, dtype="float64")
    found = train_block(cell, schedule, {"dense": 3, "conditioned": 4}[engine], draws)
    names = ["loss", "logit_change_sq", "feature_change_sq", *(f"grad_sq_{role}" for role in roles(stack))]
    values = [found[name][:, [1, -1]].reshape(draws, -1) for name in names if name in found]
    return np.concatenate(values, 1) ** 0.25


LAWS = {
    "post": (Stack(placement="post", width=8, depth=2, tokens=3, vocab=4), {"momentum": 0.8, "weight_decay": 0.1}),
    "pre": (
        Stack(placement="pre", width=8, depth=1, tokens=8, vocab=4),
        {"steps": 2, "learning_rate": 0.1, "name": "polar", "batch": "fresh"},
    ),
}


@pytest.mark.parametrize("case", LAWS)
def test_the_law_is_that_of_drawn_matrices(case):
    """1500 draws of each; what is missed is said in same_law, and `make evidence PART=training` has 20000.

    A rate that is a half too large is seen.
    """
    stack, options = LAWS[case]
    schedule = schedule_of(stack, **options)
    dense, other = (numbers(stack, schedule, engine, 1500) for engine in ("dense", "conditioned"))
    assert differences(dense, other) == []
    if case == "post":
        assert differences(dense, numbers(stack, replace(schedule, factors=(1.5,) * 3), "conditioned", 1500))


def test_step_0_has_the_law_of_samples():
    stack = Stack(width=16, depth=2, tokens=2, vocab=6)
    found = train_block(Cell(stack, "conditioned", dtype="float64"), schedule_of(stack, steps=1), 3, 2000)
    samples = sample(stack, draws=2000, seed=5, engine="dense", dtype="float64")
    names = [name for name in samples if name not in ("head_norm", "token_correlation")]
    columns = [
        np.concatenate([values.reshape(2000, -1) for values in some], 1) ** 0.25
        for some in ([found[name][:, 0] for name in names], [samples[name] for name in names])
    ]
    assert differences(*columns) == []


@pytest.mark.parametrize(("placement", "optimizer"), [("post", "sgd"), ("pre", "sgd"), ("post", "polar")])
def test_the_first_step_is_what_theory_has(placement, optimizer):
    """What logits move by at d = 2048 and a hundredth of the critical rate; within 3% or 4 errors, 6e-5 each."""
    stack = Stack(placement=placement, width=2048, depth=2, tokens=3, vocab=16)
    theory = first_step(stack, optimizer)
    rate = 0.01 * theory.critical_rate
    found = train(stack, steps=1, learning_rate=rate, optimizer=optimizer, draws=64, seed=2, engine="conditioned")
    values = found["logit_change_sq"][:, 1].astype(float) / rate**2 / theory.logit_change_sq
    assert abs(values.mean() - 1) < max(0.03, 4 * values.std(ddof=1) / 8)


def test_seeds():
    """With an engine that is named, fewer draws and steps are the first of more, and rates see the same networks."""
    options = {"draws": 70, "seed": 1, "learning_rate": 0.1, "momentum": 0.5}
    for engine in ("dense", "conditioned"):
        first = train(POST, steps=2, engine=engine, **options)
        more = train(POST, steps=3, engine=engine, **options | {"draws": 90})
        assert all((first[name] == more[name][:70, :3]).all() for name in ("loss", "grad_sq_W1", "feature_change_sq"))
        other = train(POST, steps=1, engine=engine, **options | {"learning_rate": 0.2})
        assert (other["loss"][:, 0] == first["loss"][:, 0]).all()
        assert (other["loss"][:, 1] != first["loss"][:, 1]).all()
    assert len(set(first["loss"][:, 0])) == 70


def test_what_is_not_trained_stays():
    found = train(PRE, steps=2, learning_rate={"Wemb": 0.1}, draws=3, seed=0, engine="conditioned", dtype="float64")
    assert (found["feature_change_sq"] < 1e-20).all()
    assert (found["logit_change_sq"][:, 1:] > 1e-3).all()
    resting = train(PRE, steps=2, learning_rate=0.0, draws=3, seed=0, engine="conditioned", batch="fresh")
    assert "feature_change_sq" not in resting
    assert len(np.unique(resting["loss"])) == 9


def test_other_networks_train_too():
    """Random queries and keys, masks, dropout, uniform matrices; both engines, where there are both."""
    own = {"query_key_scale": 1.0, "heads": 2, "mask": "causal", "dropout": 0.1, "output_projection": "random"}
    for fields in (own, {"initialization": "pytorch", "ffn": "gated"}):
        stack = replace(POST, **fields)
        for engine in ("dense", "conditioned") if fields is own else ("auto",):
            found = train(stack, steps=3, learning_rate=0.1, draws=64, seed=0, engine=engine)
            assert found["loss"][:, 3].mean() < found["loss"][:, 0].mean() - 0.2
            assert {f"grad_sq_{role}" for role in roles(stack)} <= set(found)


def test_a_text_is_one_window():
    """Words that repeat make equal rows; the same window is shown at every step. False alarm of the means 1e-5."""
    stack = replace(POST, tokens=8, vocab=6)
    found = [
        train(stack, steps=4, learning_rate=0.1, draws=64, seed=0, engine=engine, text=repeated_words(stack))
        for engine in ("dense", "conditioned")
    ]
    for one in found:
        assert (one["loss"][:, 4] < one["loss"][:, 0]).all()
    first, other = (one["loss"][:, 4].astype(float) for one in found)
    assert abs(first.mean() - other.mean()) < 4.4 * np.hypot(first.std(), other.std()) / 8


@pytest.mark.parametrize("shown", ["learned", "sinusoidal", "none"])
def test_words_and_positions_keep_their_vectors(shown):
    """Over the batches of a text every word has one vector, and so has every position; windows are chosen anew."""
    ids = np.array([[1, 2, 1, 3], [3, 1, 2, 2], [2, 3, 3, 1]], dtype=np.int64)
    stack = replace(POST, tokens=3, vocab=4, positions=shown, embedding_scale=0.5)
    text = TextWindows(ids=ids, digest="0" * 64, source="three windows")
    cell = Cell(stack, "dense", dtype="float64", text=text)
    given = input_batches(cell, DenseEngine(RandomStreams([0], 6), torch.float64))
    shows = [next(given) for _ in range(5)]
    assert torch.equal(shows[0][0], network_inputs(cell, DenseEngine(RandomStreams([0], 6), torch.float64))[0])
    chosen = [
        [next(k for k, window in enumerate(ids) if (window[1:] == labels[draw].numpy()).all()) for _, labels in shows]
        for draw in range(6)
    ]
    assert all(len(set(one)) > 1 for one in chosen)
    for draw, windows in enumerate(chosen):
        x = torch.cat([inputs[draw] for inputs, _ in shows])
        design = torch.zeros(len(x), 7, dtype=torch.float64)  # a word's vector and a position's, added
        for row, (word, place) in enumerate((ids[k][j], j) for k in windows for j in range(3)):
            design[row, word] = design[row, 4 + place] = 1.0
        design = design if shown != "none" else design[:, :4]
        residual = x - design @ torch.linalg.lstsq(design, x, driver="gelsd").solution
        assert residual.abs().max() < 1e-12
