"""Sentences and pairs of them in classes, by the body of a masked language model."""

import torch
from torch import Tensor, nn

from studies.bert.model import MaskedLanguageModel, MaskedModel, draw


class MaskedClassifier(nn.Module):
    """BERT's classifier: what the layers give for [CLS], a tanh layer (the pooler), and logits of the classes.

    There are no embeddings of segments: [SEP] parts a pair. The body's own head is left as it is, and has no gradient.
    The body is drawn first, from torch's global generator, so that its weights do not depend on the classes.

    Args:
        model: the body.
        classes: how many.

    Source: Devlin et al. (2019), sections 3.2 and 4.
    """

    def __init__(self, model: MaskedModel, classes: int) -> None:
        super().__init__()
        self.body = MaskedLanguageModel(model)
        self.top = nn.ModuleDict(
            {"pooler": nn.Linear(model.width, model.width), "classes": nn.Linear(model.width, classes)}
        )
        draw(self.top, model.width)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (windows, classes).

        Args:
            ids: (windows, length), each with [CLS] first, padded at the end.
        """
        first = torch.arange(len(ids), device=ids.device) * ids.shape[1]
        logits: Tensor = self.top["classes"](torch.tanh(self.top["pooler"](self.body.hidden(ids, first))))
        return logits
