"""The masked language model beside transformers' BertForMaskedLM, and the runs of pre-training, one a part.

BERT names a folder for text, checkpoints and tables of the runs: without it the one of all evidence.
"""

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from checks.results import results
from gradbounds.studies.bert.claims import judge, judge_downstream
from gradbounds.studies.bert.design import described, design_named
from gradbounds.studies.bert.downstream import read_downstream, tuned_rows
from gradbounds.studies.bert.reproduce import COMMITTED, outcome_lines, setting_of, size_of, tuned_lines
from gradbounds.studies.bert.runs import described_model, one_run, row_of, weights_of
from gradbounds.studies.bert.task import unigram_loss
from gradbounds.studies.kept_rows import rows_file
from gradbounds.studies.trainer import train
from simulate.pretraining.model import MaskedLanguageModel, MaskedModel, masked_loss
from simulate.pretraining.text import PADDING, WORDS, read_masked_text
from simulate.runs.files import write_whole
from simulate.runs.provenance import processor
from simulate.runs.sample import one_thread
from tests.helpers.dictionary_text import dictionary_text, missing
from tests.helpers.evidence_file import DEVICE, part, record
from tests.helpers.gloss_tasks import write_tasks
from tests.helpers.rendered.warmup import rows_of

pytestmark = pytest.mark.evidence

ATTENTION = ("query", "key", "value")


def as_transformers_has(found):
    """Our parameters, or their gradients, by BertForMaskedLM's names."""
    names = {"words.weight": "bert.embeddings.word_embeddings.weight", "bias": "cls.predictions.bias"}
    names |= {"positions.weight": "bert.embeddings.position_embeddings.weight"}
    for kind in ("weight", "bias"):
        names[f"embedding_norm.{kind}"] = f"bert.embeddings.LayerNorm.{kind}"
        names[f"dense.{kind}"] = f"cls.predictions.transform.dense.{kind}"
        names[f"head_norm.{kind}"] = f"cls.predictions.transform.LayerNorm.{kind}"
    parts = {
        "self_attn.out_proj": "attention.output.dense", "norm1": "attention.output.LayerNorm",
        "linear1": "intermediate.dense", "linear2": "output.dense", "norm2": "output.LayerNorm",
    }  # fmt: skip
    theirs = {}
    for name, value in found.items():
        if name in names:
            theirs[names[name]] = value
            continue
        _, layer, inner = name.split(".", 2)
        before = f"bert.encoder.layer.{layer}."
        if "in_proj" in inner:
            for role, part in zip(ATTENTION, value.chunk(3), strict=True):
                theirs[f"{before}attention.self.{role}.{inner.removeprefix('self_attn.in_proj_')}"] = part
        else:
            part, kind = inner.rsplit(".", 1)
            theirs[f"{before}{parts[part]}.{kind}"] = value
    return theirs


