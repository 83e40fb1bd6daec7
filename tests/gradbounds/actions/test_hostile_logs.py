"""Logs and texts that are large, cut or broken: the right numbers, or one line, and never long."""

import json
import math
import time
from dataclasses import replace
from functools import partial

import pytest

import gradbounds as gb
from checks.results import load_results, results
from checks.verdict import Verdict
from gradbounds.actions.log_line import LogLine, read_log
from gradbounds.budget import Budget, way
from gradbounds.cli import main
from theory.mean_field import text_law
from theory.mean_field.text_law import TextLaw

FIRST = {"loss": 11.0, "grad_norm": 2.5, "step": 1}
LATER = [{"loss": 3.0, "grad_norm": 9.0, "step": 10 * k, "text": "ä" * 40} for k in range(1, 12000)]
TRAINER = {"best_metric": None, "log_history": [FIRST, *LATER]}
LOG = LogLine(11.0, 2.5, 1)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (partial(json.dumps, TRAINER, indent=2), LOG),
        (partial(json.dumps, TRAINER, ensure_ascii=False), LOG),
        (partial(json.dumps, [FIRST, *LATER]), LOG),
        (partial(json.dumps, [{"loss": 11.0}, *LATER]), LogLine(11.0)),
        (json.dumps([FIRST, *LATER[:3]], indent=1)[:-40], LOG),  # still being written
        (
            partial(json.dumps, TRAINER | {"log_history": LATER}, indent=2),
            "must begin at step 0 or 1, got step 10 first",
        ),
        (json.dumps({"step": 500, "loss": 3.0}, indent=1), "must begin at step 0 or 1, got step 500 first"),
        (json.dumps({"step": 500, "loss": 3.0, "x": {}}, indent=1)[:-4], "step 0 or 1, got step 500 first"),
        ('{"text": "' + "a" * 200_000, "must have a loss of a training step.* got none in the first MiB"),
        ("step,loss,text\n1,11.0," + "a" * 200_000 + "\n", LogLine(11.0, None, 1)),
        ("#" * (2**20 - 17) + "\nstep: 1 loss: 11.25\n", "got none in the first MiB"),  # cut within the number
        ("a" * 1_000_000 + "\nloss: 11.0\n", LogLine(11.0)),
        ("a1" * 500_000 + "\nloss: 11.0\n", LogLine(11.0)),
        ("1" * 900_000 + "x\nloss: 11.0\n", LogLine(11.0)),
        ("from a import b " * 50_000 + "overflow" * 20_000 + "\nloss: 11.0\n", LogLine(11.0)),
        ("step: 3 skipped: inf loss: 11.0\n", "must begin at step 0 or 1, got step 3 first"),
        ('{"loss": 11.0, "x": ' + "9" * 400 + "}", LogLine(11.0)),
        ('"' + "a," * 30_000 + "\nloss: 11.0\n", LogLine(11.0)),
        ("[" * 100_000 + "\nloss: 11.0\n", LogLine(11.0)),
        ("loss," + ",".join(map("c{}".format, range(30_000))) + "\n11.0" + ",1" * 30_000, LogLine(11.0)),
    ],
    ids=range(20),
)
def test_logs(tmp_path, text, found):
    file, start = tmp_path / "log", time.process_time()
    file.write_text(text if isinstance(text, str) else text(), encoding="utf-8")
    if isinstance(found, str):
        with pytest.raises(ValueError, match=found) as error:
            read_log(file)
        assert len(str(error.value)) < 600
    else:
        assert read_log(file) == found
    assert time.process_time() - start < 5.0  # 0.5 at most; what grows with the square of a length takes minutes


def test_a_text_is_counted_in_pieces(tmp_path, monkeypatch):
    """The law is that of the whole text at once, wherever pieces end."""
    words = [f"wö{k * k % 97}" for k in range(3000)]
    (tmp_path / "text").write_text("  ".join(words), encoding="utf-8")
    whole = TextLaw.of_text(words, 8).key
    monkeypatch.setattr(text_law, "_PIECE", 61)
    text_law._ids_of_file.cache_clear()
    assert TextLaw.read(str(tmp_path / "text"), tokens=8, vocab=97).key == whole == TextLaw.of_text(words, 8).key


def test_counts_that_are_too_large(tmp_path):
    (tmp_path / "counts").write_text("1e308 1e308")
    with pytest.raises(ValueError, match="counts must be numbers of at least 0.* of a finite sum"):
        TextLaw.read(f"counts:{tmp_path / 'counts'}", tokens=8, vocab=2)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            ("predict", "--like", "gpt2", "--batch", "1k"),
            "--batch: it must be an integer, such as 512 or 1e6, got '1k'",
        ),
        (
            ("explore", "--port", "abc"),
            "--port: it must be an integer, such as 512 or 1e6, got 'abc'. See gradbounds e",
        ),
        (("predict", "--compare", "placement"), "as placement=peri, got 'placement' without a value.\n"),
        (("predict", "--import", "no_such_module"), "ModuleNotFoundError: No module named 'no_such_module'.\n"),
        (("predict", "--import", "says_a_sentence"), "raised ValueError: A sentence ends here.\n"),
    ],
)
def test_words(tmp_path, monkeypatch, capsys, line, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "says_a_sentence.py").write_text("raise ValueError('A sentence ends here.')")
    assert main(list(line)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "None" not in error


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: gb.verdicts("/etc/passwd"), "cells must be samples, .* got str of str"),
        (lambda: gb.comparison(b"a"), "cells must be samples, .* got bytes of int"),
        (lambda: gb.comparison(3), "cells must be samples, .* got int of int"),
        (lambda: gb.compare([]), r"grid must be values by field, .* got \[\]"),
        (lambda: way(gb.Stack(output_scale=1e6), None, Budget.of("1m", None)), "output_scale must be at most 2000"),
    ],
)
def test_calls(call, error):
    with pytest.raises(ValueError, match=error):
        call()


def test_verdicts_without_a_number_are_json(tmp_path):
    """A number that there is not is null in the file, and read back as none."""
    verdict = Verdict(
        claim="L1", subject="a", verdict="undecided", claimed="1", predicted=math.nan, measured=1.0,
        interval=(math.nan, 2.0), agreement="undecided", setting="d = 8",
    )  # fmt: skip
    text = results([verdict], [], "a command")
    json.loads(text, parse_constant=pytest.fail)
    (tmp_path / "verdicts.json").write_text(text)
    (read,) = load_results(tmp_path / "verdicts.json").verdicts
    assert math.isnan(read.predicted)
    assert math.isnan(read.interval[0])
    assert replace(read, predicted=0.0, interval=(0.0, 2.0)) == replace(verdict, predicted=0.0, interval=(0.0, 2.0))
