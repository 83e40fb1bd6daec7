"""The matrices of a layer: their shapes, and the variance of their entries."""

from theory.initializations import INITIALIZATIONS
from theory.stack import Stack


def weight_shapes(stack: Stack) -> dict[str, tuple[int, int]]:
    """(d_in, d_out) of every matrix of a layer, in the order in which a token meets them."""
    d, hidden = stack.width, stack.ffn_width
    shapes = {
        "WQ": (d, d),
        "WK": (d, d),
        "WV": (d, d),
        "WO": (d, d),
        "WG": (d, hidden),
        "W1": (d, hidden),
        "W2": (hidden, d),
    }
    if not stack.query_key_scale:
        del shapes["WQ"]
    if not stack.query_key_scale or stack.query_key == "tied":
        del shapes["WK"]
    if stack.output_projection == "identity":
        del shapes["WO"]
    if stack.ffn == "plain":
        del shapes["WG"]
    return shapes


def rows_met(stack: Stack) -> dict[str, int]:
    """How many rows every matrix of a layer multiplies: one a sequence where all its tokens attend to the same mean."""
    alike = stack.mask == "none" and stack.attention_dropout == 0.0 and not stack.query_key_scale
    each = {"WV": stack.sequences, "WO": stack.sequences} if alike else {}
    return {role: each.get(role, stack.rows) for role in weight_shapes(stack)}


def gain(stack: Stack, role: str) -> float:
    """Variance of an entry times d_in: what a matrix does to the energy per coordinate, the placement's β² included.

    Queries and keys have their own, s².
    """
    if role in ("WQ", "WK"):
        return stack.query_key_scale**2
    d_in, d_out = weight_shapes(stack)[role]
    own = INITIALIZATIONS[stack.initialization].gain(role, d_in, d_out)
    return own * stack.composition.gain(stack.depth) ** 2