def test_against_transformers():
    """Logits, loss and every gradient, in float64 to rounding; one window is padded."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=36,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.BertForMaskedLM(config).double()
    ours = MaskedLanguageModel(
        MaskedModel(width=24, depth=3, heads=4, ffn_width=36, vocab=50, length=16, dropout=0.0)
    ).double()
    with torch.no_grad():
        for parameter in ours.parameters():  # norms and biases that count
            parameter += 0.3 * torch.randn_like(parameter)
        weights = as_transformers_has(dict(ours.named_parameters()))
        for name, parameter in theirs.named_parameters():
            parameter.copy_(weights.pop(name) if name in weights else torch.zeros_like(parameter))
    assert not weights
    ids = torch.randint(WORDS, 50, (3, 16))
    ids[1, 11:] = PADDING
    chosen = (torch.rand(3, 16) < 0.3) & (ids != PADDING)
    places, labels = chosen.flatten().nonzero()[:, 0], torch.randint(WORDS, 50, (3, 16))
    answer = theirs(input_ids=ids, attention_mask=ids != PADDING, labels=labels.where(chosen, torch.tensor(-100)))
    logits = ours(ids, places)
    torch.testing.assert_close(logits, answer.logits.flatten(0, 1)[places], rtol=1e-10, atol=1e-11)
    loss = masked_loss(logits, labels.flatten()[places])
    torch.testing.assert_close(loss, answer.loss, rtol=1e-12, atol=0.0)
    loss.backward()
    answer.loss.backward()
    gradients = as_transformers_has({name: p.grad for name, p in ours.named_parameters()})
    for name, parameter in theirs.named_parameters():
        if "token_type" in name:  # one segment, whose embedding ours has in the positions'
            continue
        torch.testing.assert_close(gradients.pop(name), parameter.grad, rtol=1e-9, atol=1e-12)
    assert not gradients


DIGEST = "c94716321a77c4e124421cb9b238bcaf137fc352198235645b092ced4d25f889"
"""Of the text: dict-gcide 0.48.5+nmu2 and wordnet-base 1:3.0-37."""

PILOT = {"placement": "pre", "peak": 1.8e-3, "warmup": 480, "seed": 0}
PILOT_UPDATES = 1200


def planned(folder, arm):
    """A run of the design `small` with its texts; skipped where the text is not installed."""
    file = folder / "english.txt"
    if not file.is_file() and (lacking := missing()):
        pytest.skip(f"apt-get install {' '.join(lacking)}")
    design = design_named("small")
    (run,) = (run for run in design.runs if described(run) == arm)
    if not file.is_file():
        write_whole(file, dictionary_text())
    text = read_masked_text(file, length=design.model.length, vocab=design.model.vocab)
    assert text.digest == DIGEST, "other versions of the packages make other runs"
    return run, design.texts(text)


class Enough(Exception):
    """A pilot has taken its updates."""


def test_pilot(kept_folder):
    """The first updates of one run: whether the design's size learns more than how frequent words are, by 15%."""
    run, texts = planned(kept_folder, PILOT)
    checkpoint, start = kept_folder / "pilot.pt", time.process_time()

    def stop(update, loss, rate):
        if update == PILOT_UPDATES:
            raise Enough

    with one_thread(), pytest.raises(Enough):
        train(run, *texts, checkpoint=checkpoint, checkpoint_every=PILOT_UPDATES // 5, on_update=stop)
    measured = torch.load(checkpoint, weights_only=True)["measured"]
    unigram, losses = (
        unigram_loss(*texts),
        [value for *_, statistic, value in measured if statistic == "validation loss"],
    )
    record("bert-pilot", {
        "run": PILOT, "updates of the whole run": run.updates, "unigram": unigram,
        "updates": [row[0] for row in measured], "tokens": [row[0] * run.batch_tokens for row in measured],
        "validation": losses, "below word frequencies": 1 - losses[-1] / unigram,
        "CPU hours": (time.process_time() - start) / 3600, "processor": processor(), "dtype": run.precision,
        "stopped": f"behind update {PILOT_UPDATES}",
    }, short=True)  # fmt: skip
    assert losses[-1] <= 0.85 * unigram


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("warmup", [1, 480])
@pytest.mark.parametrize("peak", [6e-4, 1.8e-3])
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_run(kept_folder, placement, peak, warmup, seed):
    """One run, from its checkpoint on if it was stopped; its row into checks/data/bert, whatever came of it."""
    out = Path(os.environ.get("BERT", kept_folder))
    run, texts = planned(out, {"placement": placement, "peak": peak, "warmup": warmup, "seed": seed})
    row = row_of(run, texts, one_run(run, texts, out, DEVICE, weights=True), unigram_loss(*texts), DEVICE)
    name = f"{placement}-{peak:g}-{warmup}-{seed}"
    write_whole(COMMITTED / f"{name}.json", rows_file([row], part(f"bert-{name.replace('.', '_')}")))
    assert row["updates"][-1] == run.updates or row["outcome"] == "diverged"


def tasks_of(folder, design, text):
    """Both tasks in the text's ids."""
    write_tasks(folder)
    sizes = {"length": design.model.length, "vocab": design.model.vocab}
    return [read_downstream(folder / f"{name}.tsv", text.known, **sizes) for name in ("pos", "senses")]


def tune(out, run, texts, weights, name):
    """A model's fine-tunings, three for each task, into checks/data/bert/downstream."""
    tasks, about = tasks_of(out, design_named("small"), texts[0]), described_model(run, texts, pretrained=bool(weights))
    rows = tuned_rows(tasks, run.model, weights, about, DEVICE)
    write_whole(COMMITTED / "downstream" / f"{name}.json", rows_file(rows, part(f"bert-downstream-{name}")))
    assert all(np.isfinite(row["test losses"]).all() for row in rows)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("warmup", [1, 480])
@pytest.mark.parametrize(("placement", "peak"), [("post", 6e-4), ("pre", 1.8e-3)])
def test_downstream(kept_folder, placement, peak, warmup, seed):
    """Of a pre-trained model."""
    out = Path(os.environ.get("BERT", kept_folder))
    run, texts = planned(out, {"placement": placement, "peak": peak, "warmup": warmup, "seed": seed})
    assert run in design_named("small").fine_tuned
    file = weights_of(run, texts, out)
    if not file.is_file():
        pytest.skip("the model's own part of `make evidence` keeps its weights")
    tune(out, run, texts, torch.load(file, weights_only=True), f"{placement}-{warmup}-{seed}")


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_downstream_drawn(kept_folder, placement):
    """Of a network that was not pre-trained."""
    out = Path(os.environ.get("BERT", kept_folder))
    run, texts = planned(out, {"placement": placement, "peak": 6e-4, "warmup": 480, "seed": 0})
    tune(out, run, texts, None, f"{placement}-drawn")


def test_verdicts(kept_folder):
    """B1 to B4 on the rows that are there, for `make accept`."""
    out = Path(os.environ.get("BERT", kept_folder))
    (run, texts), design = planned(out, PILOT), design_named("small")
    rows, tuned = rows_of(COMMITTED), rows_of(COMMITTED / "downstream")
    setting, size = setting_of(design, texts[0], rows), size_of(run.model)
    judged = [*judge(rows, setting, size), *judge_downstream(tuned, setting, size)]
    file = out / "bert-small" / "verdicts.json"
    write_whole(file, results(judged, [], part("bert-verdicts")).encode())
    print(*outcome_lines(rows), *tuned_lines(tuned), f"make accept RUN={file.parent}", sep="\n")
    assert {verdict.claim for verdict in judged} == {"B1", "B2", "B3", "B4"}
