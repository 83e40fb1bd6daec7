"""Steps held against a parametrization: right ones pass, breaches are named with what mends them."""

import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import gradbounds as gb
from checks.models.coordinate_causes import causes
from checks.models.coordinate_exponents import exponents, judged, probe_grid
from checks.models.judge import judged_steps
from checks.models.parametrizations import crowded, own_change_exponents
from checks.models.sections import steps_notes
from figures.probe import coordinates
from gradbounds.cli import main
from simulate.modules.step_optimizers import optimizer_factory
from tests.helpers.parametrized_models import BREACHES, HEALTHY, OF_DEPTH, adam, check, perceptron, sgd, transformer


@pytest.fixture(scope="module")
def healthy():
    return check(transformer, adam, "mup", seeds=3, steps=1)


def test_a_right_transformer_passes_and_says_so(healthy):
    healthy.assert_healthy()
    table = healthy.steps
    assert set(table.loc[table["quantity"] == "own", "role"]) == {"input", "hidden", "output", "vector", "inner"}
    assert not (table["word"] == "breach").any()
    assert re.search(r"no exponent is outside the range of mu-P; \d+ agree|is mu-P: all", healthy.judgement())
    assert healthy.lines()[0] == f"Verdict: {healthy.judgement()}"
    head = table[(table["place"] == "head") & (table["step"] == 0)].iloc[0]
    # Entries of one size times 1/n, over n independent coordinates.
    assert head["low"] - 0.05 < -0.5 < head["high"] + 0.05


def test_equal_alarms_of_several_sizes_are_one():
    def forgets(module, *_):
        return torch.optim.Adam(list(module.parameters())[1:])

    alarms = check(transformer, forgets, "mup", seeds=2, steps=1).alarms
    assert [alarm.where for alarm in alarms if alarm.kind == "optimizer"] == [((32, 2), (64, 2), (128, 2))]


def test_a_power_that_changes_with_the_width_is_noted_and_no_other(healthy):
    """Beside fits and local slopes of each one alone; 1000 straight rows bend beyond 99.9% once in the mean."""
    rng, sizes = np.random.default_rng(5), np.repeat([32, 64, 128], 8)
    straight = (sizes**-0.3 * np.exp(0.03 * rng.standard_normal((1000, len(sizes))))).astype(float)
    bent = (1.0 + 32 * sizes**-1.0) * np.exp(0.003 * rng.standard_normal(len(sizes)))
    rows = judged(np.vstack([straight, bent]), sizes, [(-0.5, 0.0)] * 1001)
    assert sum(abs(row[-2]) > row[-1] for row in rows[:-1]) <= 6
    exponents = np.array([row[0] for row in rows])
    assert abs(exponents[:-1].mean() + 0.3) < 0.002
    exponent, low, high, *_, bend, half = rows[-1]
    means = [np.log(bent[sizes == size]).mean() for size in (32, 64, 128)]
    slopes = np.diff(means) / np.log(2)
    assert exponent == pytest.approx(np.polyfit(np.log([32, 64, 128]), means, 1)[0])
    assert (low + high) / 2 == pytest.approx(exponent)
    assert bend == pytest.approx(slopes[1] - slopes[0])
    assert bend > half
    table = healthy.steps.assign(bend=0.0)
    assert steps_notes([], healthy.stepped, table) == list(healthy.stepped.notes)
    at = table.index[table["off"].notna()][3]
    for name, value in (("bend", bend), ("bend_half", half)):
        table.loc[at, name] = value
    (note,) = steps_notes([], healthy.stepped, table)[len(healthy.stepped.notes) :]
    assert note.startswith("1 of ")
    assert f"of {table['place'][at]}" in note
    assert f"by {bend:+.2f}" in note
    table.loc[at, "bend_half"] = 1.1 * bend
    assert steps_notes([], healthy.stepped, table) == list(healthy.stepped.notes)


def test_powers_of_a_standard_first_step_are_those_of_every_rate():
    """The large one changes what later layers are given by more than that was."""
    small, large = (
        check(transformer, partial(adam, rate=rate), "sp", seeds=2, steps=1).steps.query("quantity == 'own'")
        for rate in (1e-5, 1e-2)
    )
    judged_ones = small["off"].notna()
    assert judged_ones.sum() > 10
    np.testing.assert_allclose(large["exponent"][judged_ones], small["exponent"][judged_ones], atol=0.01)


