"""`python -m studies bert`: a design of tiny models, stopped and continued, its price, and bad input."""

import json
from functools import partial

import pytest
import torch

from studies.__main__ import run as main
from studies.bert import reproduce, runs as kept
from studies.bert.design import design_named, operations, read_design
from studies.bert.downstream import tuned_rows
from studies.bert.model import MaskedLanguageModel
from studies.bert.text import read_masked_text
from studies.trainer import train

DESIGN = """
updates = 4
batch_tokens = 64
every = 2
warmup = [1, 2]
peak = [0.01, 0.03]
seeds = 1
gpu = false
[model]
width = 8
depth = 1
heads = 2
ffn_width = 8
vocab = 20
length = 16
dropout = 0.0
[text]
validation_windows = 10
seed = 0
"""


@pytest.fixture
def design(tmp_path):
    file = tmp_path / "design.toml"
    file.write_text(DESIGN, encoding="utf-8")
    return file


def command(text, out, design, *more):
    return ["bert", "--text", str(text), "--out", str(out), "--preset", str(design), *more]


def test_the_presets():
    """Both placements, two rates in the paper's ratio of 3, with and without warm-up."""
    small, paper = design_named("small"), design_named("paper")
    arms = {(run.model.placement, run.schedule.peak, run.schedule.warmup, run.seed) for run in small.runs}
    assert len(small.runs) == len(arms) == 24
    for design in (small, paper):
        low, high = sorted({run.schedule.peak for run in design.runs})
        assert high / low == pytest.approx(3)
        assert {run.schedule.end for run in design.runs} == {design.runs[0].updates}
    assert small.runs[0].updates * small.runs[0].batch_tokens == pytest.approx(1e7, rel=0.02)
    model = paper.model
    assert (model.width, model.depth, model.heads, model.ffn_width, model.length) == (768, 12, 12, 3072, 512)
    assert len(paper.runs) == 8


def test_operations_of_a_run():
    """Six for each entry of a matrix and word that meets it, of which the head meets 15%, and those of attention."""
    run = read_design(DESIGN).runs[0]
    model = MaskedLanguageModel(run.model)
    layers = sum(p.numel() for name, p in model.layers.named_parameters() if p.dim() == 2)
    head = model.dense.weight.numel() + model.words.weight.numel()
    attention = 2 * 16 * 8
    assert operations(run) == pytest.approx(6 * (layers + attention + 0.15 * head) * 64 * 4)


