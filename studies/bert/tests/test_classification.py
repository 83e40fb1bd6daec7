"""The classifier against its definition, and that its body is drawn as a masked language model is."""

from dataclasses import replace

import pytest
import torch

from studies.bert.classification import MaskedClassifier
from studies.bert.model import MaskedLanguageModel
from studies.bert.tests.test_model import SMALL
from studies.bert.text import CLASS, PADDING, WORDS


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_classifier_is_its_definition(placement):
    """Of [CLS] alone, whose place the body gives; words behind a window's end, and the body's head, say nothing."""
    model = replace(SMALL, placement=placement)
    torch.manual_seed(0)
    classifier = MaskedClassifier(model, 3).double()
    torch.manual_seed(0)
    body = MaskedLanguageModel(model).double()
    ids = torch.randint(WORDS, 30, (4, 9))
    ids[:, 0], ids[1, 6:] = CLASS, PADDING
    first = torch.stack([body.hidden(window[None], torch.tensor([0]))[0] for window in ids])
    pooler, classes = classifier.top["pooler"], classifier.top["classes"]
    expected = torch.tanh(first @ pooler.weight.T + pooler.bias) @ classes.weight.T + classes.bias
    logits = classifier(ids)
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(classifier(ids[1:2, :6]), logits[1:2], rtol=1e-9, atol=1e-12)
    logits.logsumexp(-1).sum().backward()
    without = {name for name, p in classifier.named_parameters() if p.grad is None}
    assert without == {
        f"body.{name}" for name in ("bias", "dense.weight", "dense.bias", "head_norm.weight", "head_norm.bias")
    }
