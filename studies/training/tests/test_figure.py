"""The figures of several steps of training: against the step, against the width, and placements side by side."""

import pandas as pd
import pytest

from studies.training.figure import coordinate_check, placement_losses, training_steps


@pytest.fixture
def table():
    """Two placements, two widths and three steps; a mean square grows with the step and the width."""
    rows = [
        {"placement": placement, "width": width, "depth": 2, "quantity": name, "step": step, "layer": layer,
         "mean": 4.0 * step * width / 64, "sem": 0.1 * step}
        for placement in ("post", "pre") for width in (64, 256) for step in (0, 1, 2)
        for name, layer in (("loss", 0), ("logit_change_sq", 0), ("feature_change_sq", 1), ("feature_change_sq", 2))
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_training_steps(table):
    """Roots of mean squares with their errors by the delta method; step 0, where nothing has moved, is left out."""
    figure = training_steps(table)
    loss, features, logits = figure.axes
    assert [axis.get_yscale() for axis in figure.axes] == ["linear", "log", "log"]
    assert loss.containers[3].lines[0].get_ydata() == pytest.approx([0.0, 16.0, 32.0])
    assert [len(axis.containers) for axis in figure.axes] == [4, 4, 4]
    assert logits.containers[1].lines[0].get_xdata() == pytest.approx([1, 2])
    assert logits.containers[1].lines[0].get_ydata() == pytest.approx([4.0, 32**0.5])
    bar = features.containers[0].lines[2][0].get_segments()[0][:, 1]
    assert bar == pytest.approx([2 - 0.05, 2 + 0.05])
    assert loss.containers[0].get_label() == "Post-LN, $d = 64$"


def test_coordinate_check(table):
    """A line a step against the width, and the fitted power in the title; the step before the first has no line."""
    exponents = pd.DataFrame(
        [{"placement": "pre", "depth": 2, "quantity": "logit_change_sq", "step": 2,
          "exponent": 0.5, "low": 0.48, "high": 0.52}]
    )  # fmt: skip
    figure = coordinate_check(table, exponents)
    features, _, logits, _ = figure.axes
    assert [axis.get_yscale() for axis in figure.axes] == ["log"] * 4
    assert [bars.get_label() for bars in features.containers] == ["step 1", "step 2"]
    assert features.containers[1].lines[0].get_xdata() == pytest.approx([64, 256])
    assert features.containers[1].lines[0].get_ydata() == pytest.approx([8**0.5, 32**0.5])
    bar = logits.containers[0].lines[2][0].get_segments()[1][:, 1]
    assert bar == pytest.approx([4 - 0.1 / 4, 4 + 0.1 / 4])
    assert figure.axes[3].get_title() == r"step 2: $d^{0.50\pm0.02}$"
    assert [axis.get_title() for axis in figure.axes[:3]] == ["Post-LN, $L = 2$", "Pre-LN, $L = 2$", ""]
    with pytest.raises(ValueError, match="^table must have at least two widths, got 1"):
        coordinate_check(table[table["width"] == 64])


def test_placement_losses(table):
    figure = placement_losses(pd.concat([table, table.assign(depth=4)]), "rate 0.1")
    assert [axis.get_title() for axis in figure.axes] == ["$d = 256$, $L = 2$", "$d = 256$, $L = 4$"]
    assert [bars.get_label() for bars in figure.axes[1].containers] == ["Post-LN", "Pre-LN"]
    assert figure.axes[0].containers[0].lines[0].get_ydata() == pytest.approx([0.0, 16.0, 32.0])
    assert figure.axes[0].get_xlabel() == "step $k$, rate 0.1"
