"""The figure of translation models: its legend shows what is drawn."""

import pandas as pd
import pytest

from studies.fig3.figure import fig3


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_legend_has_error_bars_where_there_are_several_seeds(seeds):
    last = pd.DataFrame(
        [("post", depth, 1.0 + seed) for depth in (6, 8) for seed in range(seeds)],
        columns=["placement", "depth", "value"],
    )
    profiles = pd.DataFrame([
        {"placement": placement, "part": "decoder", "matrix": "W2", "depth": 6, "without": "nothing", "layer": layer,
         "mean norm": 1.0, "mean norm sem": 0.1}
        for placement in ("post", "pre") for layer in (1, 2)
    ])  # fmt: skip
    shares = pd.DataFrame({"placement": []})
    axis = fig3(profiles, last, shares).axes[2]
    (handle,), _ = axis.get_legend_handles_labels()
    assert handle.has_yerr == (seeds > 1)