def test_a_right_standard_muon_passes():
    """Of the output matrix, of 32 rows beside 32 to 128 columns, the power is between both limits, and goes to 1/2."""
    _, muon = optimizer_factory("muon", 1e-3)
    report = check(transformer, lambda module, *_: muon(module), "sp", seeds=3, steps=1)
    report.assert_healthy()
    table = report.steps[report.steps["quantity"] == "own"].set_index(["place", "parameter"])
    assert table["off"].abs().max() < 0.15
    head = table.loc["head", "weight"]
    assert (head["asked_low"], head["asked_high"]) == (0.0, 0.5)
    assert 0.2 < head["exponent"] < 0.5


def test_the_picture_has_a_panel_for_each_matrix(healthy):
    table = healthy.stepped.coordinates()
    figure = coordinates(table)
    assert isinstance(figure, Figure)
    assert 0 < len(figure.axes) <= 12
    frame = healthy.to_frame()
    rows = frame[(frame["place"] == "head") & (frame["quantity"] == "coordinates")]
    expected = rows[(rows["width"] == 64) & (rows["step"] == 1)]["value"].mean()
    mine = table[(table["place"] == "head") & (table["width"] == 64) & (table["step"] == 1)]["value"]
    np.testing.assert_allclose(mine, expected)


def test_a_right_perceptron_passes():
    check(*HEALTHY["perceptron, SGD, mu-P"]).assert_healthy()


@pytest.mark.parametrize(("optimizer", "breach", "kind", "what"), [
    (adam, "rate of one matrix", "learning rate",
     "hidden.0.weight: its learning rate scales like width^0.00 and must scale like width^-1: at width 128 it is 4.0 "
     "times too large relative to width 32"),
    (adam, "initial scale too small", "initial scale", "hidden.1.weight: its entries scale like width^-1 and"),
    (sgd, "no output multiplier", "multiplier",
     "head.weight: it is the output matrix, and logits must be multiplied by width^-1: at width 128 it is 4.0 times"),
])  # fmt: skip
def test_breaches_of_perceptrons_are_named_with_what_mends_them(optimizer, breach, kind, what):
    """Others are the evidence's, with the Transformer."""
    report = check(perceptron, optimizer, "mup", breach)
    assert kind == report.alarms[0].kind
    assert what in str(report.alarms[0])
    hidden = any(
        note.startswith("learning rates are not judged while the initial scale is wrong") for note in report.notes
    )
    assert hidden == (kind == "initial scale")
    with pytest.raises(AssertionError, match="is not mu-P"):
        report.assert_healthy()


@pytest.mark.parametrize("breach", ["root of d_k", "tied, no multiplier", "epsilon"])
def test_breaches_of_the_transformer(breach):
    kind, name = BREACHES[breach]
    alarms = check(transformer, adam, "mup", breach, seeds=2, steps=1).alarms
    assert [alarm.kind for alarm in alarms] == [kind]
    assert name in alarms[0].part
    if kind == "attention":
        assert (
            "times 0.125, which scales like d_k^-0.50 and must scale like d_k^-1: at d_k = 64 it is 2.0"
            in alarms[0].what
        )


def test_entries_are_the_cause_where_the_multiplier_makes_the_update_right():
    """As of nn.Linear's own entries, of 1/n in variance, before the 1/n of mu-P."""

    def small_entries(width, depth, rule="mup", breach=""):
        module, batch = transformer(width, depth, rule, breach)
        with torch.no_grad():
            module.head.weight.mul_((width / 32) ** -0.5)
        return module, batch

    (alarm,) = check(small_entries, adam, "mup", seeds=3, steps=1).alarms
    assert (alarm.kind, alarm.part) == ("initial scale", "head.weight")
    assert alarm.what.startswith(
        "its entries scale like width^-0.5 and must scale like width^0: at width 128 it is 2.0 times"
    )


