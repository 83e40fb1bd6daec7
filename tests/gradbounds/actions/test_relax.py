"""`gradbounds sweep --preset relax`: its grids, its table, its verdicts, its figure, and what it refuses."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from checks.series import exponent_series
from checks.stacks import relaxations
from checks.stacks.exponents import depth_limit
from checks.stacks.judge import verdicts
from checks.stacks.relaxations import RELAXATIONS, relaxation_name, relaxation_rows, relaxation_table
from gradbounds.actions.sweep_tables import relaxation_grids
from gradbounds.cli import main
from gradbounds.grid import stacks
from simulate import sample
from simulate.runs.sample import Samples
from theory import Stack, predict

BASE = Stack(width=64, depth=2, tokens=2, vocab=8)
SOME = {name: RELAXATIONS[name] for name in ("GELU", "causal mask")}


@pytest.fixture(scope="module")
def cells():
    sizes = [(width, 2) for width in (16, 32, 64)] + [(64, depth) for depth in (1, 8)]
    stacks = [
        replace(BASE, placement=placement, width=width, depth=depth, **fields)
        for placement in ("post", "pre") for fields in ({}, *SOME.values()) for width, depth in sizes
    ]  # fmt: skip
    return [sample(stack, draws=64, seed=0) for stack in stacks]


def test_names():
    for name, fields in RELAXATIONS.items():
        assert relaxation_name(Stack(**fields)) == name
    assert relaxation_name(Stack()) == "nothing"
    assert relaxation_name(Stack(mask="causal", ffn_ratio=2.0)) == "ffn_ratio = 2.0, mask = causal"
    base = Stack(mask="causal", activation="gelu")
    assert relaxation_name(base, base) == "nothing"
    assert relaxation_name(replace(base, dropout=0.1), base) == "dropout 0.1"
    assert relaxation_name(Stack(mask="causal"), base) == "activation = relu"


def test_the_table(cells):
    table = relaxation_table(cells, BASE)
    assert list(table["relaxation"]) == ["nothing", "GELU", "causal mask"] * 2
    assert list(table["placement"]) == ["post"] * 3 + ["pre"] * 3
    by_stack = {s.stack: s for s in cells}
    row = table[(table["placement"] == "pre") & (table["relaxation"] == "GELU")].iloc[0]
    squares = [by_stack[replace(BASE, placement="pre", **f)]["grad_sq_W2"].mean(0) for f in ({}, SOME["GELU"])]
    assert row["effect"] == pytest.approx((squares[1][-1] / squares[0][-1]) ** 0.5, rel=1e-5)
    assert row["profile"] == pytest.approx((squares[1][0] / squares[1][-1]) ** 0.5, rel=1e-5)
    predicted = [predict(replace(BASE, placement="pre", **f))["grad_sq_W2"][-1] for f in ({}, SOME["GELU"])]
    assert row["effect_predicted"] == pytest.approx((predicted[1] / predicted[0]) ** 0.5)
    assert row["width_predicted"] == pytest.approx(0.5, abs=1e-9)
    assert table["depth_predicted"].lt(0.2).all()
    assert (table["effect_sem"] > 0).tolist() == [False, True, True] * 2
    for name in ("effect", "width", "depth", "profile"):
        errors = (table[name] - table[f"{name}_predicted"]).abs() / table[f"{name}_sem"].replace(0, 1)
        assert (errors < 6).all(), "narrow networks, but not by that much"


def test_the_verdicts(cells):
    """Rows of T1 for relaxed networks alone, found by `check` too; a depth that takes the exponent away is seen."""
    rows = [v for v in relaxation_rows([s for s in cells if s.stack.relaxed]) if v.claim == "T1"]
    assert {v.relaxed for v in rows} == set(SOME)
    assert len(rows) == 2 * 2 * 2
    assert {v.part for v in verdicts(cells) if v.relaxed} >= {v.part for v in rows}
    assert {v.verdict for v in rows if "in d" in v.part} <= {"holds", "undecided"}

    def spoiled(s):
        last = s["grad_sq_W2"] * s.stack.depth**2.0
        return Samples(s.cell, s.seeds, s.arrays | {"grad_sq_W2": last})

    worse = relaxation_rows([spoiled(s) for s in cells if s.stack.relaxed])
    assert {v.agreement for v in worse if "in L" in v.part and v.claim == "T1"} <= {"differs", "beyond"}


def test_a_limit_that_is_another_fails(cells, monkeypatch):
    monkeypatch.setattr(relaxations, "depth_limit", lambda stack: -1.0)
    rows = relaxation_rows([s for s in cells if s.stack.relaxed])
    assert {v.verdict for v in rows if v.claim == "T1" and "in L" in v.part} == {"fails"}


def test_series_need_three_points_and_one_field(cells):
    assert [len(one) for one in exponent_series(cells, "width")] == [3] * 6
    assert [[s.stack.depth for s in one] for one in exponent_series(cells, "depth")] == [[1, 2, 8]] * 6
    assert exponent_series(cells[:2], "width") == []


def test_grids_leave_out_what_theory_cannot_predict():
    grids, left_out = relaxation_grids(
        Stack(vocab=64), {"width": [32, 64, 128], "depth": [2, 4, 16]}, {"nothing": {}, **RELAXATIONS}
    )
    assert len(grids) == 2 * (1 + len(RELAXATIONS) - 1)
    (line,) = left_out
    assert line.startswith("left out: no norm: logits are too large for a prediction")


def test_the_command(png_alone, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("gradbounds.actions.sweep_tables.RELAXATIONS", SOME)
    line = ["sweep", "--preset", "relax", "--out", str(tmp_path / "run"), "--tokens", "2", "--vocab", "4"]
    line += ["--width", "16", "32", "64", "--depth", "1:4:x2", "--draws", "64"]
    assert main(line) == 0
    said = capsys.readouterr().out
    assert "Pre-LN, relaxed:" in said
    assert "  causal mask" in said
    assert "0 differ" in said
    assert len(pd.read_csv(tmp_path / "run" / "relaxations.csv")) == 6
    assert main(["sweep", "--preset", "relax", "--out", str(tmp_path / "x"), "--width", "16", "32"]) == 2
    assert "width must have at least 3 values to give an exponent, got [16, 32]" in capsys.readouterr().err
    assert main(["sweep", "--preset", "relax", "--out", str(tmp_path / "x"), "--draws", "1"]) == 2
    assert main(["sweep", "--preset", "relax", "--out", str(tmp_path / "x"), "--activation", "swish"]) == 2
    assert not (tmp_path / "x").exists()


def test_what_a_preset_takes_is_said(capsys):
    assert main("sweep --preset compare --width 8 --depth 1 --engine dense".split()) == 2
    assert "--preset compare cannot be combined with --engine; it accepts fields" in capsys.readouterr().err


def test_factors_from_zero():
    """The points are 0, 0.5 and 1; norms are over those of the placement's own 1, and 0 has neither profile nor law."""
    base = Stack(width=16, depth=2, tokens=2, vocab=4)
    steps = {f"branch_scale = {value}": {"branch_scale": value} for value in (0.0, 0.5, 1.0)}
    grids, left_out = relaxation_grids(base, {"width": [8, 16, 32], "depth": [1, 2, 3]}, steps)
    networks = list(dict.fromkeys(stack for grid in grids for stack in stacks(grid)))
    assert not left_out
    assert {stack.branch_scale for stack in networks} == {0.0, 0.5, 1.0}
    cells = [sample(stack, draws=2, seed=0) for stack in networks if stack.placement == "post"]
    table = relaxation_table(cells, base).set_index("relaxation")
    zero, half, one = (table.loc[f"branch_scale = {value}"] for value in (0.0, 0.5, 1.0))
    assert zero["effect"] == zero["effect_predicted"] == 0.0
    assert np.isnan([zero["profile"], zero["width"], zero["depth"]]).all()
    assert one["effect"] == 1.0
    assert 0 < half["effect_predicted"] < 1
    assert not np.isnan([half["width"], half["depth"]]).any()
    assert {row.relaxed for row in relaxation_rows(cells)} == {"branch_scale = 0.5", "branch_scale = 1.0"}


@pytest.mark.parametrize(("placement", "limit"), [("post", 0.0), ("pre", -0.5)])
def test_the_limit_is_that_of_the_norm(placement, limit):
    """Of GELU too the exponents of Theorem 1 in L: constant, and the root of 1/L."""
    stack = Stack(placement=placement, width=64, depth=2, tokens=2, vocab=4, activation="gelu")
    assert depth_limit(stack) == pytest.approx(limit, abs=0.01)
