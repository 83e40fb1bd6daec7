"""Compare layers that are copies of one another with layers that have independent random weights."""

from collections.abc import Mapping, Sequence
from statistics import fmean

import torch

from simulate.modules.copies import copies
from simulate.modules.exact_tests import Row
from simulate.modules.factories import Made
from simulate.modules.hooks import ModuleRecorder
from simulate.modules.kept_state import kept_state
from simulate.modules.layers import LayerList, place_of, token_axis

_DRAWS = 4


def independent_draw_rows(built: Made, lists: Sequence[LayerList], seed: int) -> list[Row]:
    """Measure the effect of copied weights: compare each list of layers with independent random weights.

    Only lists of layers that contain copies of each other's weights are compared.

    Args:
        built: module and batch; both are left unchanged.
        lists: the module's lists of layers.
        seed: random seed of the module.

    Returns:
        The numbers of `redrawn` as rows of list, layer 0, "", quantity and value; empty without copies.
    """
    rows, groups = list[Row](), copies(built.module)
    for part in lists if groups else ():
        of_layer = {name: (part.name, number) for number, name in enumerate(part.names, 1)}
        inside = [names for names in groups if len({place_of(name, of_layer)[1] for name in names} - {0}) == len(names)]
        if inside and len(part.layers) > 1:
            with kept_state(built.module, seed):
                numbers = redrawn(built, part, inside)
            rows += [(part.name, 0, "", quantity, value) for quantity, value in numbers.items()]
    return rows


def redrawn(made: Made, part: LayerList, copies: Sequence[Sequence[str]]) -> dict[str, float]:
    """Measure the growth of activations and the gradient norm with copied and with independent weights.

    Each copy W is replaced by W P S with its own permutation P and signs S of columns, which leaves the law of
    independent symmetric entries unchanged. Numbers are means over four such draws.

    The module's weights and gradients are changed; call this within `kept_state`.

    Args:
        made: module and batch.
        part: the list of layers.
        copies: groups of names of matrices with equal entries.

    Returns:
        copied_growth and redrawn_growth (mean square of the last layer's output divided by the first layer's), and
        redrawn_gradient (squared norm of the gradient of all these matrices with independent weights, divided by the
        one with copies).
    """
    parameters = dict(made.module.named_parameters())
    first = {name: parameters[name].detach().clone() for names in copies for name in names}
    growth, square = _measured(made, part, first)
    generator, redraws = torch.Generator().manual_seed(0), list[tuple[float, float]]()
    for _ in range(_DRAWS):
        with torch.no_grad():
            for names in copies:
                for name in names[1:]:
                    weight = first[name].flatten(1)
                    order = torch.randperm(weight.shape[1], generator=generator)
                    signs = 2.0 * torch.randint(2, order.shape, generator=generator) - 1.0
                    changed = weight[:, order.to(weight.device)] * signs.to(weight)
                    parameters[name].copy_(changed.reshape(first[name].shape))
        redraws.append(_measured(made, part, first))
    anew, squares = (fmean(column) for column in zip(*redraws, strict=True))
    return {
        "copied_growth": growth,
        "redrawn_growth": anew,
        "redrawn_gradient": squares / square if square else float("nan"),
    }


def _measured(built: Made, part: LayerList, names: Mapping[str, object]) -> tuple[float, float]:
    built.module.zero_grad(set_to_none=True)
    recorder = ModuleRecorder([part], token_axis(built.module))
    with recorder:
        built.fresh().backward()
    energy = {layer: float(value) for _, layer, _, name, value in recorder.rows() if name == "hidden_energy"}
    energy = energy or {0: float("nan")}
    gradients = [p.grad for name, p in built.module.named_parameters() if name in names and p.grad is not None]
    return energy[max(energy)] / energy[min(energy)], sum(
        float(gradient.float().square().sum()) for gradient in gradients
    )
