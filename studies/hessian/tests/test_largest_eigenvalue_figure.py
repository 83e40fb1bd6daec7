"""The figure of the Hessian's largest eigenvalue."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer

from studies.hessian.largest_eigenvalue_figure import hessian_eigenvalue


def test_hessian_eigenvalue():
    """Marks are what is measured, with bars of two standard errors; lines are theory, in the same look."""
    rows = [(p, d, n, v) for p in ("post", "pre") for d in (16, 32) for n, v in ((4, 8), (4, 64), (16, 64))]
    table = pd.DataFrame(rows, columns=["placement", "width", "tokens", "vocab"]).assign(ratio_sem=0.1)
    table = table.assign(ratio=np.arange(1.0, 13.0), theory=np.arange(2.0, 14.0))
    axes = hessian_eigenvalue(table, tokens=4, vocab=64).axes
    assert "Pre-LN, $n=4$" in axes[1].get_title()
    assert "Post-LN, $V=64$" in axes[2].get_title()
    bars = [one for one in axes[3].containers if isinstance(one, ErrorbarContainer)]
    assert [bar.get_label() for bar in bars] == ["$d=16$", "$d=32$"]
    assert bars[1].lines[0].get_xdata() == pytest.approx([2.0, 8.0])
    assert bars[1].lines[0].get_ydata() == pytest.approx([12.0, 11.0])
    assert bars[1].lines[2][0].get_segments()[0][:, 1] == pytest.approx([11.8, 12.2])
    theory = [line for line in axes[3].lines if line.get_linestyle() != "None"]
    assert theory[1].get_ydata() == pytest.approx([13.0, 12.0])
    assert axes[0].lines[0].get_xdata() == pytest.approx([1.0, 8.0])