def test_runs_are_kept_and_judged(blank_pictures, parallel_files, design, tmp_path, capsys, monkeypatch):
    """One run is in the folder before, another is killed half-way and goes on; from the rows of all nothing is run."""
    out, trained = tmp_path / "run", []
    runs = read_design(DESIGN)
    texts = runs.texts(read_masked_text(parallel_files[1], length=16, vocab=20))
    kept.one_run(runs.runs[0], texts, out, "cpu")

    def stop(update, loss, rate):
        if update == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(kept, "_EVERY", 2)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(kept, "train", partial(train, on_update=stop))
        kept.one_run(runs.runs[1], texts, out, "cpu")
    assert len(list((out / "checkpoints").iterdir())) == 1

    def seen(run, *given, **options):
        updates = []
        found = train(run, *given, **options | {"on_update": lambda update, loss, rate: updates.append(update)})
        trained.append(updates)
        return found

    monkeypatch.setattr(kept, "train", seen)
    assert main(command(parallel_files[1], out, design)) == 0
    said = capsys.readouterr()
    assert trained == [[3, 4], *[[1, 2, 3, 4]] * 6]
    assert "8 runs of 4 updates of 64 tokens; 7 are left." in said.err
    assert said.err.index("About ") < said.err.index("run 2 of 8")
    assert "Word frequencies alone: " in said.out
    rows = json.loads((out / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert len(rows) == 8
    assert rows[1]["updates"] == [0, 2, 4]
    assert rows[1]["tokens"] == [0, 128, 256]
    assert not list((out / "checkpoints").iterdir())
    assert "losses" in {file.stem for file in out.iterdir()}
    whole = tmp_path / "whole"
    tables = [kept.one_run(runs.runs[1], texts, folder, "cpu", weights=folder == whole) for folder in (out, whole)]
    model = MaskedLanguageModel(runs.runs[1].model)
    model.load_state_dict(torch.load(kept.weights_of(runs.runs[1], texts, whole), weights_only=True))
    task = runs.runs[1].task(*texts, "cpu")
    with torch.no_grad():
        total = sum(float(task.validation_sum(model(*inputs), labels)) for inputs, labels, _ in task.validation())
    final = tables[1][tables[1].statistic == "validation loss"]["value"].iloc[-1]
    assert total / sum(count for *_, count in task.validation()) == pytest.approx(final, rel=1e-5)
    with pytest.raises(ValueError, match="out must be another folder for weights to be kept"):
        kept.one_run(runs.runs[1], texts, out, "cpu", weights=True)
    first, second = (table[table.statistic != "seconds"].reset_index(drop=True) for table in tables)
    assert first.equals(second)
    trained.clear()
    assert main(command(parallel_files[1], tmp_path / "other", design, "--known", str(out / "rows.json"))) == 0
    assert trained == []


def test_models_are_fine_tuned(blank_pictures, parallel_files, design, tmp_path, capsys, monkeypatch):
    """Those of Post-LN's smaller and Pre-LN's larger rate, and two that are drawn; what is there is not done again."""
    design.write_text(DESIGN.replace("seeds = 1", "seeds = 2"), encoding="utf-8")
    (tmp_path / "tasks").mkdir()
    lines = [
        f"{part}\t{label}\t{label} the\n" for part in ("train", "test") for label in ("a", "of") for _ in range(16)
    ]
    (tmp_path / "tasks" / "first.tsv").write_text("".join(lines), encoding="utf-8")
    tuned = []

    def few(tasks, model, weights, about, device):
        tuned.append((model.placement, weights is not None))
        return tuned_rows(tasks, model, weights, about, device, updates=2)

    monkeypatch.setattr(reproduce, "tuned_rows", few)
    arguments = command(parallel_files[1], tmp_path / "run", design, "--tasks", str(tmp_path / "tasks"))
    assert main(arguments) == 0
    written = capsys.readouterr()
    assert "Fine-tuning: 10 models, 1 task, 3 times each, " in written.err
    said = written.out
    assert tuned == [("post", True)] * 2 + [("pre", True)] * 2 + tuned[4:8] + [("post", False), ("pre", False)]
    assert sorted(tuned[4:8]) == sorted(tuned[:4])
    assert "first, most frequent class 0.500, pre, not pre-trained: accuracy" in said
    assert "B4" in said
    assert len(list((tmp_path / "run" / "downstream").iterdir())) == 10
    tuned.clear()
    assert main(arguments) == 0
    assert tuned == []
    assert main([*arguments[:-1], str(design.parent / "run")]) == 2
    assert "tasks must be a folder of .tsv files" in capsys.readouterr().err


def test_bad_input(parallel_files, design, tmp_path, capsys):
    """One line each, exit code 2, and no folder."""
    text, out = parallel_files[1], tmp_path / "run"
    short, empty, many, large = (tmp_path / name for name in ("short", "empty", "many.toml", "large.toml"))
    short.write_text(" ".join(f"w{word}" for word in range(60)), encoding="utf-8")
    empty.write_text("\n", encoding="utf-8")
    many.write_text(DESIGN.replace("updates = 4\n", "updates = 4000\n"), encoding="utf-8")
    large.write_text(DESIGN.replace("vocab = 20", "vocab = 2000"), encoding="utf-8")
    cases = [
        (command(tmp_path / "none", out, design), "text must be"),
        (command(empty, out, design), "text must have words"),
        (command(short, out, design), "text must have at least 167 words"),
        (command(text, out, many), "text must have at least 6560 words"),
        (command(text, out, large), "vocab must be at most "),
        (command(text, out, "smal"), "preset must be paper or small, or a TOML file, got 'smal'."),
        (command(text, out, "paper"), "device must be cuda for the preset 'paper': on this CPU a run takes about "),
        (command(text, out, design, "--known", str(text)), "known must be a file of rows"),
        (command(text, out, design, "--seeds", "0"), "seeds must be an integer of at least 1, got 0."),
        (command(text, out, design, "--device", "tpu"), "device must be"),
    ]
    for arguments, said in cases:
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert not out.exists()
    assert main(["bert", "--out", str(out)]) == 2