@pytest.mark.parametrize(("role", "off", "rate", "words"), [
    ("hidden", 0.7, 0.0, "must scale like width^-1: at width 128 it is 4.0 times too large"),
    ("vector", -0.7, 0.0, "must rise faster with the width, by a power that is not clear"),
])  # fmt: skip
def test_a_power_of_a_rate_is_named_where_it_is_clear(healthy, role, off, rate, words):
    """Adam's of a hidden matrix by what is asked, though a narrow one moves less; others where one multiple is near."""
    sizes = probe_grid(healthy.stepped, "width")
    rows = exponents(healthy.stepped, sizes, "mup")
    at = next(k for k, row in enumerate(rows) if (row.quantity, row.step, row.role) == ("own", 1, role))
    rows[at] = rows[at]._replace(low=off - 0.05, high=off + 0.05, off=off, word="breach")
    name = sizes.owners[rows[at].place, rows[at].parameter][0].weight
    smallest, largest = sizes.values[0], sizes.values[-1]
    first = sizes.first | {("rate", name, smallest): 1.0, ("rate", name, largest): (largest / smallest) ** rate}
    (cause,) = causes(replace(sizes, first=first), rows, "mup")
    assert (cause.kind, cause.names) == ("learning rate", (name,))
    assert words in cause.what


def test_of_how_many_vectors_the_others_make_more_of_an_update():
    """Beside products of drawn signs: with T vectors of length n the mean square is 2 n^2/(pi T) + n."""
    rng, vectors = np.random.default_rng(3), 40
    for inputs in (16, 63, 512):
        x = rng.standard_normal((vectors, inputs))
        step = np.sign(rng.standard_normal((4000, vectors)) @ x)
        mean_square = np.mean([(step @ x.T) ** 2])
        assert mean_square == pytest.approx(2 * inputs**2 / (np.pi * vectors) + inputs, rel=0.1)
    assert [crowded(vectors, inputs) for inputs in (62, 63)] == [True, False]


@pytest.mark.parametrize(("optimizer", "rule", "widths"), [
    (adam, "mup", [8, 16, 32]), (sgd, "mup", [16, 32, 64]), (adam, "sp", [8, 16, 32]),
])  # fmt: skip
def test_right_ones_at_widths_below_their_32_vectors_pass(optimizer, rule, widths):
    """Their powers are below those of large widths, and say so; of queries and keys by SGD in mu-P they are at all."""
    report = check(transformer, optimizer, rule, seeds=8, steps=1, widths=widths)
    report.assert_healthy()
    updates = report.steps[(report.steps["quantity"] == "own") & (report.steps["role"] == "hidden")]
    assert (updates["exponent"] < updates["asked_high"] - 0.25).any()
    assert (updates["asked_low"] <= updates["asked_high"] - 0.5).any()
    assert not (updates["word"] == "breach").any()


@pytest.mark.parametrize(("power", "what"), [(1, "large"), (-1, "small")])
def test_a_wrong_rate_at_widths_below_the_number_of_vectors_is_named(power, what):
    def rates(module, width, *arguments):
        wrong = adam(module, width, *arguments)
        for (name, weight), group in zip(module.named_parameters(), wrong.param_groups, strict=True):
            group["lr"] *= (width / 8) ** power if weight.ndim == 2 and name.startswith("layers") else 1.0
        return wrong

    (alarm,) = check(transformer, rates, "mup", seeds=8, steps=1, widths=[8, 16, 32]).alarms
    assert "layers.0.attention.query.weight" in alarm.part
    assert alarm.what.endswith(f"must scale like width^-1: at width 32 it is 4.0 times too {what} relative to width 8")


class Readout(nn.Module):
    """Three matrices in mu-P for Adam, the logits over the width."""

    def __init__(self, width):
        super().__init__()
        shapes = {"inputs": (8, width, 8**-0.5), "hidden": (width, width, width**-0.5), "head": (width, 5, 1.0)}
        for name, (inputs, outputs, std) in shapes.items():
            setattr(self, name, nn.Linear(inputs, outputs, bias=False))
            nn.init.normal_(getattr(self, name).weight, std=std)
        self.width = width

    def forward(self, x):
        return self.head(torch.relu(self.hidden(torch.relu(self.inputs(x))))) * (1 / self.width)


