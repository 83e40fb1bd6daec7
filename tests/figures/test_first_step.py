"""The figures of stable rates, medians with quartiles, and of steps of training."""

import pandas as pd
import pytest

from figures import stable_rates, training_steps


def test_stable_rates():
    rows = [
        {"loss": loss, "placement": placement, "width": 128, "depth": depth, "eta_max": rate / depth, "2/λ": 0.01,
         "bounded": depth > 1 or placement == "post"}
        for loss in ("squared", "cross-entropy") for placement in ("post", "peri") for depth in (1, 2, 4)
        for rate in (1.0, 2.0, 3.0, 4.0, 5.0)
    ]  # fmt: skip
    figure = stable_rates(pd.DataFrame(rows), 128)
    assert [axis.get_title() for axis in figure.axes] == ["squared, $d = 128$", "cross-entropy, $d = 128$"]
    post, peri = figure.axes[0].containers
    assert post.lines[0].get_ydata() == pytest.approx([3.0, 1.5, 0.75])
    assert peri.lines[0].get_ydata() == pytest.approx([1.5, 0.75])
    bars = [segment[:, 1].tolist() for segment in post.lines[2][0].get_segments()]
    assert bars[0] == pytest.approx([2.0, 4.0])
    assert {axis.get_yscale() for axis in figure.axes} == {"log"}


def test_training_steps():
    """Roots of mean squares with their errors by the delta method; step 0, where nothing has moved, is left out."""
    rows = [
        {"placement": placement, "width": width, "depth": 2, "quantity": name, "step": step, "layer": layer,
         "mean": 4.0 * step * width / 64, "sem": 0.1 * step}
        for placement in ("post", "pre") for width in (64, 256) for step in (0, 1, 2)
        for name, layer in (("loss", 0), ("logit_change_sq", 0), ("feature_change_sq", 1), ("feature_change_sq", 2))
    ]  # fmt: skip
    figure = training_steps(pd.DataFrame(rows))
    loss, features, logits = figure.axes
    assert [axis.get_yscale() for axis in figure.axes] == ["linear", "log", "log"]
    assert loss.containers[3].lines[0].get_ydata() == pytest.approx([0.0, 16.0, 32.0])
    assert [len(axis.containers) for axis in figure.axes] == [4, 4, 4]
    assert logits.containers[1].lines[0].get_xdata() == pytest.approx([1, 2])
    assert logits.containers[1].lines[0].get_ydata() == pytest.approx([4.0, 32**0.5])
    bar = features.containers[0].lines[2][0].get_segments()[0][:, 1]
    assert bar == pytest.approx([2 - 0.05, 2 + 0.05])
    assert loss.containers[0].get_label() == "Post-LN, $d = 64$"
