"""Bad input on the command line: one clear line, exit code 2, no traceback, nothing lost or half-written."""

import os
import subprocess
import sys

import pytest
import torch

from gradbounds.cli import main


def call(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "gradbounds", *map(str, arguments)],
        capture_output=True, text=True, check=False, cwd=cwd, env=os.environ | {"COLUMNS": "60"},
    )  # fmt: skip


BAD = [
    (("bound", "--width", "0"), "width must be an integer of at least 2, got 0."),
    (("bound", "--width", "x"), "Error parsing --width: invalid literal for int() with base 10: 'x'"),
    (("bound", "--depth", "-1"), "depth must be an integer of at least 1, got -1."),
    (("bound", "--output-scale", "nan"), "output_scale must be a positive finite number, got nan."),
    (("bound", "--widht", "3"), "Unrecognized options: --widht, 3"),
    (("bound", "--placement", "sideways"), "invalid choice 'sideways' for argument '--placement'"),
    (("sweep", "--out", "NEW", "--placement", "sideways"), "invalid choice 'sideways' for argument '--placement'"),
    (("sweep", "--out", "NEW", "--draws", "0"), "draws must be an integer of at least 1, got 0."),
    (("sweep", "--out", "NEW", "--seed", "-1"), "seed must be an integer of at least 0, got -1."),
    (("sweep", "--out", "NEW", "--workers", "0"), "workers must be an integer of at least 1, got 0."),
    (("sweep", "--out", "NEW", "--text", "missing.txt"), "text must be a readable file, got 'missing.txt'"),
    (("sweep", "--out", "NEW", "--device", "abacus"), "device must be 'cpu', 'cuda' or 'cuda:N', got 'abacus'."),
    (("sweep", "--out", "NEW", "--device", "cuda:99"), "device must be one that this machine has"),
    (("sweep", "--out", "NEW", "--dtype", "int8"), "invalid choice 'int8' for argument '--dtype'"),
    (("sweep", "--out", "NEW", "--engine", "magic"), "invalid choice 'magic' for argument '--engine'"),
    (("sweep", "--out", "NEW", "--width"), "width must have at least one value, got none."),
    (("sweep", "--out", "NEW", "--vocab", "depth"), "--vocab"),
    (("sweep", "--out", "/proc/nowhere/run"), "out must be a place that can be written"),
    (("sweep", "--out", "FULL"), "out must be a new or empty folder"),
    (("sweep",), "Missing from gradbounds sweep: --out PATH"),
    (("frobnicate",), "Unrecognized options: frobnicate"),
    ((), "Expected one of {verify, bound, sweep, check, figures}"),
    (("check",), "run folder (required)"),
    (("check", "NEW"), "run must be a folder that `gradbounds sweep` wrote"),
    (("check", "FULL"), "run must be a folder that `gradbounds sweep` wrote"),
    (("figures", "NEW", "--out", "OUT"), "run must be a folder that `gradbounds sweep` wrote"),
    (("verify", "--draws", "31"), "draws must be an integer of at least 32, got 31."),
    (("verify", "--text", "missing.txt"), "text must be a readable file"),
    (("verify", "--accept", "--out", "NEW"), "accept must be given in a checkout of gradbounds"),
    (("verify", "--accept", "--out", "NEW", "--seed", "3"), "accept must be given"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda v: " ".join(v) if isinstance(v, tuple) else "")
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FULL").mkdir()
    (tmp_path / "FULL" / "thesis.tex").write_text("irreplaceable")
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("gradbounds: ")
    assert message in line
    assert not (tmp_path / "NEW").exists(), "a refused command left a folder behind"
    assert (tmp_path / "FULL" / "thesis.tex").read_text() == "irreplaceable"


@pytest.mark.parametrize("arguments", [("bound", "--width", "0"), ("check", "nowhere"), ("frobnicate",)])
def test_no_traceback_in_a_process_of_its_own(arguments):
    done = call(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_where_there_is_none(tmp_path, capsys):
    assert main(["sweep", "--out", str(tmp_path / "run"), "--device", "cuda"]) == 2
    assert "(0 CUDA devices found), got 'cuda'; try 'cpu'." in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
