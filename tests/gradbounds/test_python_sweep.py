"""`gradbounds.sweep` and its result: a folder of the command's kind, continued, looked at, delivered, or refused."""

import json
import tomllib

import numpy as np
import pytest

import gradbounds as gb
from checks.results import load_results
from gradbounds.cli import main
from gradbounds.result import Result, deliver
from simulate import Run
from simulate.runs import cell
from theory import Stack

STACKS = [
    Stack(placement="pre", width=8, depth=1, tokens=2, vocab=4, activation="gelu", ffn_ratio=2),
    Stack(placement="post", width=16, depth=1, tokens=2, vocab=4),
    Stack(placement="pre", width=32, depth=1, tokens=2, vocab=4),
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(cell, "MOST_DRAWS", 16)


def drawn(run):
    return {samples.stack: samples for samples in run.samples()}


def test_the_same_call_continues_and_more_draws_are_added(tmp_path):
    """To the numbers of one call, whatever the order of the networks, and one that is given twice counts once."""
    out, seen = tmp_path / "mine", []
    assert {samples.draws for samples in gb.sweep(STACKS, draws=16, seed=5, out=out).samples()} == {16}
    gb.sweep(STACKS, draws=16, seed=5, out=str(out), on_block=seen.append)
    assert seen == []
    run = gb.sweep([*STACKS[::-1], gb.Cell(STACKS[0])], draws=32, seed=5, out=out, on_block=seen.append)
    assert len(seen) == 3
    assert len(run.manifest["sessions"]) == 3
    assert run.manifest["cells"] == 3
    whole = gb.sample(STACKS[0], draws=32, seed=5)
    for name in whole:
        np.testing.assert_array_equal(drawn(run)[STACKS[0]][name], whole[name])


@pytest.mark.parametrize(
    ("changed", "other"),
    [({"seed": 6}, "seed"), ({"cells": STACKS[:2]}, "cells"), ({"cells": STACKS[:1], "seed": 6}, "seed and cells")],
)
def test_another_request_is_refused(tmp_path, changed, other):
    run = gb.sweep(STACKS, draws=16, seed=5, out=tmp_path / "mine")
    before = (run.folder / "manifest.toml").read_text()
    with pytest.raises(ValueError, match=rf"^out must be a new folder .*mine' holds another run \(other {other}\)"):
        gb.sweep(**({"cells": STACKS, "draws": 16, "seed": 5, "out": run.folder} | changed))
    assert (run.folder / "manifest.toml").read_text() == before
    assert len(run.landed()) == 3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"cells": []}, "^cells must hold at least one cell, got none"),
        ({"cells": ["pre"]}, "^cells must be of Stack or Cell, got 'pre'"),
        ({"cells": STACKS[0]}, "^cells must be a list of Stack or Cell, got Stack"),
        ({"draws": 0}, "^draws must be"),
        ({"seed": -1}, "^seed must be"),
    ],
)
def test_bad_arguments_leave_no_folder(tmp_path, changed, message):
    with pytest.raises(ValueError, match=message):
        gb.sweep(**({"cells": STACKS, "draws": 16, "seed": 5, "out": tmp_path / "mine"} | changed))
    assert not (tmp_path / "mine").exists()


def test_a_run_without_a_request_is_not_begun(tmp_path):
    for manifest in ({"about": "mine"}, {"request": {}}):
        with pytest.raises(ValueError, match=r"^manifest must have a `request`.* gradbounds\.sweep\("):
            gb.Run.create(tmp_path / "mine", manifest)
    assert not (tmp_path / "mine").exists()


def test_commands_on_a_folder_from_python(tmp_path, capsys):
    """They look at it and judge it."""
    out = tmp_path / "mine"
    gb.sweep(STACKS, draws=16, seed=5, out=out)
    for command in (["runs"], ["check"]):
        assert main([*command, str(out)]) == 0
    assert "by sweep with seed 5" in capsys.readouterr().out
    assert main(["runs", str(tmp_path)]) == 0


def test_python_continues_what_the_command_began(tmp_path, capsys):
    out = tmp_path / "mine"
    assert main(["sweep", "--width", "8", "--depth", "1", "--draws", "16", "--out", str(out)]) == 0
    assert "cells   2, each with at least 16 draws (in whole blocks)" in capsys.readouterr().out
    stacks = [Stack(placement=placement, width=8, depth=1) for placement in ("post", "pre")]
    assert {samples.draws for samples in gb.sweep(stacks, draws=32, seed=0, out=out).samples()} == {32}


