"""The numbers that docs/theory.md quotes, computed again."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from simulate import sample
from theory import Stack, predict

TEXT = " ".join((Path(__file__).parent.parent / "docs" / "theory.md").read_text(encoding="utf-8").split())


def last_norm(**fields):
    return float(np.sqrt(predict(Stack(**fields))["grad_sq_W2"][-1]))


def test_post_ln_norms():
    assert "the root mean square is 4.631, 4.668, 4.675 at $L = 2, 6, 32$" in TEXT
    assert [round(last_norm(depth=depth), 3) for depth in (2, 6, 32)] == [4.631, 4.668, 4.675]


def test_pre_ln_exponents():
    assert (
        "over $L = 2..64$ the exponent of the recursion itself is -0.46 at $n = 1$ and -0.52 at $n = 8$ and 64" in TEXT
    )
    depths = 2 ** np.arange(1, 7)
    for tokens, quoted in ((1, -0.46), (8, -0.52), (64, -0.52)):
        norms = [last_norm(placement="pre", depth=int(depth), tokens=tokens) for depth in depths]
        assert stats.linregress(np.log(depths), np.log(norms)).slope == pytest.approx(quoted, abs=0.005)


def test_saturated_exponent():
    assert "the norm grows like $d^{1.03}$ over $d = 32..512$ at $V = 64$" in TEXT
    widths = 2 ** np.arange(5, 10)
    norms = [last_norm(width=int(d), depth=2, vocab=64, output_scale=float(d) ** 0.5) for d in widths]
    assert stats.linregress(np.log(widths), np.log(norms)).slope == pytest.approx(1.03, abs=0.005)


@pytest.mark.parametrize(("placement", "coefficient"), [("post", -1.7), ("pre", 1.5)])
def test_last_layer_corrections(placement, coefficient):
    """Relative correction times d at d = 32; false alarm 1e-5, a coefficient off by 1.4 is missed with 1e-3."""
    assert "about $-1.7/d$ for Post-LN and $+1.5/d$ for Pre-LN at $n = 4$, $L = 6$" in TEXT
    stack = Stack(placement=placement, width=32, depth=6, tokens=4, vocab=100)
    values = sample(stack, draws=8000, seed=5)["grad_sq_W2"][:, -1].astype(float)
    found = 32 * (values / predict(stack)["grad_sq_W2"][-1] - 1)
    assert abs(found.mean() - coefficient) < 4.42 * stats.sem(found)
    assert (4.42 + 3.1) * stats.sem(found) < 1.4
