"""Training translation models: schedules by number, a loop written out, and runs that are killed."""

import math
import os
import signal
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from simulate.runs.execution import worker_context
from studies import trainer as module
from studies.measurements import matrices
from studies.ordering import Order
from studies.parallel_text import held_out, read_pairs
from studies.schedules import LinearDecay, Schedule
from studies.trainer import train
from studies.training_run import Training
from studies.translation_model import Translation, Translator

SMALL = Translation(width=16, depth=1, heads=2, ffn_width=24, vocab=40, dropout=0.0)
PLAIN = Training(
    translation=SMALL,
    schedule=Schedule(peak=1e-2, warmup=4, decay="inverse-sqrt"),
    updates=10,
    batch_tokens=60,
    every=5,
)


@pytest.fixture(scope="module")
def texts(parallel_files):
    return held_out(read_pairs(*parallel_files, vocab=40), 5, seed=0)


@pytest.mark.parametrize(
    ("fields", "rates"),
    [
        # peak 8: the rate at updates 1, T and two later ones, by hand
        ({"decay": "inverse-sqrt", "warmup": 4}, {1: 2.0, 4: 8.0, 16: 4.0, 64: 2.0}),
        ({"decay": "inverse-sqrt"}, {1: 8.0, 2: 5.65685424949238, 4: 4.0, 6400: 0.1}),
        ({"decay": "inverse-sqrt-from", "start": 16}, {1: 8.0, 16: 8.0, 64: 4.0, 6400: 0.4}),
        ({"decay": "inverse-sqrt-from", "warmup": 4, "start": 16}, {1: 2.0, 4: 8.0, 16: 8.0, 64: 4.0}),
        ({"decay": "inverse-sqrt-from", "warmup": 16, "start": 16}, {1: 0.5, 16: 8.0, 64: 4.0}),
        ({"decay": "constant", "warmup": 4}, {1: 2.0, 4: 8.0, 1000: 8.0}),
    ],
)
def test_rates(fields, rates):
    schedule = Schedule(peak=8.0, **fields)
    assert {update: schedule.rate(update) for update in rates} == pytest.approx(rates, rel=1e-14)
    assert min(schedule.rate(update) for update in range(1, 12)) > 0


@pytest.mark.parametrize(
    ("warmup", "rates"),
    [(1, {1: 8.0, 2: 7.2, 5: 4.8, 10: 0.8}), (4, {1: 2.0, 4: 8.0, 5: 48 / 7, 10: 8 / 7}), (10, {9: 7.2, 10: 8.0})],
)
def test_rates_that_fall_to_zero(warmup, rates):
    """Up to T, then a line that is zero behind the tenth and last update."""
    schedule = LinearDecay(peak=8.0, warmup=warmup, end=10)
    assert {update: schedule.rate(update) for update in rates} == pytest.approx(rates, rel=1e-14)
    with pytest.raises(ValueError, match="update must be at most end = 10, got 11"):
        schedule.rate(11)
    with pytest.raises(ValueError, match="end must be an integer of at least 12, got 10"):
        replace(schedule, warmup=12)


def test_epochs_are_whole_and_sentences_of_like_lengths(texts):
    """Every pair once an epoch, lengths never interleaved, the limit kept, and no batch could take the next pair."""
    text, _ = texts
    order, limit = Order(text, tokens=60, seed=3), 60
    epochs = [[order.batch(1 + epoch * len(order) + k) for k in range(len(order))] for epoch in range(2)]
    for batches in epochs:
        assert sorted(np.concatenate(batches)) == list(range(len(text)))
        lengths = [sorted(len(text.targets[pair]) - 1 for pair in batch) for batch in batches]
        lengths.sort(key=lambda batch: (batch[0], batch[-1], -len(batch)))  # the last is not full
        assert all(sum(batch) <= limit or len(batch) == 1 for batch in lengths)
        assert all(one[-1] <= two[0] and sum(one) + two[0] > limit for one, two in pairwise(lengths))
    assert [list(batch) for batch in epochs[0]] != [list(batch) for batch in epochs[1]]
    assert list(Order(text, tokens=60, seed=3).batch(len(order) + 2)) == list(epochs[1][1])
    assert any(list(Order(text, tokens=60, seed=4).batch(k + 1)) != list(epochs[0][k]) for k in range(len(order)))


OPTIMIZERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1.0, betas=(0.9, 0.98)),
    "radam": lambda parameters: torch.optim.RAdam(parameters, lr=1.0, betas=(0.9, 0.98)),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1.0, betas=(0.9, 0.98)),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1.0),
}


def padded_by_hand(sentences):
    longest = max(map(len, sentences))
    return torch.tensor([[*map(int, ids), *[0] * (longest - len(ids))] for ids in sentences])