@pytest.mark.parametrize(("wrong", "power"), [("head", 0.5), ("head", -0.5), ("hidden", 0.5), ("inputs", 0.5), ("", 0)])
def test_a_power_of_a_rate_is_exact_behind_many_vectors_and_a_factory_of_a_width_is_taken(wrong, power):
    """256 vectors hide half a power of an update: it is within the range that is allowed, or not clear by two seeds."""

    def make(width):
        def batch(seed):
            x = torch.randn(256, 8, generator=torch.Generator().manual_seed(seed))
            return x, lambda y: nn.functional.cross_entropy(y, (x[:, 0] > 0).long())

        return Readout(width), batch

    def rates(module, width):
        powers = {"inputs": 0, "hidden": -1, "head": 0}
        powers[wrong] = powers.get(wrong, 0) + power
        groups = [
            {"params": part.parameters(), "lr": 1e-3 * (width / 16) ** powers[name]}
            for name, part in module.named_children()
        ]
        return torch.optim.Adam(groups, eps=1e-12)

    report = gb.probe(make, widths=[16, 32, 64], steps=1, seeds=2, optimizer=rates)
    assert [alarm.part for alarm in report.alarms] == ([f"{wrong}.weight"] if wrong else [])
    for alarm in report.alarms:
        asked = -1 if wrong == "hidden" else 0
        assert (
            f"its learning rate scales like width^{asked + power:.2f} and must scale like width^{asked}:" in alarm.what
        )


def test_rates_and_gradients_are_those_of_the_first_step_in_which_there_are_any(healthy):
    stepped = healthy.stepped
    name, width = stepped.owners[128, 2][0].weight, 128
    first = [row for row in stepped.rows if row[4] == name and row[6] == "gradient" and row[0] == width]
    mean = np.mean([row[-1] for row in first])
    later = [(*row[:3], 1, *row[4:7], 9.0 + row[2]) for row in first]
    rows = tuple(row for row in stepped.rows if row not in first)
    nothing = [(*row[:-1], 0.0) for row in first]
    for more, expected in ((first, mean), (first + later, mean), (nothing + later, 10.0)):
        sizes = probe_grid(replace(stepped, rows=(*rows, *more)), "width")
        assert sizes.at("gradient", name, width) == pytest.approx(expected)


def test_widths_are_of_the_greatest_depth_and_depths_of_the_greatest_width():
    def run(parametrization, widths, depths):
        return gb.probe(
            partial(transformer, rule="completep", breach=""), parametrization=parametrization, widths=widths,
            optimizer=lambda module, width: adam(module, width, "completep", ""), depths=depths, steps=1, seeds=2,
        )  # fmt: skip

    whole, columns = run("completep", [8, 16, 32], [1, 2, 3]), ["place", "parameter", "step", "exponent", "low", "high"]
    for against, values, alone in (
        ("width", "8 16 32", run("mup", [8, 16, 32], [3])), ("depth", "1 2 3", run("completep", [32], [1, 2, 3])),
    ):  # fmt: skip
        one, other = (table[table["against"] == against][columns] for table in (whole.steps, alone.steps))
        assert len(one) > 20
        assert one.reset_index(drop=True).equals(other.reset_index(drop=True))
        for report in (whole, alone):
            assert any(line.startswith(f"Exponents in the {against} ({values}; 2 seeds)") for line in report.lines())


def test_breaches_in_the_depth():
    kind, name = OF_DEPTH["branches over the root of depth"]
    report = check(transformer, adam, "completep", "branches over the root of depth", seeds=2, steps=1)
    assert kind == report.alarms[0].kind
    assert name in report.alarms[0].part
    assert "are multiplied by depth^-0.50 and must be multiplied by depth^-1" in report.alarms[0].what
    assert set(report.steps["against"]) == {"depth"}


def test_what_right_is_in_one_is_wrong_in_the_other(healthy):
    """The same numbers, held against others: a rate of 1/width for hidden matrices alone is not standard."""
    report = judged_steps(healthy.stepped, "sp", "mine", "adam")
    assert {"attention", "learning rate"} <= {alarm.kind for alarm in report.alarms}
    assert judged_steps(healthy.stepped, "mean-field", "mine", "adam").alarms == []


@pytest.mark.parametrize(("optimizer", "role", "asked"), [
    ("Adam", "hidden", 1.0), ("SGD", "hidden", 0.5), ("SGD", "input", -0.5), ("Muon", "hidden", 0.0),
    ("Adafactor", "hidden", None),
])  # fmt: skip
def test_what_the_standard_parametrization_asks(optimizer, role, asked):
    assert own_change_exponents("sp", role, optimizer, 0.0) == (None if asked is None else (asked, asked))
    assert own_change_exponents("mup", role, optimizer, 0.0) == (0.0, 0.0)


