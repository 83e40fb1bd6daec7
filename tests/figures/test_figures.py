"""Figures, read as data: axes, scales, units, error bars."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from bench.drawing import growth_tables
from bench.engine_cost import engine_cost
from bench.layer_growth import layer_growth
from checks.series import longest_series
from checks.stacks.profiles import profile_cells
from checks.stacks.run_tables import excess_table
from checks.stacks.theorem1 import last_layer_table
from checks.theory_and_samples import comparison
from figures.concentration import concentration
from figures.layer_profile import layer_profile
from figures.proof_chain import proof_slack
from figures.published import published, published_panels
from figures.scaling import scaling
from gradbounds.cli import main
from gradbounds.figure_files import save
from simulate import sample
from studies.mean_hessian.figure import mean_hessian
from theory import Stack
from theory.paper.proof_chain import STEPS
from theory.stack import PAPER, TITLES

ROOT = Path(__file__).parents[2]


def error_bars(axes):
    return [c for c in axes.containers if isinstance(c, ErrorbarContainer)]


GRIDS = [("width", [64, 128, 256]), ("depth", [2, 4, 6])]


def bar_halves(bars, axis=1):
    (segments,) = bars.lines[2]
    return [(s[1, axis] - s[0, axis]) / 2 for s in segments.get_segments()]


@pytest.mark.parametrize(("against", "values"), GRIDS)
@pytest.mark.parametrize("vocab", ["64", "d"])
def test_scaling(small_grid, against, values, vocab):
    table = last_layer_table(small_grid)
    if vocab == "d":
        table["vocab"] = table["width"]
    series = longest_series(table, against)
    figure = scaling(series, against)
    (axes,) = figure.axes
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert f"{against} $" in axes.get_xlabel()
    assert "rms over draws" in axes.get_ylabel()
    said = figure.get_supxlabel()
    assert "2 s.e." in said and f"$V = {256 if (vocab, against) == ('d', 'depth') else vocab}$" in said
    assert [label.get_text() for label in axes.get_xticklabels()] == [str(v) for v in values]
    every = [line.get_ydata() for line in axes.lines]
    for bars, placement in zip(error_bars(axes), PAPER, strict=True):
        rows = table[(table["placement"] == placement)]
        rows = rows[rows["depth"] == 2] if against == "width" else rows[rows["width"] == 256]
        rows = rows.sort_values(against)
        assert bars.lines[0].get_ydata(orig=False) == pytest.approx(rows["norm"].to_numpy())
        assert bar_halves(bars) == pytest.approx((2 * rows["sem"]).to_numpy())
        for column in ("predicted", "bound"):
            assert any(line == pytest.approx(rows[column].to_numpy()) for line in every if len(line) == len(rows))
    names = [text.get_text() for text in axes.texts]
    assert {f"{TITLES[placement]}, {name}" for placement in PAPER for name in ("gradient", "Theorem 1")} < set(names)
    first = series[series["placement"] == PAPER[0]]
    gaps = (first["bound"] / first["predicted"]).to_numpy()
    said = f"Theorem 1 is {gaps.min():,.0f} to {gaps.max():,.0f} times too large in {TITLES[PAPER[0]]}"
    assert figure.get_suptitle().startswith(said)
    assert f"\u00d7{gaps[0]:,.0f}" in names


@pytest.mark.parametrize("lost", [PAPER[:1], PAPER])
def test_placements_without_a_bound_are_drawn(small_grid, tmp_path, lost):
    """Theorem 1 has no bound of Peri-LN or DeepNorm, and the factor of the next placement is named."""
    series = longest_series(last_layer_table(small_grid), "width")
    series.loc[series["placement"].isin(lost), "bound"] = np.nan
    figure = scaling(series, "width")
    save(figure, tmp_path, "lost", drawn_from="three networks", suffixes=("svg",))
    assert ("no bound here" in figure.get_suptitle()) == (len(lost) == 2)
    assert sum("Theorem 1" in text.get_text() for text in figure.axes[0].texts) == 2 - len(lost)


def test_equal_figures_are_equal_files(small_grid, tmp_path):
    for name in ("one", "other"):
        figure = scaling(longest_series(last_layer_table(small_grid), "width"), "width")
        save(figure, tmp_path, name, drawn_from="three networks", suffixes=("svg", "png", "pdf"))
    for suffix in ("svg", "png", "pdf"):
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"other.{suffix}").read_bytes()


def test_scaling_without_a_series(small_grid):
    table = last_layer_table(small_grid).query("width == 64")
    with pytest.raises(ValueError, match="^table must have two cells that differ only in width"):
        longest_series(table, "width")


def test_layer_profile(small_grid):
    table = comparison(profile_cells(small_grid))
    figure = layer_profile(table)
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    assert axes.get_xlabel() == "layer $l$"
    assert {text.get_text() for text in axes.texts} == {"appendix F", *(TITLES[placement] for placement in PAPER)}
    assert figure.get_suptitle() == "Everybody believes the dotted line"
    laws = [line.get_ydata() for line in axes.lines if line.get_linestyle() == ":"]
    for bars, law, placement in zip(error_bars(axes), laws, PAPER, strict=True):
        rows = table.query("placement == @placement and quantity == 'grad_sq_W2'").sort_values("layer")
        assert bars.lines[0].get_ydata() == pytest.approx((rows["mean"] ** 0.5).to_numpy())
        assert law[-1] / law[0] == pytest.approx((3 / 2) ** (5 / 2) if placement == "post" else 1.0)
    (alone,) = layer_profile(table[table["placement"] == "pre"]).axes
    assert {text.get_text() for text in alone.texts} == {"appendix F", "$W^1$", "$W^2$", "$W^V$"}
    with pytest.raises(ValueError, match="^table must hold grad_sq_W1"):
        layer_profile(table[table["quantity"] == "loss"])


def test_proof_slack():
    """A bar for each step of each placement in the widest network, and the step that grows against the width."""
    steps = np.array([1.0, 3, 3, 30, 200, 600, 1800])
    table = pd.concat(
        pd.DataFrame({"step": range(7), "measured": steps * np.where(np.arange(7) > 2, k, 1)}).assign(
            placement=placement, width=64 * k, depth=6, tokens=8
        )
        for placement in ("post", "pre")
        for k in (1, 2)
    )
    figure = proof_slack(table)
    axes, against = figure.axes
    assert axes.get_xscale() == "log" and "$d = 128$" in axes.get_title()
    assert {text.get_text() for text in axes.texts} == {"\u00d73", "\u00d71", "\u00d720", "\u00d76.67"}
    ends = sorted(bar.get_x() + bar.get_width() for bar in axes.patches)
    assert ends == pytest.approx(sorted([3, 3, 60, 400, 1200, 3600] * 2))
    assert figure.get_suptitle().endswith(f"one step: {STEPS[2].name}, \u00d720")
    assert [line.get_ydata().tolist() for line in against.lines] == [pytest.approx([10, 20])] * 2
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Post-LN", "Pre-LN"]


def test_concentration():
    """Shares of draws with their intervals, theory and the paper's example, on a log axis."""
    cells = [sample(Stack(placement=p, width=16, depth=1, tokens=1, vocab=2), draws=512, seed=0) for p in PAPER]
    table = excess_table([*cells, sample(Stack(width=16, depth=1, tokens=2, vocab=2), draws=2, seed=0)])
    assert set(table["tokens"]) == {1}
    assert (table["low"] <= table["share"]).all()
    assert (table["share"] <= table["high"]).all()
    inside = (table["low"] <= table["predicted"]) & (table["predicted"] <= table["high"])
    assert inside.mean() > 0.5, "points of one network share their draws"
    for axes, placement in zip(concentration(table).axes, PAPER, strict=True):
        assert axes.get_yscale() == "log"
        assert placement.title() in axes.get_title()
        (bars,) = error_bars(axes)
        shown = table[(table["placement"] == placement) & (table["share"] > 0)].iloc[::2]
        assert bars.lines[0].get_ydata() == pytest.approx(shown["share"].to_numpy())
        curves = [line.get_ydata() for line in axes.lines if len(line.get_ydata()) == 25]
        for name in ("predicted", "example"):
            wanted = table[table["placement"] == placement][name].to_numpy()
            assert any(np.allclose(curve, wanted) for curve in curves), name
    with pytest.raises(ValueError, match="^cells must include tokens = 1"):
        excess_table([sample(Stack(width=8, depth=1, vocab=2), draws=2, seed=0)])


