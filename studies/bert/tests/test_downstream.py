"""Fine-tuning: files of examples, a loop written out, and that what a model has learned before counts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from studies.bert import downstream
from studies.bert.classification import MaskedClassifier
from studies.bert.downstream import fine_tune, rate_of, read_downstream, tuned_rows
from studies.bert.model import MaskedLanguageModel, MaskedModel
from studies.bert.text import CLASS, PADDING, SEPARATOR, UNKNOWN

SMALL = MaskedModel(placement="pre", width=8, depth=1, heads=2, ffn_width=8, vocab=20, length=12, dropout=0.0)
KNOWN = {f"w{place}": place + 5 for place in range(15)}


def read(path):
    return read_downstream(path, KNOWN, length=12, vocab=20)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Is a word of the passage below w7?"""
    file, generator = tmp_path_factory.mktemp("tasks") / "low.tsv", np.random.default_rng(0)
    lines = []
    for k in range(120):
        low = k % 2
        words = generator.integers(7 * (1 - low), 7 + 8 * (1 - low), generator.integers(2, 6))
        lines.append(f"{'train' if k < 80 else 'test'}\t{'low' if low else 'high'}\t{' '.join(f'w{w}' for w in words)}")
    file.write_text("\n".join(lines), encoding="utf-8")
    return read(file)


def test_windows_of_passages(tmp_path):
    """A [SEP] behind each; words without an id; of a pair that is too long the longer loses words."""
    (tmp_path / "a.tsv").write_text(
        "train\tb\tW1, w2\ntrain\ta\tw1 w2 w3 w4 w5 w6 w7 w8 w9\tw3 w4\ntest\ta\tw0\n", encoding="utf-8"
    )
    found = read(tmp_path / "a.tsv")
    end = [PADDING] * 7
    assert found.train.ids.tolist() == [
        [CLASS, 6, UNKNOWN, 7, SEPARATOR, *end], [CLASS, *range(6, 13), SEPARATOR, 8, 9, SEPARATOR],
    ]  # fmt: skip
    assert (found.name, found.train.classes, found.train.labels.tolist()) == ("a", ("a", "b"), [1, 0])
    assert (found.test.labels.tolist(), found.train.most_frequent) == ([0], 0.5)


def test_a_loop_written_out(task, monkeypatch):
    """Losses of ten updates over two epochs, accuracy and loss on what is held out, from weights that are given."""
    monkeypatch.setattr(downstream, "BATCH", 16)
    torch.manual_seed(7)
    weights = MaskedLanguageModel(SMALL).state_dict()
    found = fine_tune(weights, SMALL, task, 3, updates=10)
    torch.manual_seed(3)
    model = MaskedClassifier(SMALL, 2)
    model.body.load_state_dict(weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.999), weight_decay=0.01)
    ids, labels = torch.as_tensor(task.train.ids), torch.as_tensor(task.train.labels)
    losses = []
    for t in range(10):
        drawn = np.random.default_rng([3, t // 5]).permutation(80)[16 * (t % 5) : 16 * (t % 5 + 1)]
        optimizer.param_groups[0]["lr"] = 3e-5 * 96 * (1 - t / 10)
        optimizer.zero_grad()
        loss = -model(ids[drawn]).log_softmax(-1)[torch.arange(16), labels[drawn]].mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        logits = model(torch.as_tensor(task.test.ids))
    expected = torch.as_tensor(task.test.labels)
    assert list(found.losses) == pytest.approx(losses, rel=2e-5)
    assert found.accuracy == (logits.argmax(-1) == expected).double().mean().item()
    assert found.test_loss == pytest.approx(-logits.log_softmax(-1)[torch.arange(40), expected].mean().item(), rel=2e-5)


def test_a_seed_is_a_fine_tuning(task):
    """Of the drawn body as well; another body starts from another loss with the same new layers and order."""
    first, again, other = (fine_tune(None, SMALL, task, seed, updates=3) for seed in (1, 1, 2))
    assert first == again
    assert first.losses != other.losses
    torch.manual_seed(1)
    assert fine_tune(MaskedLanguageModel(SMALL).state_dict(), SMALL, task, 1, updates=3) == first


def test_rows_of_a_model(task):
    """Three fine-tunings; a table has what a single one gives."""
    (row,) = tuned_rows([task], SMALL, None, {"peak": 0.1}, updates=10)
    tuned = [fine_tune(None, SMALL, task, seed, updates=10) for seed in range(3)]
    assert row["accuracies"] == pytest.approx([each.accuracy for each in tuned], rel=1e-5)
    assert row["test losses"] == pytest.approx([each.test_loss for each in tuned], rel=1e-5)
    assert row["last losses"] == pytest.approx([each.losses[-1] for each in tuned], rel=1e-5)
    assert (row["task"], row["placement"], row["pretrained"], row["most frequent"]) == ("low", "pre", False, 0.5)
    assert row["peak"] == 0.1


def test_the_rate_is_bert_s_in_proportion():
    assert (rate_of(MaskedModel()), rate_of(replace(SMALL, width=128))) == (3e-5, pytest.approx(1.8e-4))
