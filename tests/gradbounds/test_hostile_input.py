"""Absurd numbers, deep nesting, foreign files, escapes of a terminal: each is refused in one plain line."""

import json
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradbounds.cli import main
from gradbounds.commands.claims import Claims
from tests.gradbounds.test_bad_input import contents, refused

HOSTILE = [
    (("sweep", "--out", "NEW", "--draws", "1e30"), "draws must be at most 1099511627776, got 1000"),
    (("sweep", "--out", "NEW", "--workers", "1e9"), "workers must be at most 4096, got 1000000000."),
    (("sweep", "--out", "NEW", "--seed", "1e19"), "seed must be at most 9223372036854775807, got"),
    (("sweep", "--out", "NEW" * 100), "is not: File name too long."),
    (("sweep", "--" + "x" * 10**5), "letters) ... "),
    (("predict", "--draws", "1e30"), "draws must be at most"),
    (("predict", "--patterns", "1e12"), "patterns must be at most 1000000"),
    (("predict", "--ffn-ratio", "1e308"), "--ffn-ratio must be a positive finite number, from 1e-100 to 1e100, got"),
    (("predict", "--norm-epsilon", "1e308"), "--norm-epsilon must be a number from 0 to 1e10, got 1e+308."),
    (
        ("predict", "--residual-scale", "1e308"),
        "--residual-scale must be a number from 0 to 1e100, or None (own",
    ),
    (("predict", "--input-gram", "[" * 10**5), "--input-gram must be a symmetric positive semidefinite matrix"),
    (("predict", "--mask", "given", "--mask-rows", "[" * 10**5), "--mask-rows must be a square matrix of 0 and 1"),
    (("predict", "--config", "DEEP.json"), "--config must be JSON, but 'DEEP.json' is not: it is nested too deeply."),
    (("predict", "--config", "LATIN"), "--config must be JSON, but 'LATIN' is not: it is not UTF-8 (byte 2)."),
    (("predict", "--config", "INFINITE.json"), "n_embd must be a number, got inf."),
    (("predict", "--config", "HUGE.json"), "n_embd must be a number, got inf."),
    (
        ("predict", "--config", "EVIL.json"),
        "got \\x1b[2Jnum_key_value_heads = 1, with an unknown effect at initialization; --ignore ",
    ),
    (("predict", "--config", "/dev/zero"), "--config must be a readable JSON file, got '/dev/zero': it is a device."),
    (("predict", "--out", "/proc/nowhere"), "--out must be writable, but '/proc/nowhere' is not"),
    (
        ("sweep", "--file", "DEEP.toml", "--dry-run"),
        "--file must be TOML, but 'DEEP.toml' is not: it is nested",
    ),
    (("predict", "--bound", "--placement", "preln"), "got 'preln'. Did you mean pre?"),
    (("claims", "W33"), "got 'W33'. Did you mean W3?"),
    (("claims", "Peri-LN"), "got 'Peri-LN'. docs/theory.md describes Peri-LN."),
    (("predict", "--ffn", "SwiGLU"), "). SwiGLU is ffn gated with activation silu. See gradbounds"),
    (("predict", "--activation", "reglu"), "got 'reglu'. ReGLU is ffn gated with activation relu."),
    (("predict", "--ffn", "gate"), "). Did you mean gated? See gradbounds"),
    (("probe", "encoder-poost"), "got 'encoder-poost'. Did you mean encoder-post?"),
    (("probe", "zoo.py:nanogpt"), "there is no file zoo.py in "),
    (
        ("check", "FOREIGN"),
        "'FOREIGN/blocks/000009-aaaaaaaaaaaaaaaa.parquet' is damaged",
    ),
    (("runs", "FOREIGN"), "'FOREIGN/blocks/000009-aaaaaaaaaaaaaaaa.parquet' is damaged"),
    (("runs", "SESSIONS"), "but 'SESSIONS/manifest.toml' has sessions of another kind."),
    (("runs", "STARTED"), "but 'STARTED/manifest.toml' has sessions of another kind."),
    (
        ("runs", "CHANGED"),
        "but 'CHANGED/manifest.toml' was changed or is damaged; if it was changed on purpose, remo",
    ),
    (("sweep", "--file", "CHANGED/manifest.toml", "--dry-run"), "but 'CHANGED/manifest.toml' was changed or is dam"),
    (("check", "NEGATIVE"), "but 'NEGATIVE/manifest.toml' has draws of another kind."),
    (("check", "VARIANCE.json", "--against", "VARIANCE.json"), "variances must be at least 0, and seeds at least 1"),
    (("sweep", "--file", "INF.toml", "--dry-run"), "it has a number that is not finite, inf."),
    (("sweep", "--file", "MANY.toml", "--dry-run"), "draws must be at most 1099511627776, got"),
    (("sweep", "--file", "ESCAPE.toml", "--dry-run"), "dtype, text, got \\u001b[31m."),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs with a file or a manifest of another's, and files that are no JSON or TOML, or hold what should not be."""
    place = tmp_path_factory.mktemp("folders")
    assert main(["sweep", "--width", "8", "--depth", "1", "--draws", "1", "--out", str(place / "OLD")]) == 0
    shutil.copytree(place / "OLD", place / "FOREIGN")
    pq.write_table(
        pa.table({"cell": ["a"], "x": [1]}), place / "FOREIGN" / "blocks" / "000009-aaaaaaaaaaaaaaaa.parquet"
    )
    shutil.copytree(place / "OLD", place / "SESSIONS")
    manifest = (place / "OLD" / "manifest.toml").read_text().partition("\n")[2]  # without its digest
    for name, was, now in (("STARTED", "started = .*", "started = 7"), ("NEGATIVE", "(?m)^draws = 1$", "draws = -3")):
        (place / name).mkdir()
        (place / name / "manifest.toml").write_text(re.sub(was, now, manifest))
    shutil.copytree(place / "OLD", place / "CHANGED")
    (place / "CHANGED" / "manifest.toml").write_text(
        (place / "OLD" / "manifest.toml").read_text().replace("draws = 1\n", "draws = 2\n")
    )
    columns = ["width", "depth", "part", "layer", "parameter", "quantity", "mean", "variance", "seeds"]
    kept = {"format": 1, "name": "one", "columns": columns, "rows": [[8, 1, "", 0, "", "loss", 0.0, -1.0, 2]]}
    (place / "VARIANCE.json").write_text(json.dumps(kept))
    (place / "SESSIONS" / "manifest.toml").write_text("sessions = 5\n" + manifest.partition("[[sessions]]")[0])
    config = '{"model_type": "gpt2", "n_embd": %s, "n_layer": 2, "n_head": 4, "vocab_size": 100%s}'
    (place / "DEEP.json").write_text("[" * 10**5)
    (place / "DEEP.toml").write_text("a = " + "[" * 10**5)
    (place / "INF.toml").write_text("draws = inf")
    (place / "MANY.toml").write_text("draws = 1" + "0" * 30 + "\n[grid]\nwidth = 8")
    (place / "ESCAPE.toml").write_text(r'"\u001b[31m" = 1')
    (place / "INFINITE.json").write_text(config % ("Infinity", ""))
    (place / "HUGE.json").write_text(config % ("1e400", ""))
    (place / "EVIL.json").write_text(config % ("64", r', "auto_map": {}, "\u001b[2Jnum_key_value_heads": 1'))
    (place / "LATIN").write_bytes("Zwölf Boxkämpfer ".encode("latin-1"))
    return place


@pytest.mark.parametrize(
    ("arguments", "message"), HOSTILE, ids=lambda v: " ".join(v)[:60] if isinstance(v, tuple) else ""
)
def test_hostile_input_is_one_line_and_exit_code_2(folders, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(folders)
    before = contents(folders)
    refused(capsys, arguments, message)
    assert contents(folders) == before, "a refused command left something behind, or lost something"
    assert not (folders / "NEW").exists()


@pytest.mark.parametrize(("error", "message"), [
    (MemoryError("Unable to allocate 6 GiB"), "not enough memory (Unable"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "not enough memory"),
    (OSError(36, "File name too long", "a" * 10**5), "cannot be used: File name too long."),
    (RecursionError("maximum recursion depth exceeded"), "input is nested too deeply; reduce its nesting."),
    (OverflowError("too large"), "numbers are too extreme: the calculation ends in Overflow"),
])  # fmt: skip
def test_what_the_machine_refuses_is_one_line(monkeypatch, capsys, error, message):
    def run(command):
        raise error

    monkeypatch.setattr(Claims, "run", run)
    refused(capsys, ["claims"], message)


def test_an_error_of_ours_is_none_of_the_user_s(monkeypatch):
    def run(command):
        raise RuntimeError("a bug")

    monkeypatch.setattr(Claims, "run", run)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["claims"])


def test_what_a_command_prints_does_nothing_to_a_terminal(tmp_path, capsys):
    out = tmp_path / "\x1b[31mred\x9b\u202e"
    assert main(["sweep", "--width", "8", "--depth", "1", "--draws", "1", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "\\u001b[31mred\\u009b\\u202e" in said
    assert said.replace("\n", "").isprintable()
    assert out.is_dir(), "the name itself stays as it was given"


def test_a_dry_run_says_what_the_machine_has_not(capsys):
    assert main(["sweep", "--width", "1e13", "--placement", "pre", "--depth", "1", "--draws", "2", "--dry-run"]) == 0
    (memory,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("memory"))
    assert "PiB, more than this machine has free (" in memory


def test_a_closed_stdout_is_no_error(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    assert main(["claims"]) == 0
