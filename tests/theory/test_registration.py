"""Names of one's own in the theory: what they are to it, and what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, ndtr

from theory import (
    Composition,
    Initialization,
    Stack,
    predict,
    register_activation,
    register_initialization,
    register_placement,
)
from theory.mean_field.activations import ACTIVATIONS, PolarMoment
from theory.mean_field.gaussian import relu_kernel, relu_slope_kernel
from theory.stack import TITLES, title
from theory.stack.activations import ACTIVATIONS as NAMES
from theory.stack.initializations import INITIALIZATIONS
from theory.stack.placements import COMPOSITIONS

pytestmark = pytest.mark.usefixtures("own_names")


def gelu(u):
    return u * ndtr(u)


def gelu_slope(u):
    return ndtr(u) + u * np.exp(-0.5 * u**2) / math.sqrt(2 * math.pi)


def relu(u):
    return np.maximum(u, 0.0)


def step(u):
    return np.where(u > 0, 1.0, 0.0)


def softplus(u):
    return np.logaddexp(0.0, u)


def same(first, second, tolerance=1e-12):
    found, expected = predict(first), predict(second)
    assert set(found) == set(expected)
    for name in found:
        assert found[name] == pytest.approx(expected[name], rel=tolerance, nan_ok=True), name


@pytest.mark.parametrize(
    "fields", [{}, {"ffn": "gated"}, {"mask": "causal"}, {"embeddings": "tied", "vocab": 8}], ids=str
)
def test_a_built_in_under_another_name_has_the_same_predictions(fields):
    register_activation("my_gelu", gelu, gelu_slope)
    register_placement("my_pre", replace(COMPOSITIONS["pre"], title="mine"))
    register_initialization("my_he", replace(INITIALIZATIONS["he"], source="mine"))
    built_in = Stack(
        **{"width": 32, "depth": 3, "tokens": 3} | fields, placement="pre", activation="gelu", initialization="he"
    )
    own = replace(built_in, placement="my_pre", activation="my_gelu", initialization="my_he")
    # Kernels that differ in the last digit take other nodes where moments are interpolated.
    same(own, built_in, 1e-12 if fields.get("mask") != "causal" else 1e-9)
    assert own.versions == {"placement": "1", "activation": "1", "initialization": "1"}
    assert built_in.versions == {}
    assert (TITLES["my_pre"], title("my_pre"), title("a.Module")) == ("mine", "mine", "a.Module")


@pytest.mark.parametrize("correlation", [1.0, 0.5, 0.0, -0.3, -1.0, 0.999999])
def test_the_quadrature_takes_a_kink_and_a_jump_at_0(correlation):
    assert PolarMoment(relu)(1.0, 1.0, correlation) == pytest.approx(relu_kernel(correlation), abs=1e-14)
    assert PolarMoment(step)(1.0, 1.0, correlation) == pytest.approx(relu_slope_kernel(correlation), abs=1e-14)
    # Another quadrature, by what the two share.
    first, second = 0.3, 40.0
    covariance = correlation * math.sqrt(first * second)
    other = ACTIVATIONS["gelu"].moment(first, second, covariance)
    assert PolarMoment(gelu)(first, second, covariance) == pytest.approx(other, rel=1e-9, abs=1e-9)


def test_moments_that_are_given_are_taken():
    calls = []

    def moment(first, second, covariance):
        calls.append(covariance)
        return relu_kernel(covariance / math.sqrt(first * second)) * math.sqrt(first * second)

    def slope_moment(first, second, covariance):
        return relu_slope_kernel(covariance / math.sqrt(first * second))

    register_activation("relu2", relu, step, moment=moment, slope_moment=slope_moment)
    before = len(calls)
    same(Stack(width=16, depth=2, activation="relu2"), Stack(width=16, depth=2))
    assert len(calls) > before
    with pytest.raises(
        ValueError, match=r"^moment of activation 'relu3' must be that of its function, but at variances"
    ):
        register_activation("relu3", relu, step, moment=lambda a, b, c: moment(a, b, c) * 1.001)
    # What quadrature cannot tell is believed.
    register_activation("hard_tanh", *HARD_TANH, moment=lambda *_: 0.5, slope_moment=lambda *_: 0.5)


HARD_TANH = (lambda u: np.clip(u, -1.0, 1.0), lambda u: np.where(abs(u) < 1, 1.0, 0.0))


@pytest.mark.parametrize(
    ("name", "function", "derivative", "message"),
    [
        ("relu", softplus, expit, "^activation must have a new name, got 'relu', which is built in"),
        ("soft plus", softplus, expit, "^activation must have a name of letters, digits, .* got 'soft plus'"),
        ("", softplus, expit, "^activation must have a name of letters"),
        ("own", softplus, gelu_slope, "^derivative of activation 'own' must be that of its function, but at "),
        ("own", lambda u: u.sum(), expit, r"^function of activation 'own' must return .* got float64 of shape \(\)"),
        ("own", lambda u: u > 0, step, "^function of activation 'own' must return finite numbers .* got bool"),
        ("own", np.log, lambda u: 1 / u, "^function of activation 'own' .* got numbers that are not finite"),
        ("own", softplus, math.exp, "^derivative of activation 'own' must take an array of any shape, but raises"),
        (
            "own", lambda u: np.exp(u**2 / 4), lambda u: u / 2 * np.exp(u**2 / 4),
            "^activation 'own': activation must have finite Gaussian moments, but <lambda> grows too fast",
        ),
        ("own", *HARD_TANH, "^activation 'own': activation must be smooth on either side of 0, .* moment="),
    ],
)  # fmt: skip
def test_an_activation_that_makes_no_sense(name, function, derivative, message):
    with pytest.raises(ValueError, match=message):
        register_activation(name, function, derivative)
    assert not NAMES.versions


def test_other_arguments_that_make_no_sense():
    with pytest.raises(ValueError, match="^torch of activation 'own' must be a function of tensors, or its"):
        register_activation("own", softplus, expit, torch="softplus")
    with pytest.raises(ValueError, match="^version of activation 'own' must be text of letters"):
        register_activation("own", softplus, expit, version=2)
    with pytest.raises(ValueError, match="^placement 'own' must be a Composition, got 'post'"):
        register_placement("own", "post")
    composition = Composition(title="own", source="here", stream_norm=True)
    with pytest.raises(ValueError, match="^residual of placement 'own' at 1 must be a finite number of at least 0"):
        register_placement("own", replace(composition, residual=lambda depth: 1 - 2 * depth))
    with pytest.raises(ValueError, match="^gain of placement 'own' at 1 must be .* and at most 1e\\+100, got 1e\\+101"):
        register_placement("own", replace(composition, gain=lambda depth: 1e101))
    register_placement("own.far", replace(composition, branch=lambda depth: 10.0 ** (depth - 100)))
    with pytest.raises(ValueError, match="^placement must have .*, but 'own.far' has branch 1e\\+101 at depth 201"):
        Stack(placement="own.far", depth=201)
    with pytest.raises(ValueError, match="^branch of placement 'own' must not be 1.0"):
        register_placement("own", replace(composition, branch=1.0))
    with pytest.raises(ValueError, match="^placement 'own' must have stream_norm and final_norm where"):
        register_placement("own", replace(composition, second_stream=True))
    with pytest.raises(ValueError, match="^gain of initialization 'own' for WV must be a number, but TypeError"):
        register_initialization("own", Initialization(gain=lambda role: 1.0, source="here"))
    with pytest.raises(ValueError, match="^initialization 'own' must be an Initialization with"):
        register_initialization("own", Initialization(gain=2.0, source="here"))


def test_a_name_stands_for_one_thing():
    register_activation("own_softplus", softplus, expit)
    register_activation("own_softplus", softplus, expit)
    taken = "^activation must have a new name, got 'own_softplus', which already names something else .version '1'."
    for function, derivative, version in ((softplus, expit, "2"), (gelu, gelu_slope, "1")):
        with pytest.raises(ValueError, match=taken):
            register_activation("own_softplus", function, derivative, version=version)
    with pytest.raises(
        ValueError, match=r"^activation must be one of .*'own_softplus', got 'softpluss'\. Did you mean own_softplus\?$"
    ):
        Stack(activation="softpluss")


def test_a_function_of_a_module_that_is_run_twice_is_the_same():
    source = "def own(u):\n    return u * u\n\ndef slope(u):\n    return 2 * u\n"
    spaces = [{"__name__": "mine"}, {"__name__": "mine"}, {"__name__": "mine"}]
    for space, code in zip(spaces, (source, source, source.replace("u * u", "u ** 2.0")), strict=True):
        exec(code, space)
    for space in spaces[:2]:
        register_activation("square", space["own"], space["slope"])
    with pytest.raises(ValueError, match="which already names something else"):
        register_activation("square", spaces[2]["own"], spaces[2]["slope"])


def installed(folder, code, name="mine"):
    """A distribution in a folder on Python's path, with an entry point for a module of that code."""
    (folder / f"{name}.py").write_text(code)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[gradbounds]\n{name} = {name}\n")


def test_an_installed_package_is_asked_for_names_that_are_missing(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    installed(
        tmp_path,
        "import gradbounds as gb\n"
        "gb.register_initialization('mine.small', gb.Initialization(gain=lambda *_: 0.5, source='me'), version='3')\n",
        "gradbounds_test_small",
    )
    installed(tmp_path, "raise RuntimeError('no\\nluck')\n", "gradbounds_test_broken")
    assert "mine.small" not in INITIALIZATIONS
    assert Stack().versions == {}
    assert "mine.small" not in INITIALIZATIONS, "loaded without need"
    assert Stack(initialization="mine.small").versions == {"initialization": "3"}
    assert INITIALIZATIONS.installed == {"mine.small"}
    with pytest.raises(ValueError) as said:
        Stack(initialization="mine.large")
    assert str(said.value).endswith(
        "'mine.small', got 'mine.large'. Did you mean mine.small? Entry point 'gradbounds_test_broken' "
        "(gradbounds_test_broken) could not be loaded: RuntimeError: no luck."
    )
