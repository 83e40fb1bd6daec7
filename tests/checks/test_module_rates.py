"""Rates of the first step from a module, judged: means, exponents, what limits, and what is said of a learning rate."""

import numpy as np
import pandas as pd
import pytest

from checks.models.module_rates import geometric_mean, module_rates, ratio_of_means
from gradbounds import probe
from gradbounds.cli import main
from simulate.curvature.module_step import COLUMNS
from tests.helpers.probed_modules import one_module
from theory import Stack


def steps(scatter=0.1, seeds=6):
    """Of critical rates 2/(d L) and break-even rates 10/L, lognormal scatter on both."""
    random, rows = np.random.default_rng(0), []
    for width in (32, 64, 128):
        for depth in (1, 2, 4):
            for seed in range(seeds):
                noise, other = np.exp(scatter * random.standard_normal(2))
                size = {"width": width, "depth": depth, "seed": seed, "optimizer": "sgd"}
                whole = {"group": "all", "gain": 1.0, "curvature": width * depth / noise, "share": 1.0}
                whole |= {"hessian": -1.0 if seed == 0 else 2.0, "break_even_rate": 10 * other / depth, "passes": 7}
                rows.append(size | whole | {"loss": 3.0})
                rows.append(size | {"group": "layers.0", "gain": 0.5, "curvature": 0.2 * width * depth, "share": 0.7})
                rows.append(size | {"group": "head", "gain": 0.5, "curvature": 0.1 * width * depth, "share": 0.3})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def test_rates_exponents_and_words():
    """True exponents are inside their intervals (of four at 95%, with a fixed seed), and others are not."""
    rates = module_rates(steps(), learning_rate=0.04)
    exponents = rates.exponents.set_index(["rate", "against"])
    for key, true in {("critical", "width"): -1, ("critical", "depth"): -1, ("break-even", "depth"): -1}.items():
        row = exponents.loc[key]
        assert row["low"] < true < row["high"] and not row["low"] < true + 0.3 < row["high"]
    assert exponents.loc[("break-even", "width")]["low"] < 0 < exponents.loc[("break-even", "width")]["high"]
    last = rates.table.iloc[-1]
    assert (last["limits"], last["limits_share"]) == ("layers.0", pytest.approx(0.7))
    assert last["limits_rate"] == pytest.approx(2 * 0.5 / (0.2 * 128 * 4))
    assert (last["hessian_none"], last["hessian_rate"]) == (1, 1.0)
    # 2/(d L) is 0.0625 at (32, 1) and 0.031 from there on.
    assert rates.table["below_critical"].tolist() == [6.0] + [0.0] * 8
    assert rates.table["below_break_even"].tolist() == [6.0] * 9
    said = "\n".join(rates.lines())
    assert "learning rate 0.04, first step of sgd: below the break-even rate in 54 of 54 networks" in said
    assert "first step of sgd: critical ~ d^-" in said and "layers.0, 70%, alone 0.00977" in said


def test_means_and_their_errors():
    """By the bootstrap, and by hand."""
    random = np.random.default_rng(1)
    top, bottom = random.gamma(20, size=(2, 40))
    rate, sem = ratio_of_means(top, bottom)
    again = random.integers(40, size=(4000, 40))
    assert rate == top.mean() / bottom.mean()
    assert sem == pytest.approx(np.std(top[again].mean(1) / bottom[again].mean(1)), rel=0.1)
    middle, low, high = geometric_mean(np.array([1.0, 100.0]))
    half = 12.706 * np.log(10)  # of the mean of two logarithms, Student's t of one degree of freedom
    assert (middle, np.log(high / 10), np.log(low / 10)) == pytest.approx((10, half, -half), rel=1e-3)


def test_theory_without_a_rule_is_said_once():
    def stack(width, depth):
        return Stack(width=width, depth=depth, tokens=4, vocab=8, dropout=0.1)

    rates = module_rates(steps(seeds=2), stack)
    assert len(rates.reasons) == 1 and rates.table["predicted"].isna().all()
    assert sum(line.startswith("theory of the first step has no rule: stack must") for line in rates.lines()) == 1


def test_the_report_and_the_command(tmp_path, monkeypatch, capsys):
    slow, fast = (
        probe(one_module, widths=[6], depths=[2], seeds=2, first_step=["sgd"], learning_rate=rate).alarms
        for rate in (1e-4, 1e3)
    )
    assert not [alarm for alarm in slow if alarm.kind == "rate"]
    (alarm,) = [alarm for alarm in fast if alarm.kind == "rate"]
    assert "times the one at which the first step of sgd gains nothing [at (width, depth) = (6, 2)]" in str(alarm)
    report = probe(one_module, widths=[6], depths=[2], seeds=2, first_step=["sgd", "adam"], learning_rate=1e-4)
    assert report.rates.table["optimizer"].tolist() == ["sgd", "adam"]
    assert (report.rates.table["critical_rate"] > 0).all()
    assert any("learning rate 0.0001, first step of adam" in line for line in report.lines())
    assert probe(one_module, widths=[6], depths=[2], seeds=1).rates is None
    (tmp_path / "module_of_rates.py").write_text("from tests.helpers.probed_modules import one_module\n")
    monkeypatch.chdir(tmp_path)
    line = ["probe", "module_of_rates:one_module", "--width", "6", "--depth", "2", "--seeds", "2"]
    assert main([*line, "--first-step", "sgd", "muon", "polar", "--out", "out"]) == 0
    assert "Sequential.1" not in capsys.readouterr().out
    assert len(pd.read_csv(tmp_path / "out" / "first_step.csv")) == 3
    assert set(pd.read_csv(tmp_path / "out" / "first_step_seeds.csv")["group"]) == {"all", "0", "1"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"first_step": ["lion"]}, "^first_step must name some of sgd, adam, polar, muon, got 'lion'"),
        ({"learning_rate": 1e-3}, "^first_step must name an optimizer where learning_rate is given"),
        ({"first_step": ["sgd"], "learning_rate": 0.0}, "^learning_rate must be a number above 0, got 0.0"),
    ],
)
def test_what_is_refused(more, message):
    with pytest.raises(ValueError, match=message):
        probe(one_module, widths=[6], depths=[2], seeds=1, **more)


def test_a_module_without_matrices_has_no_step_of_muon():
    def vectors(width, depth):
        module, batch = one_module(width, depth)
        for layer in module:
            layer.inner.weight.requires_grad_(False)
        return module, batch

    with pytest.raises(ValueError, match="must have matrices for muon, and has none at width 6, depth 2"):
        probe(vectors, widths=[6], depths=[2], seeds=1, first_step=["muon"])
