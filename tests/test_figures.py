"""Figures, read as data: axes, scales, units, error bars."""

import pytest
from matplotlib.container import ErrorbarContainer

from checks import comparison
from checks.profiles import profile_cells
from checks.theorem1 import last_layer_table
from figures import hidden_energy, layer_profile, scaling
from theory.stack import TITLES


def error_bars(axes):
    return [c for c in axes.containers if isinstance(c, ErrorbarContainer)]


@pytest.mark.parametrize(("against", "values"), [("width", [64, 128, 256]), ("depth", [2, 4, 6])])
def test_scaling(small_grid, against, values):
    # the grid's vocabulary is fixed, so a series at fixed V/d has one width: give it one
    table = last_layer_table(small_grid)
    if against == "width":
        table["vocab"] = table["width"]
    figure = scaling(table, against)
    assert len(figure.axes) == 2
    for axes, placement in zip(figure.axes, TITLES, strict=True):
        assert axes.get_xscale() == axes.get_yscale() == "log"
        assert f"{against} $" in axes.get_xlabel()
        assert TITLES[placement] in axes.get_title()
        assert ("$V = d$" if against == "width" else "$V = 64$") in axes.get_title()
        assert [label.get_text() for label in axes.get_xticklabels()] == [str(v) for v in values]
        rows = table[(table["placement"] == placement)]
        rows = rows[rows["depth"] == 2] if against == "width" else rows[rows["width"] == 256]
        rows = rows.sort_values(against)
        (bars,) = error_bars(axes)
        points, _, (segments,) = bars.lines
        assert points.get_ydata() == pytest.approx(rows["norm"].to_numpy())
        half = [(s[1, 1] - s[0, 1]) / 2 for s in segments.get_segments()]
        assert half == pytest.approx((2 * rows["sem"]).to_numpy())
        lines = {line.get_label(): line.get_ydata() for line in axes.lines}
        assert lines["large-width theory"] == pytest.approx(rows["predicted"].to_numpy())
        assert lines["Theorem 1, with constants"] == pytest.approx(rows["bound"].to_numpy())
    assert "rms over draws" in figure.axes[0].get_ylabel()
    assert "2 s.e." in str([t.get_text() for t in figure.axes[0].get_legend().get_texts()])


def test_scaling_without_a_series(small_grid):
    table = last_layer_table(small_grid).query("width == 64")
    with pytest.raises(ValueError, match="^table must have two cells that differ in width alone"):
        scaling(table, "width")


def test_layer_profile(small_grid):
    table = comparison(profile_cells(small_grid))
    figure = layer_profile(table)
    for axes, placement in zip(figure.axes, TITLES, strict=True):
        assert axes.get_yscale() == "log"
        assert axes.get_xlabel() == "layer $l$"
        assert len(error_bars(axes)) == 3
        rows = table.query("placement == @placement and quantity == 'grad_sq_W2'").sort_values("layer")
        points = {bars.get_label(): bars.lines[0].get_ydata() for bars in error_bars(axes)}
        assert points["$W^2$"] == pytest.approx((rows["mean"] ** 0.5).to_numpy())
        law = next(line for line in axes.lines if line.get_label() == "appendix F, $W^2$").get_ydata()
        assert law[-1] / law[0] == pytest.approx((3 / 2) ** (5 / 2) if placement == "post" else 1.0)
    with pytest.raises(ValueError, match="^table must hold grad_sq_W1"):
        layer_profile(table[table["quantity"] == "loss"])


def test_hidden_energy(small_grid):
    table = comparison(profile_cells(small_grid))
    post, pre = hidden_energy(table).axes
    for axes, placement in ((post, "post"), (pre, "pre")):
        rows = table[(table["placement"] == placement) & (table["quantity"] == "hidden_energy")]
        (bars,) = error_bars(axes)
        assert bars.lines[0].get_ydata() == pytest.approx(rows["mean"].to_numpy())
        low, high = axes.get_ylim()
        assert low < (rows["mean"] - 2 * rows["sem"]).min()
        assert high > (rows["mean"] + 2 * rows["sem"]).max()
        assert "/d$" in axes.get_ylabel() or "/d" in axes.get_ylabel()
    (band,) = pre.collections[:1]
    edges = band.get_paths()[0].vertices
    assert edges[:, 1].min() == pytest.approx(1.5)
    assert edges[:, 1].max() == pytest.approx(1 + 3 * 6 / 2)
    with pytest.raises(ValueError, match="^table must hold hidden_energy"):
        hidden_energy(table[table["quantity"] == "loss"])