def test_engine_cost():
    rows = [
        (w, what, w**p) for what, p in (("loop", 2), ("dense", 2), ("conditioned", 1), ("limit", 1)) for w in (8, 64)
    ]
    table = pd.DataFrame(rows, columns=["width", "what", "seconds"]).assign(depth=12, tokens=16)
    (axes,) = engine_cost(table).axes
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert "seconds per draw" in axes.get_ylabel()
    assert "width" in axes.get_xlabel()
    assert "$L = 12$" in axes.get_title()
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert lines["conditioned engine"] == pytest.approx([8, 64])
    assert lines["loop over torch.nn"] == pytest.approx([64, 4096])
    assert [text.get_text() for text in axes.texts] == [line.get_label() for line in axes.lines]


def test_mean_hessian():
    """A row a setting, bars of four standard errors, the shade behind those without a condition."""
    table = pd.DataFrame({
        "setting": ["a", "b", "c"], "outside": [False, False, True], "hessian": [0.0, 0.01, 0.5],
        "hessian_sem": 0.02, "radial": [-1.0, -1.1, -0.9], "radial_sem": 0.01,
    })  # fmt: skip
    (axes,) = mean_hessian(table).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    hessian, radial = error_bars(axes)
    assert hessian.lines[0].get_xdata() == pytest.approx(table["hessian"].to_numpy())
    assert radial.lines[0].get_xdata() == pytest.approx(table["radial"].to_numpy())
    assert hessian.lines[2][0].get_segments()[1][:, 0] == pytest.approx([0.01 - 0.08, 0.01 + 0.08])
    (shade,) = axes.patches
    shaded = shade.get_extents().transformed(axes.transData.inverted())
    assert sorted(shaded.intervaly) == pytest.approx([1.5, 2.5])
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "the first setting is at the top"


