"""The command line as a user meets it: what it prints, what it writes, how it refuses."""

import io
import os
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
from matplotlib.figure import Figure

from checks import results
from checks.experiment import verify_cells
from checks.results import COMMITTED, load_results
from gradbounds.actions import figures as drawing, sweep as sampling, verify as judging
from gradbounds.actions.bound import theorem1
from gradbounds.cli import main, parsed
from gradbounds.commands import Command
from gradbounds.commands.examples import EXAMPLES
from simulate import Cell, Run
from simulate.network import transformer as network
from theory import Stack
from tools.accept import accept

SWEEP = "sweep --width 8 16 32 --vocab width --depth 1 2 --tokens 3 --draws 5".split()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "run"
    assert main([*SWEEP, "--out", str(out)]) == 0
    return out


def test_help_and_version(capsys):
    for arguments in (["--help"], ["sweep", "--help-fields"]):
        assert main(arguments) == 0
    assert "--output-scale" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("gradbounds ")


def test_help_ends_with_examples_that_can_be_given(capsys):
    """Of every command; each is parsed, not run."""
    commands = {name for command in get_args(Command) for name in (get_args(command)[1].name,)}
    assert {*EXAMPLES} == commands
    for name, lines in EXAMPLES.items():
        for line in lines:
            assert line.startswith(f"gradbounds {name}")
            assert parsed(shlex.split(line)[1:]) is not None
    assert main(["runs", "--help"]) == main(["check", "--help"]) == 0
    said = capsys.readouterr().out
    assert EXAMPLES["runs"][1] in said and said.endswith(f"  {EXAMPLES['check'][-1]}\n")


def test_what_an_encoding_lacks_becomes_plain(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["--version"]) == 0
    print("1.5 ± 0.1 of ‖x‖, σ")
    sys.stdout.flush()
    assert written.getvalue().splitlines()[-1] == b"1.5 +- 0.1 of ||x||, ?"


