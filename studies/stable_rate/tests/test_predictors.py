"""The figure of stable rates: medians with quartiles."""

import pandas as pd
import pytest

from studies.stable_rate.figure import stable_rates


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
