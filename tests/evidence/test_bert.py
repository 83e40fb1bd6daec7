"""The masked language model beside transformers' BertForMaskedLM with the same weights."""

import pytest
import torch

from simulate.pretraining.model import MaskedLanguageModel, MaskedModel, masked_loss
from simulate.pretraining.text import PADDING, WORDS

pytestmark = pytest.mark.evidence

ATTENTION = ("query", "key", "value")


def as_transformers_has(found):
    """Our parameters, or their gradients, by BertForMaskedLM's names."""
    names = {"words.weight": "bert.embeddings.word_embeddings.weight", "bias": "cls.predictions.bias"}
    names |= {"positions.weight": "bert.embeddings.position_embeddings.weight"}
    for kind in ("weight", "bias"):
        names[f"embedding_norm.{kind}"] = f"bert.embeddings.LayerNorm.{kind}"
        names[f"dense.{kind}"] = f"cls.predictions.transform.dense.{kind}"
        names[f"head_norm.{kind}"] = f"cls.predictions.transform.LayerNorm.{kind}"
    parts = {
        "self_attn.out_proj": "attention.output.dense", "norm1": "attention.output.LayerNorm",
        "linear1": "intermediate.dense", "linear2": "output.dense", "norm2": "output.LayerNorm",
    }  # fmt: skip
    theirs = {}
    for name, value in found.items():
        if name in names:
            theirs[names[name]] = value
            continue
        _, layer, inner = name.split(".", 2)
        before = f"bert.encoder.layer.{layer}."
        if "in_proj" in inner:
            for role, part in zip(ATTENTION, value.chunk(3), strict=True):
                theirs[f"{before}attention.self.{role}.{inner.removeprefix('self_attn.in_proj_')}"] = part
        else:
            part, kind = inner.rsplit(".", 1)
            theirs[f"{before}{parts[part]}.{kind}"] = value
    return theirs


def test_against_transformers():
    """Logits, loss and every gradient, in float64 to rounding; one window is padded."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=36,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.BertForMaskedLM(config).double()
    ours = MaskedLanguageModel(
        MaskedModel(width=24, depth=3, heads=4, ffn_width=36, vocab=50, length=16, dropout=0.0)
    ).double()
    with torch.no_grad():
        for parameter in ours.parameters():  # norms and biases that count
            parameter += 0.3 * torch.randn_like(parameter)
        weights = as_transformers_has(dict(ours.named_parameters()))
        for name, parameter in theirs.named_parameters():
            parameter.copy_(weights.pop(name) if name in weights else torch.zeros_like(parameter))
    assert not weights
    ids = torch.randint(WORDS, 50, (3, 16))
    ids[1, 11:] = PADDING
    chosen = (torch.rand(3, 16) < 0.3) & (ids != PADDING)
    places, labels = chosen.flatten().nonzero()[:, 0], torch.randint(WORDS, 50, (3, 16))
    answer = theirs(input_ids=ids, attention_mask=ids != PADDING, labels=labels.where(chosen, torch.tensor(-100)))
    logits = ours(ids, places)
    torch.testing.assert_close(logits, answer.logits.flatten(0, 1)[places], rtol=1e-10, atol=1e-11)
    loss = masked_loss(logits, labels.flatten()[places])
    torch.testing.assert_close(loss, answer.loss, rtol=1e-12, atol=0.0)
    loss.backward()
    answer.loss.backward()
    gradients = as_transformers_has({name: p.grad for name, p in ours.named_parameters()})
    for name, parameter in theirs.named_parameters():
        if "token_type" in name:  # one segment, whose embedding ours has in the positions'
            continue
        torch.testing.assert_close(gradients.pop(name), parameter.grad, rtol=1e-9, atol=1e-12)
    assert not gradients
