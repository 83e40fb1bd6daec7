"""Classes of transformers, small, held against their own configurations: as they draw themselves, and with faults.

Every family whose configuration is read. Kinds of faults and bars were chosen before the first run of this file.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from checks.models.initialization import against_description
from simulate.modules.one_module import one_module
from tests.helpers.evidence_file import kept_cases, record
from theory.configurations.family import DEVIATION

transformers = pytest.importorskip("transformers")
model_classes = pytest.importorskip("tests.helpers.model_classes")
pytestmark = [pytest.mark.evidence, pytest.mark.filterwarnings("ignore")]
SEED, BAR = 71_000, 0.95
# Families whose class draws what its configuration does not describe, and why.
TRUE = {"nemotron": "its norms multiply by weight + 1, and its class draws weights of 1, so that they multiply by 2"}


def doubled_norms(model: Any) -> bool:
    norms = [part for part in model.modules() if "Norm" in type(part).__name__ and hasattr(part, "weight")]
    for part in norms:
        if part.weight is not None:
            part.weight.fill_(1.0 if float(part.weight.mean()) == 0 else 2.0)
    return bool(norms)


def other_tie(model: Any) -> bool:
    words, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None or head.weight.shape != words.weight.shape:
        return False
    head.weight = nn.Parameter(head.weight.detach().clone()) if head.weight is words.weight else words.weight
    return True


def unit_embedding(model: Any) -> bool:
    if not any(hasattr(model.config, name) for name in DEVIATION):  # T5's have it
        return False
    model.get_input_embeddings().weight.normal_()
    return True


def drawn_by_torch(model: Any) -> bool:
    for part in model.modules():
        if isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D":
            nn.init.kaiming_uniform_(part.weight, a=5**0.5)
    return True


def layer_left_out(model: Any) -> bool:
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == model_classes.DEPTH]
    if len(lists) != 1:  # which a configuration of one depth describes
        return False
    del lists[0][-1]
    return True


FAULTS: dict[str, Callable[[Any], bool]] = {
    "as drawn": lambda _: True, "norms that multiply by 2": doubled_norms, "the other tie": other_tie,
    "an embedding of deviation 1": unit_embedding, "matrices as torch draws them": drawn_by_torch,
    "a layer left out": layer_left_out,
}  # fmt: skip
SAYS = {
    "norms that multiply by 2": "have gain", "the other tie": "tie_word_embeddings",
    "an embedding of deviation 1": "standard deviation", "matrices as torch draws them": "standard deviation",
    "a layer left out": "layers; its configuration's number",
}  # fmt: skip


def case(family: str, fault: str) -> Any:
    """What is said; None where the fault cannot be planted."""
    model = model_classes.build(family, model_classes.small_fields(family), seed=SEED)
    if model.config.is_encoder_decoder:
        model.config.decoder_start_token_id = 0
    with torch.no_grad():
        if not FAULTS[fault](model):
            return None
    words = torch.randint(3, model_classes.VOCAB, (4, 16), generator=torch.Generator().manual_seed(SEED))
    alarms, _ = against_description(one_module(model, {"input_ids": words, "labels": words}), None, trained=False)
    return [str(alarm) for alarm in alarms]


def config_cases(_: Any) -> dict[tuple[Any, ...], Callable[[], Any]]:
    families = [name for name in sorted(model_classes.FAMILIES) if name in model_classes.CLASSES]
    return {("config", family, fault): partial(case, family, fault) for family in families for fault in FAULTS}


CASES = {"config": config_cases}


def test_classes_are_what_their_configurations_describe_and_faults_are_named(kept_folder):
    found = kept_cases(kept_folder, config_cases(None))
    alarms = {family: said for (_, family, fault), said in found.items() if fault == "as drawn" and said}
    silent: dict[str, list[str]] = {fault: [] for fault in SAYS}
    planted = dict.fromkeys(SAYS, 0)
    for (_, family, fault), said in found.items():
        if fault in SAYS and said is not None:
            planted[fault] += 1
            silent[fault] += [family] if not any(SAYS[fault] in alarm for alarm in said) else []
    record("probe-config", {
        "transformers": transformers.__version__, "families": len(found) // len(FAULTS), "alarms as drawn": alarms,
        "true": TRUE, "planted": planted, "not named": silent,
    })  # fmt: skip
    assert set(alarms) == set(TRUE)
    assert sum(planted.values()) > 300
    assert sum(map(len, silent.values())) < (1 - BAR) * sum(planted.values())
