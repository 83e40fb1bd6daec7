"""Logs and texts that are large, cut or broken: the right numbers, or one line, and never long."""

import json
import time

import pytest

from gradbounds.actions.log_line import LogLine, read_log
from theory.mean_field import text_law
from theory.mean_field.text_law import TextLaw

FIRST = {"loss": 11.0, "grad_norm": 2.5, "step": 1}
LATER = [{"loss": 3.0, "grad_norm": 9.0, "step": 10 * k, "text": "ä" * 40} for k in range(1, 12000)]
TRAINER = {"best_metric": None, "log_history": [FIRST, *LATER]}
LOG = LogLine(11.0, 2.5, 1)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (json.dumps(TRAINER, indent=2), LOG),
        (json.dumps(TRAINER, ensure_ascii=False), LOG),
        (json.dumps([FIRST, *LATER]), LOG),
        (json.dumps([{"loss": 11.0}, *LATER]), LogLine(11.0)),
        (json.dumps([FIRST, *LATER[:3]], indent=1)[:-40], LOG),  # still being written
        (json.dumps(TRAINER | {"log_history": LATER}, indent=2), "must begin at step 0 or 1, got step 10 first"),
        (json.dumps({"step": 500, "loss": 3.0}, indent=1), "must begin at step 0 or 1, got step 500 first"),
        (json.dumps({"step": 500, "loss": 3.0, "x": {}}, indent=1)[:-4], "must be whole JSON where it begins as JSON"),
        ('{"text": "' + "a" * 200_000, "must be whole JSON where it begins as JSON"),
        ("step,loss,text\n1,11.0," + "a" * 200_000 + "\n", LogLine(11.0, None, 1)),
        ("a" * 1_000_000 + "\nloss: 11.0\n", LogLine(11.0)),
        ("a1" * 500_000 + "\nloss: 11.0\n", LogLine(11.0)),
        ("1" * 900_000 + "x\nloss: 11.0\n", LogLine(11.0)),
        ('"' + "a," * 30_000 + "\nloss: 11.0\n", LogLine(11.0)),
        ("[" * 100_000 + "\nloss: 11.0\n", LogLine(11.0)),
        ("loss," + ",".join(map("c{}".format, range(30_000))) + "\n11.0" + ",1" * 30_000, LogLine(11.0)),
    ],
    ids=range(16),
)
def test_logs(tmp_path, text, found):
    file, start = tmp_path / "log", time.process_time()
    file.write_text(text, encoding="utf-8")
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
