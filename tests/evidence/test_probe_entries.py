"""Sizes of matrices' entries in classes of transformers at their default sizes, for the bounds of a note.

Of each class the lists of layers, two where the configuration says how many. Classes of more than 250 million
parameters are left out, and those that do not follow from their default configuration or take over 25 seconds.
"""

import signal
from functools import partial
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn

from checks.models.whole_model import ENTRIES, ENTRIES_BESIDE
from simulate.modules.layers import layer_lists
from tests.helpers.evidence_file import kept_cases, record, rounded

transformers = pytest.importorskip("transformers")
small_classes = pytest.importorskip("tests.helpers.small_classes")
pytestmark = [pytest.mark.evidence, pytest.mark.filterwarnings("ignore")]
TASKS = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_CLASSIFICATION", "AUDIO_CLASSIFICATION")
DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers",
          "num_decoder_layers", "num_encoder_layers")  # fmt: skip
MOST, LAYERS, VOCAB, SECONDS = 250_000_000, 2, 1000, 25


def built(name: str) -> nn.Module | None:
    """The class at its default sizes; None where it has too many parameters."""
    kind = getattr(transformers, name)
    config = kind.config_class()
    for field in DEPTHS:
        if isinstance(getattr(config, field, None), int):
            setattr(config, field, LAYERS)
    for field in ("layer_types", "mlp_layer_types"):
        if getattr(config, field, None):
            setattr(config, field, getattr(config, field)[:LAYERS])
    if isinstance(getattr(config, "vocab_size", None), int):
        config.vocab_size = min(config.vocab_size, VOCAB)
        for field in ("pad_token_id", "bos_token_id", "eos_token_id"):
            if isinstance(getattr(config, field, None), int) and getattr(config, field) >= VOCAB:
                setattr(config, field, 1)
    with torch.device("meta"):
        count = sum(weight.numel() for weight in kind(config).parameters())
    torch.manual_seed(0)
    return kind(config) if count <= MOST else None


def too_long(*_: object) -> None:
    raise TimeoutError


def case(name: str) -> Any:
    """The largest number of a matrix, and over the median of its layer and sqrt(2L); or why there is none."""
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        module = built(name)
        lists = layer_lists(module, (), 0) if module is not None else []
    except Exception as error:  # somebody else's class may fail in any way
        return type(error).__name__
    finally:
        signal.alarm(0)
    largest, beside = [0.0], [0.0]
    for part in lists:
        matrices = [weight for weight in part.layers[-1].parameters() if weight.ndim == 2 and weight.any()]
        sizes = [float(one.detach().float().square().mean()) ** 0.5 * min(one.shape) ** 0.5 for one in matrices]
        largest += sizes
        if len(sizes) > 2:
            beside.append(max(sizes) / median(sizes) / (2 * len(part.layers)) ** 0.5)
    return [max(largest), max(beside)] if lists else "too large"


def entry_cases(_: Any) -> dict[tuple[Any, ...], Any]:
    """Return a case for every model class with a head for tokens, images or sounds."""
    names = small_classes.families(TASKS, without_head=False).values()
    return {("entries", name): partial(case, name) for name in sorted(names)}


CASES = {"entries": entry_cases}


def test_entries_of_published_classes(kept_folder):
    found = {name: one for (_, name), one in kept_cases(kept_folder, entry_cases(None)).items()}
    judged = {name: one for name, one in found.items() if isinstance(one, list)}
    furthest = [
        dict(sorted(((name, of[place]) for name, of in judged.items()), key=lambda of: -of[1])[:5]) for place in (0, 1)
    ]
    record("probe-entries", rounded({
        "transformers": transformers.__version__, "classes": len(judged), "not built": len(found) - len(judged),
        "largest": furthest[0], "over the median and sqrt(2L)": furthest[1],
    }))  # fmt: skip
    # XLNet's median is of biases with two axes, which the note leaves out; its other matrices are two.
    assert all(of[0] < ENTRIES and (of[1] < ENTRIES_BESIDE or "XLNet" in name) for name, of in judged.items())