def test_a_run_of_several_ways_to_sample_is_no_recipe(tmp_path, cells, capsys):
    """Cells with a text, of the other engine, in another precision: none of a recipe, which is said."""
    cells = [*cells, gb.Cell(STACKS[0], "dense"), gb.Cell(STACKS[0], dtype="float64"), gb.Cell(STACKS[2], "dense")]
    run = gb.sweep(cells, draws=16, seed=0, out=tmp_path / "mine")
    assert {one.cell.key for one in Run.open(run.folder).samples()} == {one.key for one in cells}
    assert main(["sweep", "--file", str(run.folder / "manifest.toml"), "--out", str(tmp_path / "again")]) == 2
    assert "is of a run from Python: repeat its call of gradbounds.sweep" in capsys.readouterr().err


def test_a_folder_without_a_request_is_looked_at_and_refused(tmp_path, capsys):
    """As earlier calls of `Run.create` left them."""
    run = gb.sweep(STACKS, draws=16, seed=5, out=tmp_path / "mine")
    for text in ('format = 1\nabout = "mine"\n', "format = 1\n[request]\n"):
        (run.folder / "manifest.toml").write_text(text)
        assert main(["runs", str(run.folder)]) == main(["runs", str(tmp_path)]) == 0
        assert "by no command" in capsys.readouterr().out
        with pytest.raises(ValueError, match=r"holds another run \(other command and seed and cells\)"):
            gb.sweep(STACKS, draws=16, seed=5, out=run.folder)
    assert main(["check", str(run.folder)]) == 0


def test_a_manifest_says_how_the_process_was_started(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/home/somebody/mine.py", "--fast"])
    run = gb.sweep(STACKS[:1], draws=1, seed=0, out=tmp_path / "script")
    assert run.manifest["sessions"][0]["command"] == "python mine.py --fast"
    for program in ("/usr/bin/gradbounds", "/lib/gradbounds/__main__.py"):
        monkeypatch.setattr("sys.argv", [program, "runs"])
        assert (
            main(["sweep", "--width", "8", "--depth", "1", "--draws", "1", "--out", str(tmp_path / program[1:4])]) == 0
        )
        written = tomllib.loads((tmp_path / program[1:4] / "manifest.toml").read_text())
        assert written["sessions"][0]["command"] == "gradbounds runs"
        assert written["sessions"][0]["gradbounds"] == gb.__version__


# torch's own, of tracing.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SIZES = {"width": [16, 32, 64], "depth": [1, 2, 4], "tokens": [2], "vocab": [4]}


def test_a_check_from_python_is_that_of_the_command(tmp_path, capsys):
    run = gb.sweep([gb.Stack(width=width, depth=1, tokens=2, vocab=4) for width in (16, 32)], draws=64, seed=0,
                   out=tmp_path / "run")  # fmt: skip
    result = gb.check(run)
    assert main(["check", str(run.folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [v["part"] for v in told["verdicts"]] == [v.part for v in result.verdicts] and result.verdicts
    assert len(told["comparison"]) == len(result.to_frame()) > 0
    assert "all layers" in [v["subject"]["quantity"] for v in told["verdicts"]]
    assert f"{len(result.verdicts)} verdicts" in repr(result)
    assert "L1   all layers" in str(result)
    assert "<table" in result._repr_html_()
    with pytest.raises(ValueError, match="^figure must be one of none, for there is none, got ''"):
        result.plot()


def test_what_is_delivered_is_read_back(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("gradbounds.actions.sweep_tables.RELAXATIONS", {"GELU": {"activation": "gelu"}})
    result = gb.relax(SIZES, draws=4, out=tmp_path / "run")
    assert deliver(result, out=tmp_path / "out") == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"relaxations.csv"}
    with pytest.raises(ValueError, match="^table must be one of relaxations, got 'others'"):
        result.to_frame("others")
    verdict = gb.Verdict(
        claim="L1", subject="a part", verdict="holds", claimed="1", predicted=1.0, measured=1.0, interval=(0.5, 2.0),
        agreement="differs", setting="here",
    )  # fmt: skip
    differing = Result(about="a result", verdicts=[verdict], differences=["DIFFERS L1"])
    assert (deliver(differing, out=tmp_path / "kept"), deliver(differing, strict=False)) == (1, 0)
    assert load_results(tmp_path / "kept" / "verdicts.json").verdicts == [verdict]
    assert capsys.readouterr().out.count("DIFFERS L1") == 2


def test_placements_from_python():
    compared = gb.compare(SIZES | {"placement": ["post", "pre"], "width": [16]}, draws=4)
    assert list(compared.tables) == ["norms", "exponents", "spreads"]
    with pytest.raises(ValueError, match="^width must have one value, because placements and depths are compared"):
        gb.compare(SIZES)
