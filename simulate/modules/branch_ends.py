"""Find the last matrix of each residual branch by its usual name, and measure the effect of smaller initial values."""

import torch

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
    names = [
        tuple(name for name, parameter in layer.named_parameters() if parameter.ndim == 2 and ends_branch(name))
        for layer in part.layers
    ]
    return names[0] if names and all(of_layer == names[0] for of_layer in names) else ()


def ends_branch(name: str) -> bool:
    """Return whether common libraries give a parameter's name to the last matrix of a residual branch."""
    stem = name.removesuffix(".weight")
    return any(stem == end or stem.endswith(f".{end}") for end in _ENDS)


def smaller_ends(made: Made, part: LayerList) -> dict[int, float]:
    """Measure activations of all layers after dividing the last matrix of every branch by sqrt(2L), for L layers.

    The activations are mean squares of the layers' outputs.

    The module's weights are changed; call this within `kept_state`.

    Args:
        made: the module and its batch.
        part: the list of layers.

    Returns:
        The mean squared output by layer number; empty if no matrix is known to end a branch.
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