def test_help_has_no_colours_where_none_are_wanted(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for value, coloured in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", value)
        assert main(["predict", "--bound", "--help"]) == 0
        assert ("\x1b[" in capsys.readouterr().out) == coloured
    assert os.environ["TERM"] == "xterm"


def test_bound(capsys):
    assert main(["predict", "--bound", "--placement", "pre", "--width", "512", "--depth", "12"]) == 0
    said = capsys.readouterr().out
    assert "Pre-LN, width 512, depth 12" in said
    assert "2*sqrt(10)*B*d*sqrt(log(100*d))/sqrt(L + 2)" in said
    assert "= 8,723" in said
    assert main(["predict", "--bound", "--placement", "pre", "--width", "512", "--depth", "12", "--latex"]) == 0
    said = capsys.readouterr().out
    assert r"\sqrt{\log{\left(100 d \right)}}" in said
    assert r"= 8723, \\" in said
    assert (
        r"L = 12, \quad d = 512, \quad V = 512, \quad \sigma_e = 1, \\" in said
        and r"= 0.765, \quad \epsilon = 0.1" in said
    )
    assert main(["predict", "--bound", "--placement", "pre", "--width", "2048", "--depth", "12", "--latex"]) == 0
    assert re.search(r"= \d\.\d+ \\times 10\^\{4\}, \\\\\n", capsys.readouterr().out)


def test_sweep_check_and_figures(run, blank_pictures, tmp_path, capsys):
    cells = Run.open(run).samples()
    assert len(cells) == 12
    assert all(s.stack.vocab == s.stack.width and s.draws >= 5 for s in cells)
    code = main(["check", str(run)])
    said = capsys.readouterr().out
    assert code == 0, said
    assert "0 agree within 3%" in said, "widths of 8 to 32 are shown, not judged"
    assert "No number is judged" in said
    assert "not wide enough: 4 layers need d >= 320" in said or "not wide enough: the logits need" in said
    assert "T1   Pre-LN, exponent in d (V = d, L = 2, n = 3)" in said
    assert main(["figures", str(run)]) == 0
    drawn = sorted(path.name for path in (run / "figures").iterdir())
    names = ["gradient_against_depth", "gradient_against_width", "gradient_over_layers"]
    names += ["slack_of_the_proof"]
    assert drawn == [f"{name}.{suffix}" for name in names for suffix in ("pdf", "png", "svg")]


def test_a_figure_that_a_run_cannot_give_is_said(blank_pictures, tmp_path, capsys):
    assert main(["sweep", "--width", "8", "--depth", "2", "--draws", "2", "--out", str(tmp_path / "run")]) == 0
    assert main(["figures", str(tmp_path / "run"), "--out", str(tmp_path / "figures")]) == 0
    said = capsys.readouterr().out
    assert "not drawn: gradient_against_width: table must have two cells that differ only in width" in said
    assert len(list((tmp_path / "figures").iterdir())) == 6


def test_networks_that_do_not_fit_into_memory(tmp_path, capsys):
    arguments = ["sweep", "--engine", "dense", "--width", "10000000", "--depth", "1", "--out", str(tmp_path / "run")]
    assert main(arguments) == 2
    (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("gradbounds:")]
    assert "must fit into the memory of 'cpu', but one network of width 10000000" in line


def test_interruption_is_exit_code_130(tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sampling, "sample_into", interrupted)
    assert main([*SWEEP, "--out", str(tmp_path / "run")]) == 130
    assert capsys.readouterr().err == "gradbounds: interrupted; draws that were saved stay in the run folder.\n"
    monkeypatch.setattr("gradbounds.commands.predict.Predict.run", interrupted)
    assert main(["predict"]) == 130
    assert capsys.readouterr().err == "gradbounds: interrupted.\n"


LOOKED_AT = ("gradient_against_width", "gradient_against_depth", "gradient_over_layers")


@pytest.fixture(scope="module")
def verified(tmp_path_factory):
    """The default experiment without its widest and deepest cells, which `make verify` samples."""
    out = tmp_path_factory.mktemp("verify") / "run"
    widest = {2: 8192}  # by depth
    cells = [c for c in verify_cells() if c.stack.width <= widest.get(c.stack.depth, 2048) and c.stack.depth <= 8]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "verify_cells", lambda text: cells)
        saved, drawn = drawing.save, Figure.savefig

        def save(figure, folder, name, **about):
            if name not in LOOKED_AT:
                figure.set_layout_engine(None)  # to lay it out takes as long as to draw it
                figure.savefig = lambda file, **_: file.write(b"<svg></svg>")
            return saved(figure, folder, name, **about)

        patch.setattr(drawing, "save", save)
        # Those that are looked at are drawn once: as SVG, which the report shows.
        patch.setattr(
            Figure, "savefig", lambda figure, file, **how: how["format"] == "svg" and drawn(figure, file, **how)
        )
        return out, main(["verify", "--draws", "32", "--out", str(out), "--workers", "1"]), len(cells)


@pytest.mark.heavy
def test_verify_leaves_a_report_data_and_figures(verified):
    out, code, cells = verified
    assert code == 0, "few draws leave more undecided; they must not make theory and samples differ"
    page = (out / "report.html").read_text()
    assert "<code>gradbounds verify --draws 32</code>" in page
    assert str(out) not in page
    for picture in LOOKED_AT:
        assert f'<figure id="{picture}">' in page
        assert (out / "figures" / f"{picture}.svg").stat().st_size > 10_000
    assert len(Run.open(out).samples()) == cells


