"""A translation model and all pairs of a text as a problem for second derivatives."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from simulate.curvature.problems import Problem, TokenLoss
from simulate.modules.factories import seeded
from studies.parallel_text import PADDING, ParallelText
from studies.translation_model import Translation, Translator, padded


class _OfWords(nn.Module):
    """Logits of the labels that are words, (labels, V)."""

    def __init__(self, translator: Translator) -> None:
        super().__init__()
        self.translator = translator

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return self.translator(inputs["source"], inputs["target"]).flatten(0, 1)[inputs["places"]]


def translation_problem(
    translation: Translation, text: ParallelText, *, seed: int, piece: int = 48, dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Problem:  # fmt: skip
    """A translation model on all pairs of a text, in pieces of pairs of like lengths; without dropout.

    Raises:
        ValueError: vocab is not the text's.
    """
    if translation.vocab != text.vocab:
        raise ValueError(f"vocab must be the text's {text.vocab}, got {translation.vocab}.")
    with seeded(seed):
        model = _OfWords(Translator(replace(translation, dropout=0.0))).to(device, dtype)
    lengths = np.array([len(ids) - 1 for ids in text.targets])
    # Of sources too, within pairs of one target length: padding is computed, for nothing.
    order = np.lexsort((np.array([len(ids) for ids in text.sources]), lengths))
    data = []
    for pairs in np.array_split(order, -(-len(text) // piece)):
        source, target = (padded([ids[k] for k in pairs]).to(device) for ids in (text.sources, text.targets))
        labels = target[:, 1:]
        inputs = target[:, :-1].masked_fill(labels == PADDING, PADDING)
        places = (labels != PADDING).flatten().nonzero()[:, 0]
        data.append(({"source": source, "target": inputs, "places": places}, labels.flatten()[places]))
    return Problem(model, TokenLoss(int(lengths.sum()), translation.smoothing), data)