def test_layer_growth():
    """The committed samples: every network's point with its error, beside the closed form."""
    data = ROOT / "checks" / "data"
    table, curves = growth_tables([data / "growth.json", data / "growth-gains.json"])
    units, gains = layer_growth(table, curves).axes
    assert "over that of $l + 1$" in units.get_ylabel()
    assert [label.get_text() for label in units.get_xticklabels()] == ["linear", "ReLU", "GELU", "SiLU", "tanh"]
    assert gains.get_xscale() == "log"
    plain, gated = error_bars(units)
    shown = table[table["ffn"] == "plain"].set_index("activation")["growth"]
    order = ["identity", "relu", "gelu", "silu", "tanh"]
    assert plain.lines[0].get_ydata() == pytest.approx(shown.loc[order].to_numpy())
    rows = table[(table["initialization"] == "he") & (table["ffn"] == "gated")].sort_values("ffn_ratio")
    he = error_bars(gains)[2]
    assert he.lines[0].get_ydata() == pytest.approx(rows["growth"].to_numpy())
    assert bar_halves(he) == pytest.approx((2 * rows["sem"]).to_numpy())
    assert gated.lines[0].get_ydata()[1] == pytest.approx(2 / np.sqrt(3), abs=0.01)
    assert gains.lines[0].get_ydata()[-1] == pytest.approx(1 / 0.9638, abs=1e-4)


def test_a_figure_is_drawn_into_given_axes_under_the_callers_style(small_grid):
    table = comparison(profile_cells(small_grid))
    series = longest_series(last_layer_table(small_grid), "width")
    with mpl.rc_context({"font.family": "serif", "axes.grid": False}):
        figure = Figure()
        axes = figure.subplots(2)
        assert layer_profile(table, axes=axes[:1]) is scaling(series, "width", axes=axes[1:2]) is figure
    own = (layer_profile(table), scaling(series, "width"))
    for mine, theirs in zip([axes for one in own for axes in one.axes], axes, strict=False):
        assert [line.get_xydata().tolist() for line in mine.lines] == [
            line.get_xydata().tolist() for line in theirs.lines
        ]
        assert theirs.title.get_fontfamily() == ["serif"]
    assert not figure.legends, "a legend of the whole figure would be the caller's to place"
    with pytest.raises(ValueError, match="^axes must have one entry for each panel, which are 1, got 2"):
        layer_profile(table, axes=axes)


@pytest.mark.parametrize("source", ["completep", "transformers_get_stable"])
def test_points_are_drawn_over_theory(source):
    assert len(published(source).axes) == len(published_panels(source))


def test_a_figure_says_its_seconds(tmp_path, capsys):
    assert main(["claims", "TS1", "--figure", str(tmp_path / "a.png"), "--json"]) == 0
    assert "published points: about 1." in capsys.readouterr().err
