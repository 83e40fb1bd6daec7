"""Register a user's own activation, LayerNorm placement or initialization under a name.

A `Stack` then accepts the name.
"""

import math
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theory.mean_field.activations import PolarMoment
from theory.stack.activations import ACTIVATIONS, CHECKED_AT, Function, Moment, RegisteredActivation
from theory.stack.fields import LARGEST
from theory.stack.initializations import INITIALIZATIONS, Initialization
from theory.stack.placements import COMPOSITIONS, Composition

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_STEP = 1e-5
_SLOPE_ERROR = 1e-5
_MOMENT_ERROR = 1e-6
# Var u, Var v, Cov(u, v)
_KERNELS = ((1.0, 1.0, 1.0), (1.0, 1.0, 0.3), (0.5, 2.0, -0.4))


def register_activation(
    name: str,
    function: Function,
    derivative: Function,
    *,
    torch: Callable[[Any], Any] | str | None = None,
    moment: Moment | None = None,
    slope_moment: Moment | None = None,
    version: str = "1",
) -> None:
    """Register a user's activation function φ under a name that all predictions and commands accept.

    The name is a value of `Stack`'s field, of flags and of configuration keys, for theory and sampling.

    A name has one meaning in a process: repeating the same call is allowed, another one with the name is an error.

    Args:
        name: the value of `Stack.activation` from now on.
        function: φ of float64 arrays of any shape, applied to each entry.
        derivative: the derivative φ′ of float64 arrays of any shape; it may jump at 0.
        torch: φ of tensors, which autograd differentiates, or its dotted path such as "torch.nn.functional.softplus",
            which is imported when something is sampled. Without it there are predictions only.
        moment: E[φ(u) φ(v)] of centred Gaussians as a function of Var u, Var v and Cov(u, v). Without it, the moment
            is computed by quadrature, for which φ and φ′ must be smooth on either side of 0; the slope of u^1.5 is
            not.
        slope_moment: E[φ′(u) φ′(v)] as a function of Var u, Var v and Cov(u, v); by quadrature if it is not given.
        version: part of the configuration keys; change it when φ changes, so that stored samples of the old φ are not
            used.

    Raises:
        ValueError: the name or version is not allowed or is taken, a function does not return finite numbers of the
            shape of its argument, the derivative is not that of the function, or moments are infinite, do not
            converge, or are not those of the functions.

    >>> register_activation("doctest.softsign", lambda u: u / (1 + abs(u)), lambda u: (1 + abs(u)) ** -2.0)
    >>> from theory import Stack, predict
    >>> round(float(predict(Stack(activation="doctest.softsign"))["ffn_hidden_energy"][0]), 4)
    0.183
    """
    item = f"activation {name!r}"
    values, slopes = (_checked(item, what, of) for what, of in (("function", function), ("derivative", derivative)))
    difference = (np.asarray(function(CHECKED_AT + _STEP)) - np.asarray(function(CHECKED_AT - _STEP))) / (2 * _STEP)
    error = np.abs(difference - slopes) / (1 + np.abs(slopes) + np.abs(values))
    if error.max() > _SLOPE_ERROR:
        at = np.unravel_index(error.argmax(), error.shape)
        raise ValueError(
            f"derivative of {item} must be that of its function, but at {CHECKED_AT[at]:g} it is {slopes[at]:.6g}, and "
            f"differences give {difference[at]:.6g}."
        )
    if not (torch is None or callable(torch) or (isinstance(torch, str) and _DOTTED.fullmatch(torch))):
        raise ValueError(
            f"torch of {item} must be a function of tensors, or its dotted path such as "
            f"'torch.nn.functional.softplus', got {torch!r}."
        )
    _check_moments(item, function, moment)
    _check_moments(item, derivative, slope_moment)
    activation = RegisteredActivation(
        function=function, derivative=derivative, torch=torch, moment=moment, slope_moment=slope_moment
    )
    ACTIVATIONS.register(name, activation, version)


