"""A result from Python: what the command has, in one object, and its delivery into a folder."""

import json

import pytest

import gradbounds as gb
from checks.results import load_results
from gradbounds.cli import main
from gradbounds.result import Result, deliver

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


def test_what_is_delivered_is_read_back(png_alone, tmp_path, capsys):
    result = gb.relax(SIZES, along="ffn_ratio", values=[1, 2], draws=4, out=tmp_path / "run")
    assert deliver(result, out=tmp_path / "out") == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "relaxations.csv",
        "relaxations.png",
        "relaxations.svg",
    }
    assert result.plot("relaxations").axes
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
