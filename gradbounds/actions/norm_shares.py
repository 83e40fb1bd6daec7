"""Shares of the squared gradient norm by kind of matrix, and why the largest share is large."""

import math
from collections.abc import Mapping

import numpy as np

from checks.stacks.gradients_by_layer import Columns, matrices
from gradbounds.layer_summary import UNEVEN, card_row, profiles
from gradbounds.network_text import matrix_name
from theory import Stack
from theory.first_step.noise_scale import NoiseScale

# The smallest share of the squared norm that the card lists.
_SMALL = 0.005

# The largest part of a ratio, in the logarithm, that the other factor of a reason may have.
_SIMPLE = 1 / 3

_FED_BY = {"W1": "W2", "WG": "W2", "WV": "WO"}
"""Matrices whose gradient comes through another matrix of their branch."""


def squared_norms(table: Columns) -> dict[str, float]:
    """Return squared norms of every kind of matrix, summed over all layers."""
    quantities, norms = np.asarray(table["quantity"]), np.asarray(table["predicted"])
    names = [*matrices(table), *(name for name in ("grad_Wemb", "grad_WH") if name in quantities)]
    squares = {
        matrix_name(name) + ", encoder" * name.startswith("encoder_"): float(np.nansum(norms[quantities == name] ** 2))
        for name in names
    }
    return {name.replace("dL/d", "").replace("Wemb", "output matrix"): square for name, square in squares.items()}


def share_row(squares: Mapping[str, float], stack: Stack, table: Columns, norms: Columns, of: str) -> str:
    """List the matrices with the largest shares of the squared norm, and the layer with a large share and its reason.

    Every norm divides the gradient by the stream's size, so a stream that grows makes the first layers' norms larger.

    Args:
        squares: squared norms by kind of parameter.
        stack: the network.
        table: its `layer_table`, with the residual stream.
        norms: gradient norms by layer and matrix.
        of: text at the end of the row.
    """
    whole = sum(squares.values())
    descending = sorted(squares.items(), key=lambda item: -float(f"{item[1]:.6g}"))  # equal but for rounding: in order
    largest = [item for item in descending[:3] if item[1] > _SMALL * whole]
    shares = ", ".join(f"{name} {part / whole:.0%}" for name, part in largest)
    at, sizes = np.asarray(norms["layer"]), np.nan_to_num(norms["predicted"])
    inside = (at > 0) & np.array([name.startswith("grad_") for name in norms["quantity"]])
    layers = np.bincount(at[inside], sizes[inside] ** 2, minlength=1) / whole
    energy = profiles(table, "predicted").get("hidden_energy", np.ones(1))
    growth, most = energy[-1] / energy[0], layers.max()
    layer = f"; layer {layers.argmax()} {most:.0%}" * bool(most > UNEVEN / stack.depth)
    layer += f" (residual stream {float(f'{growth**0.5:.2g}'):g}x smaller)" * bool(layer and growth > UNEVEN)
    return card_row("of squared norm", f"{shares}{layer}{of}".replace("table of inputs", "input embedding"))


def reason_of_largest(scale: NoiseScale, sequences: int) -> str:
    """Explain why one kind of matrix has a much larger gradient norm than another; "" if there is no simple reason.

    A squared norm is the sum of products (g_i·g_j)(x_i·x_j) over pairs of positions, with inputs x of the matrix and
    gradients g at its output. So it is |sum g_i|², the squared gradient of a bias there, times the mean of x_i·x_j with
    weights g_i·g_j. A factor counts as the reason if its ratio for two matrices is their ratio of squared norms to a
    power between 2/3 and 4/3. The other matrix is the one with the largest share for which there is a reason. Networks
    that normalize each branch's output have none, because small outputs enlarge the gradients there.

    Args:
        scale: the noise scale of the network.
        sequences: number of sequences in the batch.
    """
    squares = scale.squares(sequences, [*scale.vectors])
    gradients = {name.removeprefix("bias_"): part for name, part in squares.items() if name.startswith("bias_")}
    if scale.stack.composition.output_norm or not gradients:
        return ""
    known = sorted((name for name in gradients if gradients[name] > 0), key=lambda name: -squares[name])
    least = _SMALL * sum(square for name, square in squares.items() if "_" not in name)
    for other in known[1:]:
        if (ratio := squares[known[0]] / squares[other]) < UNEVEN**2 or squares[other] < least:
            continue
        by_gradient = gradients[known[0]] / gradients[other]
        power, times = math.log(by_gradient) / math.log(ratio), f"{by_gradient**0.5:.2g}x"
        reason = f"the gradient at its output is {times} that at {other}'s output"
        if _FED_BY.get(other) == known[0]:
            reason = f"{other}'s gradient comes through {known[0]}, which makes it {times} smaller"
        if abs(power) < _SIMPLE:
            reason = f"its inputs are {(ratio / by_gradient) ** 0.5:.2g}x those of {other}"
        if min(abs(power), abs(power - 1.0)) < _SIMPLE:
            return card_row(f"why {known[0]}", reason)
    return ""
