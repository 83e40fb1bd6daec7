"""Masked language models in the trainer: a loop written out, which windows an update has, and what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from studies.bert.masking import masked
from studies.bert.model import MaskedLanguageModel, MaskedModel
from studies.bert.task import MaskedTask, Pretraining, unigram_loss
from studies.bert.text import MASK, WORDS, held_out_windows, read_masked_text
from studies.schedules import LinearDecay
from studies.trainer import train

SMALL = MaskedModel(width=8, depth=1, heads=2, ffn_width=8, vocab=20, length=16, dropout=0.0)
PLAIN = Pretraining(
    model=SMALL, schedule=LinearDecay(peak=1e-2, warmup=2, end=6), optimizer="adamw", betas=(0.9, 0.999), updates=6,
    batch_tokens=67, every=3, seed=5,
)  # fmt: skip


@pytest.fixture(scope="module")
def texts(parallel_files):
    return held_out_windows(read_masked_text(parallel_files[1], length=16, vocab=20), 10, seed=0)


def test_a_loop_written_out(texts):
    """Losses and rates of six updates, and the validation loss after three, to rounding."""
    text, kept = texts
    found = train(PLAIN, text, kept)
    torch.manual_seed(5)
    model = MaskedLanguageModel(SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.999))
    order = np.random.default_rng([5, 0]).permutation(len(text))

    def loss(ids, windows, seed):
        parts = [masked(ids[k], vocab=20, seed=[*seed, int(k)]) for k in windows]
        logits = [
            model(torch.as_tensor(shown)[None], torch.as_tensor(np.flatnonzero(chosen))) for shown, chosen in parts
        ]
        labels = np.concatenate([ids[k][chosen] for k, (_, chosen) in zip(windows, parts, strict=True)])
        return -torch.cat(logits).log_softmax(-1)[torch.arange(len(labels)), torch.as_tensor(labels)].mean()

    losses, rates = [], []
    for t in range(1, 7):
        rates.append(1e-2 * [1 / 2, 1, 4 / 5, 3 / 5, 2 / 5, 1 / 5][t - 1])
        optimizer.param_groups[0]["lr"] = rates[-1]
        optimizer.zero_grad()
        value = loss(text.ids, order[4 * (t - 1) : 4 * t], [0, 5, 0])  # 67 tokens hold four windows
        value.backward()
        optimizer.step()
        losses.append(value.item())
        if t == 3:
            validation = loss(kept.ids, range(10), [1]).item()
    assert found.losses == pytest.approx(losses, rel=2e-5)
    assert found.rates == pytest.approx(rates, rel=1e-12)
    table = found.table().set_index(["update", "statistic"])["value"]
    assert table[3, "validation loss"] == pytest.approx(validation, rel=2e-5)
    assert list(table.index) == [(update, "validation loss") for update in (0, 3, 6)]


def task(texts, **changed):
    return MaskedTask(SMALL, *texts, **({"tokens": 64, "seed": 3, "device": "cpu"} | changed))


def test_an_epoch_has_every_window_once(texts):
    """But for those that fill no mini-batch; the next epoch hides other words, and any update is found alone."""
    text, _ = texts
    count = len(text) // 4
    epochs = []
    for epoch in range(2):
        asked, hidden = task(texts), []
        for k in range(count):
            (ids, places), labels = asked.batch(1 + epoch * count + k)
            whole, chosen = ids.clone().flatten(), torch.zeros(ids.numel(), dtype=torch.bool)
            whole[places], chosen[places] = labels, True
            hidden += zip(whole.reshape(4, 16).tolist(), chosen.reshape(4, 16).tolist(), strict=True)
        left = sorted(text.ids.tolist())
        for window, _ in hidden:
            left.remove(window)
        assert len(left) == len(text) - 4 * count
        epochs.append({tuple(window): chosen for window, chosen in hidden})
    both = [window for window in epochs[0] if window in epochs[1]]
    assert len(both) > 50
    assert sum(epochs[0][window] == epochs[1][window] for window in both) < len(both) / 2
    first, again, other = (task(texts, seed=seed).batch(count + 2)[0][0] for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_loss_of_word_frequencies(texts):
    """Of the hidden words of what is not trained on, counted one by one."""
    text, kept = texts
    counts = [0] * 20
    for window in text.ids.tolist():
        for word in window:
            counts[word] += 1
    total, number = 0.0, 0
    for (ids, places), labels in ((inputs, labels) for inputs, labels, _ in task(texts).validation()):
        assert (ids.flatten()[places] == MASK).any()
        for word in labels.tolist():
            total -= math.log((counts[word] + 1) / (sum(counts[WORDS:]) + 20 - WORDS))
            number += 1
    assert unigram_loss(text, kept) == pytest.approx(total / number, rel=1e-12)


def test_what_cannot_be_trained(texts):
    text, kept = texts
    with pytest.raises(ValueError, match="vocab must be the text's 20, got 21"):
        train(replace(PLAIN, model=replace(SMALL, vocab=21)), text, kept)
    with pytest.raises(ValueError, match="length must be at least the text's 16, got 15"):
        train(replace(PLAIN, model=replace(SMALL, length=15)), text, kept)
    with pytest.raises(ValueError, match=f"batch_tokens must hold 1 to {len(text)} windows of 16 ids"):
        train(replace(PLAIN, batch_tokens=15), text, kept)
