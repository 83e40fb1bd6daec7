"""Which term of a gradient a tied output matrix makes, in translation models; MULTI30K names the texts' folder."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from studies.parallel_text import PADDING, read_pairs
from studies.translation_model import Translation, Translator, padded, translation_loss
from tests.helpers.evidence_file import record

FOLDER = os.environ.get("MULTI30K", "")
PAIRS, SEEDS = 60, 2

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.skipif(not FOLDER, reason="MULTI30K must name a folder with train.de and train.en"),
]


def parts(text: Any, placement: str, tied: bool, seed: int) -> dict[str, float]:
    """‖∂L/∂W2‖² of the decoder's last layer at PyTorch's initialization, and of its two terms by the last norm.

    With z the normalized stream and s its root, the gradient g at z is taken to u = (g − mean g)/s − z (g·z)/(d s).
    """
    torch.manual_seed(seed)
    some = np.random.default_rng(seed).permutation(len(text))[:PAIRS]
    source, target = (padded([ids[pair] for pair in some]) for ids in (text.sources, text.targets))
    translation = Translation(placement=placement, initialization="pytorch", tied=tied, vocab=text.vocab, dropout=0.0)  # type: ignore[arg-type]
    model, kept = Translator(translation), {}

    def keep(name: str) -> Any:
        def hook(_: Any, given: Any, out: Any) -> None:
            kept[name] = (given[0], out)
            for x in (given[0], out):
                x.retain_grad()

        return hook

    last = model.decoder[-1]
    norm = last.norm3 if placement == "post" else model.decoder_norm
    for name, module in {"norm": norm, "second": last.linear2, "output": model.output}.items():
        module.register_forward_hook(keep(name))
    labels = target[:, 1:]
    logits = model(source, target[:, :-1].masked_fill(labels == PADDING, PADDING))
    loss = translation_loss(translation, logits, labels)
    loss.backward()
    counted = (labels != PADDING).flatten()

    def rows(x: Any) -> Any:
        return x.detach().flatten(0, 1)[counted]

    (x, z), (h, out) = kept["norm"], kept["second"]
    root = (rows(x).var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    g, z, h, u = rows(z.grad), rows(z), rows(h), rows(out.grad)
    own = -z * (g * z).mean(-1, keepdim=True) / root
    rest = (g - g.mean(-1, keepdim=True)) / root
    torch.testing.assert_close(own + rest, u, rtol=1e-3, atol=1e-4 * float(u.abs().max()))
    units, count = z / z.norm(dim=-1, keepdim=True), len(z)
    errors = rows(kept["output"][1].grad) * count
    return {
        "loss": float(loss.detach()), "error": float((errors**2).sum(-1).mean()),
        "share along the stream": float(((g * units).sum(-1) ** 2).sum() / (g**2).sum()),
        "cosine of streams": float((units.sum(0) ** 2).sum() - count) / (count * (count - 1)),
        "W2": float(((u.T @ h) ** 2).sum()), "along the stream": float(((own.T @ h) ** 2).sum()),
        "rest": float(((rest.T @ h) ** 2).sum()),
        "each position by itself": float(((u**2).sum(-1) * (h**2).sum(-1)).sum()),
    }  # fmt: skip


def test_what_a_tied_output_matrix_adds():
    """Pre-LN's W2 is larger by what the last norm removes along the stream: over 3/4 of it, and under 1/10 untied."""
    text = read_pairs(Path(FOLDER) / "train.de", Path(FOLDER) / "train.en", vocab=10_000)
    found = {}
    for placement in ("post", "pre"):
        for tied in (False, True):
            draws = [parts(text, placement, tied, seed) for seed in range(SEEDS)]
            found[f"{placement}, {'tied' if tied else 'untied'}"] = {
                name: [round(draw[name], 4) for draw in draws] for name in draws[0]
            }
    record("tied-output", {"pairs": PAIRS, "d": 512, "layers": "6-6", "dropout": 0} | found, short=True)
    for name, columns in found.items():
        shares = np.array(columns["along the stream"]) / np.array(columns["W2"])
        if name == "pre, tied":
            assert (shares > 0.75).all()
        if name.endswith("untied"):
            assert (shares < 0.1).all()