def register_placement(name: str, composition: Composition, *, version: str = "1") -> None:
    """Register a user's placement of LayerNorm under a name that all predictions and commands accept.

    The name is a value of `Stack`'s field, of flags and of configuration keys, for theory and sampling.

    Args:
        name: the value of `Stack.placement` from now on.
        composition: the rule by which residual, branch and norm form a sub-layer.
        version: part of the configuration keys; change it when the composition changes.

    Raises:
        ValueError: the name or version is not allowed or is taken, a scale is not a number from 0 to 1e100, or there
            is a second stream while the first is not normalized.
    """
    item = f"placement {name!r}"
    if not isinstance(composition, Composition):
        raise ValueError(f"{item} must be a Composition, got {composition!r}.")
    for f in fields(Composition):
        value = getattr(composition, f.name)
        kinds = {"title": str, "source": str, "residual": Callable, "branch": Callable, "gain": Callable}
        if not isinstance(value, kinds.get(f.name, Callable if f.name == "input_scale" else bool)):  # type: ignore[arg-type]
            raise ValueError(f"{f.name} of {item} must not be {value!r}.")
    for scale in ("residual", "branch", "gain", "input_scale"):
        for at in (1, 2, 3, 100):
            _scalar(f"{scale} of {item} at {at}", getattr(composition, scale), at, most=LARGEST)
    if composition.second_stream and not (composition.stream_norm and composition.final_norm):
        raise ValueError(f"{item} must have stream_norm and final_norm where it has a second_stream.")
    COMPOSITIONS.register(name, composition, version)


def register_initialization(name: str, initialization: Initialization, *, version: str = "1") -> None:
    """Register a user's weight initialization under a name that all predictions and commands accept.

    The name is a value of `Stack`'s field, of flags and of configuration keys, for theory and sampling.

    Args:
        name: the value of `Stack.initialization` from now on.
        initialization: the variance of entries by role and shape, and whether they are uniform or normal.
        version: part of the configuration keys; change it when the initialization changes.

    Raises:
        ValueError: the name or version is not allowed or is taken, or a gain is not a finite number of at least 0.
    """
    item = f"initialization {name!r}"
    if not isinstance(initialization, Initialization) or not callable(initialization.gain):
        raise ValueError(f"{item} must be an Initialization with a function as gain, got {initialization!r}.")
    for role in ("WV", "WO", "WG", "W1", "W2"):
        _scalar(f"gain of {item} for {role}", initialization.gain, role, 32, 128)
    INITIALIZATIONS.register(name, initialization, version)


def _checked(item: str, what: str, function: Function) -> NDArray[np.float64]:
    """Return a registered function's values at the points `CHECKED_AT`.

    Args:
        item: name of the registered activation, for the error message.
        what: "function" or "derivative", for the error message.
        function: the function.

    Raises:
        ValueError: the function does not return finite numbers of the shape of its argument.
    """
    try:
        with np.errstate(all="ignore"):
            values = np.asarray(function(CHECKED_AT.copy()))
    except Exception as error:
        raise ValueError(
            f"{what} of {item} must take an array of any shape, but raises {type(error).__name__}: {error}."
        ) from error
    if values.shape != CHECKED_AT.shape or values.dtype.kind != "f" or not np.isfinite(values).all():
        fits = values.shape == CHECKED_AT.shape and values.dtype.kind == "f"
        got = "numbers that are not finite" if fits else f"{values.dtype} of shape {values.shape}"
        raise ValueError(
            f"{what} of {item} must return finite numbers of the shape {CHECKED_AT.shape} that it is given, got {got}."
        )
    return values


def _check_moments(item: str, function: Function, moment: Moment | None) -> None:
    """Check that a function's Gaussian moments are finite, and that given moments agree with quadrature.

    Args:
        item: name of the registered activation, for the error message.
        function: φ or φ′.
        moment: the user's moment of the function; None for none.

    Raises:
        ValueError: a moment is infinite, or a given one differs from quadrature.
    """
    for kernel in _KERNELS:
        try:
            computed = PolarMoment(function)(*kernel)
        except ValueError as error:
            if moment is None:
                raise ValueError(f"{item}: {error}") from error
            computed = math.nan
        if moment is not None:
            given = _scalar(f"moment of {item}", moment, *kernel, least=-math.inf)
            if abs(given - computed) > _MOMENT_ERROR * (1 + abs(computed)):
                raise ValueError(
                    f"moment of {item} must be that of its function, but at variances {kernel[0]:g} and {kernel[1]:g} "
                    f"and covariance {kernel[2]:g} it is {given:.8g}, and quadrature gives {computed:.8g}."
                )


def _scalar(
    item: str, function: Callable[..., float], *at: object, least: float = 0.0, most: float = math.inf
) -> float:
    """Return the value of a registered function as a float, after a check of its range.

    Args:
        item: name of the value, for the error message.
        function: the function.
        at: arguments of the function.
        least: smallest allowed value.
        most: largest allowed value.

    Raises:
        ValueError: the value is not a finite number from `least` to `most`.
    """
    try:
        value = float(function(*at))
    except Exception as error:
        raise ValueError(f"{item} must be a number, but {type(error).__name__} is raised: {error}.") from error
    if not math.isfinite(value) or not least <= value <= most:
        ends = f"{' of at least 0' if least == 0 else ''}{f' and at most {most:g}' if most < math.inf else ''}"
        raise ValueError(f"{item} must be a finite number{ends}, got {value!r}.")
    return value
