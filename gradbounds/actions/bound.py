"""The view `gradbounds predict --bound`: Theorem 1 for one network, in numbers and in words."""

import math

import sympy as sp

from gradbounds.help_text import folded, prose_width
from gradbounds.result import Result
from theory import Stack, predict
from theory.paper.theorem1 import Bound, bound, bound_value, loss_gradient_bound, probability, probability_value
from theory.stack import SIZES, TITLES

# What follows a fold stands below the text and not below its label.
_HANGING = " " * 13


def theorem1(stack: Stack, *, latex: bool = False) -> Result:
    """Compute Theorem 1's upper bound for a network of the paper, the predicted gradient norm, and bound / prediction.

    Raises:
        ValueError: the network is outside the paper's setting.
    """
    if not stack.in_paper:
        relaxed = [f"{name} = {value}" for name, value in stack.relaxed.items()]
        fields = ", ".join(relaxed or [f"placement {stack.placement}"])
        raise ValueError(
            f"Theorem 1 requires the paper's setting, got {fields}. Without --bound, gradbounds predict "
            "prints the gradients of every network; gradbounds claims T1 --all lists measurements of the bound where "
            "single assumptions do not hold."
        )
    numbers, prediction = bound_value(stack), predict(stack)
    norm = math.sqrt(float(prediction["grad_sq_W2"][-1]))
    ratio = float(numbers.value) / norm
    gradient = math.sqrt(float(prediction["loss_gradient_sq"]))
    values = {"stack": stack, "bound": float(numbers.value), "predicted": norm, "ratio": ratio}
    return Result(
        about="Theorem 1",
        values=values | {"loss_gradient_bound": float(numbers.loss_gradient)},
        lines=_latex(stack, numbers, norm, ratio) if latex else _text(stack, numbers, norm, ratio, gradient),
    )


def _text(stack: Stack, numbers: Bound, norm: float, ratio: float, gradient: float) -> list[str]:
    # Return the printed lines: the bound with its constants, the prediction, and bound / prediction.
    shrinks = "tends to a constant" if stack.placement == "post" else "falls like 1/sqrt(L) for large L"
    lines = [
        f"Theorem 1    ||dL/dW^(2,L)||_F <= {sp.sstr(bound(stack.placement))}",
        f"             = {float(numbers.value):,.0f}   at B = {float(numbers.loss_gradient):.3f}",
        f"             B is an upper bound on ||dL_i/dx_out,i||: {sp.sstr(loss_gradient_bound())}",
        f"             with t = {numbers.output_margin:.3f}; this norm exceeds B with probability at most "
        f"{numbers.output_failure:g}",
        f"             In the paper, the bound holds with probability at least "
        f"{sp.sstr(probability())} "
        f"({probability_value(0.1, 0.125):.3f} at the paper's epsilon = 0.1, delta = 0.125), minus the probability "
        "that the norm exceeds B, if the squared norm before the last LayerNorm is (epsilon, delta)-bounded.",
        "             The proof guarantees this probability for one position. For all "
        f"{stack.tokens} positions together it guarantees {1 - stack.tokens * (1 - probability_value(0.1, 0.125)):.3f};"
        " a value below 0 guarantees nothing (docs/theorem_1.md).",
        f"Theory       {norm:.4g}   root mean square at large width; ||dL_i/dx_out,i|| is {gradient:.3f}",
        f"Ratio        {ratio:,.0f}",
    ]
    title = f"{TITLES[stack.placement]}, {', '.join(f'{name} {getattr(stack, name)}' for name in SIZES[1:])}"
    in_words = (
        f"In words: at initialization the gradient of the last feed-forward matrix has norm {norm:.3g}. At fixed "
        f"sigma_e and V, this norm grows like sqrt(d); with the depth, it {shrinks}. Theorem 1's bound is {ratio:,.0f} "
        "times as large as this norm; at fixed V/d, the ratio bound / norm grows like sqrt(d ln(100 d))."
    )
    table = [folded(line, indent=_HANGING[len(line) - len(line.lstrip()) :], width=prose_width()) for line in lines]
    return [folded(title, width=prose_width()), "", *table, "", folded(in_words, width=prose_width())]


def _latex(stack: Stack, numbers: Bound, norm: float, ratio: float) -> list[str]:
    # Return the bound as LaTeX with its numbers, theory's norm and the ratio, one line of `aligned` each.
    gradient = r"\left\|\frac{\partial\mathcal{L}}{\partial W^{2,L}}\right\|_F"
    sizes = {"L": stack.depth, "d": stack.width, "V": stack.vocab, r"\sigma_e": stack.output_scale}
    given = {"B": float(numbers.loss_gradient), "t": numbers.output_margin} | sizes
    return [
        r"\begin{aligned}",
        rf"{gradient} &\le {sp.latex(bound(stack.placement))} = {_tex(float(numbers.value))}, \\",
        rf"B &= {sp.latex(loss_gradient_bound())}, \quad "
        + r", \quad ".join(f"{name} = {_tex(value)}" for name, value in given.items())
        + r", \\",
        rf"P &\ge {sp.latex(probability())} = {probability_value(0.1, 0.125):.3f}, \quad \epsilon = 0.1, \quad "
        r"\delta = 0.125, \\",
        rf"\sqrt{{\mathbb{{E}} {gradient}^2}} &\to {_tex(norm)}, \quad \text{{ratio }} {_tex(ratio)}",
        r"\end{aligned}",
    ]


def _tex(number: float) -> str:
    r"""Format a number in LaTeX with four significant digits.

    >>> print(_tex(32750.0), _tex(1.51))
    3.275 \times 10^{4} 1.51
    """
    mantissa, _, power = f"{number:.4g}".partition("e")
    return mantissa + (rf" \times 10^{{{int(power)}}}" if power else "")