def test_a_reader_that_stops_reading_is_no_error():
    """Of any command: they share what handles it."""
    line = f"{sys.executable} -m gradbounds claims | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_what_differs_is_not_accepted(tmp_path, monkeypatch, capsys):
    (tmp_path / "checks" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    cells = [Cell(Stack(width=256, depth=1, tokens=2))]
    monkeypatch.setattr(judging, "verify_cells", lambda text: cells)
    monkeypatch.setattr(judging, "draw_figures", lambda *_: [])
    with monkeypatch.context() as planted:
        planted.setattr(network, "residual", lambda x, branch, in_place: branch)
        assert main(["verify", "--out", "run", "--workers", "1"]) == 1
    with pytest.raises(ValueError, match="^run must agree with theory to be accepted, but "):
        accept(Path("run"))
    assert not list((tmp_path / "checks" / "data").iterdir())
    assert main(["verify", "--out", "run", "--workers", "1", "--draws", "64"]) == 1, "most verdicts are missing"
    with pytest.raises(ValueError, match="^run must be the default experiment of 128 draws and seed 0, got "):
        accept(Path("run"))
    assert main(["verify", "--out", "run", "--workers", "1"]) == 1
    accept(Path("run"))
    assert (tmp_path / "paper_checks.md").read_text().startswith("# Paper checks")
    assert len(load_results(tmp_path / "checks" / "data" / "paper_checks.json").verdicts) > 2


def test_a_sweep_can_be_committed(tmp_path, monkeypatch, capsys):
    """Its verdicts go under the run's name, with the command that made it; those about no network are left out."""
    monkeypatch.chdir(tmp_path)
    line = ["sweep", "--width", "256", "--depth", "1", "--tokens", "2", "--draws", "64", "--out", "octaves"]
    monkeypatch.setattr(sys, "argv", ["gradbounds", *line])
    assert main(line) == 0
    with pytest.raises(ValueError, match="^accept must be called in a checkout"):
        accept(Path("octaves"))
    (tmp_path / "checks" / "data").mkdir(parents=True)
    (tmp_path / "checks" / "data" / "paper_checks.json").write_bytes(COMMITTED.read_bytes())
    accept(Path("octaves"))
    accepted = load_results(tmp_path / "checks" / "data" / "octaves.json")
    assert accepted.command == f"gradbounds {' '.join(line)}"
    assert {v.claim for v in accepted.verdicts} >= {"L1", "L2a", "L2b"}
    assert all(v.cells for v in accepted.verdicts)
    assert f"`{accepted.command}`" in (tmp_path / "paper_checks.md").read_text()
    # What is committed anew is not held against what it replaces.
    path, verdict = tmp_path / "checks" / "data" / "octaves.json", '"verdict": "holds"'
    path.write_text(path.read_text().replace(verdict, '"verdict": "fails"'))
    (path.parent / COMMITTED.name).write_text('{"command": "", "verdicts": [], "cells": []}')
    monkeypatch.setattr(judging, "committed_results", partial(results.committed_results, folder=path.parent))
    assert main(["check", "octaves", "--strict"]) == 1
    assert "CHANGED L1" in capsys.readouterr().out
    accept(Path("octaves"))
    assert verdict in path.read_text()


def test_a_planted_error_makes_check_exit_with_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(network, "residual", lambda x, branch, in_place: branch)
    arguments = [
        "sweep",
        "--width",
        "256",
        "--depth",
        "2",
        "--tokens",
        "4",
        "--draws",
        "64",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(arguments) == 0
    assert main(["check", str(tmp_path / "run"), "--strict"]) == 1
    said = capsys.readouterr().out
    assert "DIFFERS hidden_energy layer 2 at post, d = 256, L = 2" in said
    assert "CHANGED L2a" in said


def test_the_bound_in_words_is_of_its_placement():
    for placement, words in (("post", "tends to a constant"), ("pre", "falls like 1/sqrt(L) for large L")):
        assert f"with the depth, it {words}." in " ".join(
            " ".join(theorem1(Stack(placement=placement, width=64, depth=2)).lines).split()
        )


def test_the_bound_is_folded_once(monkeypatch):
    """In a narrow terminal the words of a wide one, and no line that has room for the next word."""
    wide = "\n".join(theorem1(Stack(width=64, depth=2)).lines)
    monkeypatch.setenv("COLUMNS", "40")
    narrow = "\n".join(theorem1(Stack(width=64, depth=2)).lines)
    assert narrow.split() == wide.split()
    assert all(len(line) <= 40 or " " not in line.strip() for line in narrow.splitlines())
    words = narrow[narrow.index("In words") :].splitlines()
    assert all(len(line) + 1 + len(after.split()[0]) > 40 for line, after in zip(words, words[1:], strict=False))
