"""Matrices that end a residual branch, by the names that libraries give them, and the stream with smaller ones."""

import torch

from simulate.modules.factories import Made
from simulate.modules.hooks import ModuleRecorder
from simulate.modules.layers import LayerList, token_axis

_ENDS = (
    "o_proj", "c_proj", "out_proj", "wo", "o", "proj", "down", "down_proj", "w2", "linear2", "fc2", "dense_4h_to_h",
    "attention.dense", "output.dense",
)  # fmt: skip


def branch_ends(part: LayerList) -> tuple[str, ...]:
    """Names of these matrices in a layer; none where layers have different ones, or one that ends nothing is named."""
    names = [
        tuple(name for name, parameter in layer.named_parameters() if parameter.ndim == 2 and ends_branch(name))
        for layer in part.layers
    ]
    return names[0] if names and all(of_layer == names[0] for of_layer in names) else ()


def ends_branch(name: str) -> bool:
    """Whether a parameter of this name ends a residual branch."""
    stem = name.removesuffix(".weight")
    return any(stem == end or stem.endswith(f".{end}") for end in _ENDS)


def smaller_ends(made: Made, part: LayerList) -> dict[int, float]:
    """Energies of the outputs of a list's layers with its branch ends over sqrt(2L), measured; none without them.

    Weights are changed: it belongs into `kept_state`.
    """
    ends = branch_ends(part)
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