FILE = """
import torch
from torch import nn

def make(width, depth):
    module = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))
    return module, lambda seed: (torch.randn(8, 4), lambda y: nn.functional.cross_entropy(y, torch.arange(8) % 3))

def optimizer(module, width):
    return torch.optim.Adam(module.parameters(), lr=1e-3 / width)

def nothing(module): return None
def fast(module): return torch.optim.SGD(module.parameters(), lr=1e38)
def one(): return nn.Linear(2, 2), torch.ones(2, 2), lambda y: y.square().mean()
"""
SIZES = ["--width", "8", "16", "32", "--depth", "1", "--seeds", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all, as a process imports a file of one name once."""
    folder = tmp_path_factory.mktemp("steps")
    (folder / "steps_of_mine.py").write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def test_the_command_judges_and_keeps(folder, capsys):
    of = ["probe", "steps_of_mine.py:make", *SIZES, "--steps", "1", "--optimizer"]
    assert main([*of, "steps_of_mine.py:optimizer", "--strict", "--out", "kept"]) == 1
    assert "ALARM learning rate: 0.weight" in capsys.readouterr().out
    names = {file.name for file in (folder / "kept").iterdir()}
    assert {"steps.parquet", "steps.csv", "coordinates.png"} <= names
    assert main([*of, "steps_of_mine.py:fast", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert any("is not finite" in alarm["what"] for alarm in printed["alarms"])


@pytest.mark.parametrize(("arguments", "message"), [
    (["make", "--steps", "0"], "steps must be an integer of at least 1, got 0"),
    (["make", "--steps", "1", "--width", "8"], "width must have at least 3 different values for exponents"),
    (["make", "--steps", "1", "--seeds", "1"], "seeds must be at least 2"),
    (["make", "--steps", "1", "--optimizer", "steps_of_mine.py:nothing"], "or .optimizer, schedule., got NoneType"),
    (["make", "--steps", "1", "--optimizer", "steps_of_mine.py:no"], "optimizer must be importable, but "),
    (["make", "--steps", "1", "--optimizer", "lion"], "optimizer must be one of sgd, adam, adamw, muon, "),
    (["make", "--steps", "1", "--optimizer", "steps_of_mine.py:fast", "--learning-rate", "1"], "sets its own"),
    (["make", "--steps", "1", "--learning-rate", "-1"], "rate must be a number above 0, got -1.0"),
    (["make", "--steps", "1", "--against", "encoder-pre"], "--against cannot be combined with steps, got steps"),
    (["make", "--parametrization", "sp"], "--parametrization requires steps and "),
    (["one", "--steps", "1"], "steps requires a factory"),
])  # fmt: skip
def test_bad_input_is_one_line(folder, capsys, arguments, message):
    name, *rest = arguments
    sizes = {"--width": ["8", "16", "32"], "--depth": ["1"], "--seeds": ["2"]} if name == "make" else {}
    given = [word for flag, values in sizes.items() if flag not in rest for word in (flag, *values)]
    assert main(["probe", f"steps_of_mine.py:{name}", *given, *rest]) == 2
    said = capsys.readouterr()
    assert re.search(message, said.err), said.err
    assert said.err.count("\n") == 1
    assert not said.out


def test_bad_input_from_python():
    with pytest.raises(ValueError, match="parametrization must be one of sp, mup, mean-field, completep, got 'ntk'"):
        gb.probe("encoder-pre", widths=[4, 8, 16], depths=[2], steps=1, parametrization="ntk")
    with pytest.raises(ValueError, match="depths must have at least 3 different values for exponents of completep"):
        gb.probe("encoder-pre", widths=[4], depths=[2], steps=1, parametrization="completep")
    with pytest.raises(ValueError, match="optimizer must be a name or a function of a module, got 3"):
        gb.probe("encoder-pre", widths=[4, 8, 16], depths=[2], steps=1, optimizer=3)


@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")
@pytest.mark.gpu
@pytest.mark.parametrize("name", HEALTHY)
def test_exponents_of_steps_on_a_gpu_are_those_of_a_cpu(name):
    here, there = (check(*HEALTHY[name], seeds=2, device=device) for device in ("cpu", "cuda"))
    assert [str(alarm) for alarm in there.alarms] == [str(alarm) for alarm in here.alarms]
    first = [report.steps[report.steps["step"] <= 1] for report in (here, there)]
    for column in ("place", "parameter", "quantity"):
        assert (first[0][column] == first[1][column]).all()
    # A step of Adam is the gradient's sign: where that is rounding, a weight may go the other way.
    np.testing.assert_allclose(first[1]["exponent"], first[0]["exponent"], atol=0.02)
