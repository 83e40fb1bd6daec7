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

_SCALED, _UNEXPLAINED = 1.5, 0.9
"""A matrix has the factor if its root mean square is at most 1.5/sqrt(2L) times the layer's median one.

The factor 1/sqrt(2l) of layer l gives 1.41 in the middle layer. The ratio must also be below 0.9 times the ratio that
entries of variance 1/fan-in explain."""


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
    """Return the names of the matrices that end a residual branch without the factor 1/sqrt(2L)."""
    ends, ratios = branch_ends(part), []
    for layer in map(_matrices, part.layers) if ends else ():
        sizes = {name: float(matrix.detach().float().square().mean()) ** 0.5 for name, matrix in layer.items()}
        others = float(np.median([size for name, size in sizes.items() if name not in ends] or 0.0))
        fans = [(min(layer[name].shape) / max(layer[name].shape)) ** 0.5 for name in ends]
        limits = [min(_SCALED * (2 * len(part.layers)) ** -0.5, _UNEXPLAINED * fan) for fan in fans]
        ratios.append([sizes[name] / max(others, 1e-30) / limit for name, limit in zip(ends, limits, strict=True)])
    return tuple(name for name, ratio in zip(ends, np.transpose(ratios), strict=True) if np.median(ratio) > 1.0)


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
