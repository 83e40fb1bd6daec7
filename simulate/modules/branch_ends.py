"""Find the last matrix of each residual branch by its usual name, and measure the effect of smaller initial values."""

import numpy as np
import torch
from torch import Tensor, nn

from simulate.modules.factories import Made
from simulate.modules.hooks import ModuleRecorder
from simulate.modules.layers import LayerList, token_axis

_ENDS = (
    "o_proj", "c_proj", "out_proj", "wo", "o", "proj", "down", "down_proj", "w2", "linear2", "fc2", "dense_4h_to_h",
    "attention.dense", "output.dense",
)  # fmt: skip


def branch_ends(part: LayerList) -> tuple[str, ...]:
    """Return the names of the parameters that end a residual branch, such as the MLP's second matrix.

    Args:
        part: the list of layers.

    Returns:
        The names within a layer; empty if layers have different ones or no such name is known.
    """
    names = [tuple(filter(ends_branch, matrices)) for matrices in map(_matrices, part.layers)]
    return names[0] if names and all(of_layer == names[0] for of_layer in names) else ()


def unscaled_ends(part: LayerList) -> tuple[str, ...]:
    """Return the names of the matrices that end a residual branch without the factor f = 1/sqrt(2L).

    Root mean squares are relative to the median of the layer's other matrices. With one variance for all entries, a
    matrix has the ratio f or 1. With variances of 1/fan-in, it has f r or r, with r² the width divided by its fan-in.
    Both kinds of ratios with the factor are smaller than both without it if f is below r and 1/r; the limit is their
    geometric mean sqrt(f r). Otherwise, as for four times wider MLPs in one or two layers, the result is that of the
    layer's other ends; without such ends, the matrix is not named.
    """
    ends, factor, ratios = branch_ends(part), (2 * len(part.layers)) ** -0.5, []
    if not ends:
        return ()
    for layer in map(_matrices, part.layers):
        sizes = {name: float(matrix.detach().float().square().mean()) ** 0.5 for name, matrix in layer.items()}
        others = float(np.median([size for name, size in sizes.items() if name not in ends] or 0.0))
        shared = set.intersection(*({*matrix.shape} for matrix in layer.values()))
        widths = [min(shared) if len(shared) == 1 else layer[name].shape[0] for name in ends]
        fans = [width / layer[name].numel() ** 0.5 for name, width in zip(ends, widths, strict=True)]
        limits = [(factor * fan) ** 0.5 if factor < min(fan, 1 / fan) - 1e-9 else np.nan for fan in fans]
        ratios.append([sizes[name] / max(others, 1e-30) / limit for name, limit in zip(ends, limits, strict=True)])
    medians = np.median(ratios, axis=0)
    known = np.where(np.isnan(medians), np.fmin.reduce(medians), medians)
    return tuple(name for name, ratio in zip(ends, known, strict=True) if ratio > 1.0)


def _matrices(layer: nn.Module) -> dict[str, Tensor]:
    """Return a layer's parameters with two axes by name."""
    return {name: parameter for name, parameter in layer.named_parameters() if parameter.ndim == 2}


def ends_branch(name: str) -> bool:
    """Return whether common libraries give a parameter's name to the last matrix of a residual branch."""
    stem = name.removesuffix(".weight")
    return any(stem == end or stem.endswith(f".{end}") for end in _ENDS)


def smaller_ends(made: Made, part: LayerList) -> dict[int, float]:
    """Measure activations of all layers after dividing the branches' last matrices by sqrt(2L), for L layers.

    The activations are mean squares of the layers' outputs. Matrices that have this factor already are kept.

    The module's weights are changed; call this within `kept_state`.

    Args:
        made: the module and its batch.
        part: the list of layers.

    Returns:
        The mean squared output by layer number; empty if no matrix is known to end a branch without this factor.
    """
    ends = unscaled_ends(part)
    if not ends:
        return {}
    factor = (2 * len(part.layers)) ** -0.5
    for layer in part.layers:
        parameters = dict(layer.named_parameters())
        for name in ends:
            with torch.no_grad():
                parameters[name].mul_(factor)
    recorder = ModuleRecorder([part], token_axis(made.module))
    with recorder, torch.no_grad():
        made.fresh().output()
    return {layer: float(value) for _, layer, _, name, value in recorder.rows() if name == "hidden_energy"}