@pytest.mark.parametrize(("optimizer", "placement"), [(name, "post") for name in OPTIMIZERS] + [("adam", "pre")])
def test_a_loop_written_out(texts, optimizer, placement):
    """Ten steps: losses, rates and the validation loss after five, to rounding."""
    text, held = texts
    translation = replace(SMALL, placement=placement)
    found = train(replace(PLAIN, translation=translation, optimizer=optimizer, seed=5), text, held)
    torch.manual_seed(5)
    model = Translator(translation)
    stepper = OPTIMIZERS[optimizer](model.parameters())
    order = Order(text, tokens=60, seed=5)
    losses, rates = [], []
    for t in range(1, 11):
        pairs = order.batch(t)
        source, target = (padded_by_hand([ids[k] for k in pairs]) for ids in (text.sources, text.targets))
        logits = model(source, target[:, :-1].masked_fill(target[:, 1:] == 0, 0)).log_softmax(-1)
        real = target[:, 1:] != 0
        right = logits.gather(-1, target[:, 1:, None])[..., 0][real]
        loss = -(0.9 * right + 0.1 * logits.mean(-1)[real]).mean()  # smoothed by 0.1 over all ids
        stepper.param_groups[0]["lr"] = 1e-2 * (t / 4 if t < 4 else 2 / math.sqrt(t))
        rates.append(stepper.param_groups[0]["lr"])
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        losses.append(loss.item())
        if t == 5:
            total, count = 0.0, 0
            with torch.no_grad():
                for ids, labels in zip(held.sources, held.targets, strict=True):  # one by one: no padding
                    logits = model(torch.as_tensor(ids)[None], torch.as_tensor(labels)[None, :-1])[0]
                    total += F.cross_entropy(logits, torch.as_tensor(labels)[1:], reduction="sum").item()
                    count += len(labels) - 1
            validation = total / count
    assert found.losses == pytest.approx(losses, rel=2e-5)
    assert found.rates == pytest.approx(rates, rel=1e-12)
    table = found.table()
    value = table[(table.statistic == "validation loss") & (table["update"] == 5)]["value"]
    assert list(value) == pytest.approx([validation], rel=2e-5)
    assert sorted(table[table.statistic == "validation loss"]["update"]) == [0, 5, 10]


def test_gradient_norms_are_those_of_the_next_batch(texts):
    text, held = texts
    table = train(replace(PLAIN, updates=1), text, held).table().set_index(["update", "part", "matrix"])["value"]
    torch.manual_seed(0)
    model = Translator(SMALL)
    pairs = Order(text, tokens=60, seed=0).batch(1)
    source, target = (padded_by_hand([ids[k] for k in pairs]) for ids in (text.sources, text.targets))
    logits = model(source, target[:, :-1].masked_fill(target[:, 1:] == 0, 0))
    F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1).backward()
    assert table[0, "decoder", "W1"] == pytest.approx(model.decoder[0].linear1.weight.grad.norm().item(), rel=1e-5)
    keys = model.encoder[0].self_attn.in_proj_weight.grad[16:32]
    assert table[0, "encoder", "WK"] == pytest.approx(keys.norm().item(), rel=1e-5)


def test_placements_and_optimizers_share_their_draws(texts):
    """Matrices, mini-batches and dropout are the seed's; another seed has others."""
    text, held = texts
    dropping = replace(SMALL, dropout=0.3)
    before = torch.random.get_rng_state()
    first = {
        (name, seed): train(
            replace(PLAIN, translation=dropping, optimizer=name, seed=seed, updates=1), text, held
        ).losses[0]
        for name, seed in [("adam", 0), ("sgd", 0), ("adam", 1)]
    }
    assert torch.equal(before, torch.random.get_rng_state())
    assert first["adam", 0] == first["sgd", 0] != first["adam", 1]
    drawn = []
    for placement in ("post", "pre"):
        torch.manual_seed(0)
        drawn.append(matrices(Translator(replace(SMALL, placement=placement))))
    assert all(torch.equal(drawn[0][place], drawn[1][place]) for place in drawn[0])


def killed_at(number, *arguments):
    def kill(update, loss, rate):
        if update == number:
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    *given, path = arguments
    train(*given, checkpoint=path, checkpoint_every=3, on_update=kill)


def test_killed_and_gone_on(texts, tmp_path):
    """The same losses and measurements to the last bit, with dropout and Adam's moments, across an epoch's end.

    Each stop is two updates behind a checkpoint.
    """
    whole = replace(PLAIN, translation=replace(SMALL, dropout=0.2), updates=12)
    path = tmp_path / "run.pt"
    process = worker_context().Process(target=killed_at, args=(5, whole, *texts, path))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL

    for number in (8, 11):

        def stop(update, loss, rate, number=number):
            if update == number:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(whole, *texts, checkpoint=path, checkpoint_every=3, on_update=stop)
    seen = []
    found = train(whole, *texts, checkpoint=path, on_update=lambda update, loss, rate: seen.append(update))
    assert seen == [10, 11, 12]
    assert found == train(whole, *texts)
    assert train(whole, *texts, checkpoint=path) == found
    with pytest.raises(ValueError, match="of other texts or settings"):
        train(replace(whole, seed=1), *texts, checkpoint=path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match="must be one that training wrote"):
        train(whole, *texts, checkpoint=path)


def test_a_run_ends_where_its_loss_is_not_finite(texts):
    found = train(replace(PLAIN, optimizer="sgd", schedule=Schedule(peak=1e30)), *texts)
    assert not found.finite
    assert len(found.losses) < 10
    assert found.table()["update"].max() == 0


def test_bf16_follows_float32(texts):
    """To the rounding of eight bits, and not exactly."""
    exact, rough = (np.array(train(replace(PLAIN, precision=p), *texts).losses) for p in ("float32", "bf16"))
    assert 1e-6 < np.abs(rough / exact - 1).max() < 0.02


def test_what_cannot_be_trained(texts, tmp_path, monkeypatch):
    text, held = texts
    with pytest.raises(ValueError, match="vocab must be the validation's 40, got 41"):
        train(replace(PLAIN, translation=replace(SMALL, vocab=41)), replace(text, vocab=41), held)
    with pytest.raises(ValueError, match="pairs must be fewer than the text's"):
        held_out(text, len(text), seed=0)
    usage = module.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(ValueError, match="checkpoint must have room"):
        train(PLAIN, text, held, checkpoint=tmp_path / "run.pt")
