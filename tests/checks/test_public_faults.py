"""Kinds of faults that public problems had are named in a family that needs no library; the evidence has all.

Kinds that test_one_report or test_attention_alarms plants as well, and kinds of one cause, are in the evidence.
"""

import pytest
import torch

from checks.models.judge import judged_module
from tests.helpers.public_faults import KINDS
from tests.helpers.single_modules import OF_TRANSFORMERS

ELSEWHERE = {
    "q.k without 1/sqrt(d_k), all layers", "softmax over queries, all layers", "no mask, next word",
    "heads for positions, labels at random", "the other triangle, labels at random", "epsilon of 1, one layer",
    "norms times their input", "every matrix from one seed", "rows that repeat, all layers", "q.k times sqrt(d_k)",
    "q.k over sqrt(d)", "no mask, labels at random", "output matrix of N(0, 1)",
    "biases of attention that nobody wrote", "norms that are not called",
}  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ELSEWHERE])
def test_public_kinds_are_answered(kind):
    """By what is said to be right; and healthy counterparts are silent."""
    one, torch_alone = KINDS[kind], [name for name in KINDS[kind].families if name not in OF_TRANSFORMERS]
    torch.manual_seed(13)
    answer = one.answers(judged_module(*one.plant(torch_alone[1], 2, 32, 3)), 2)
    assert any(answer[by] for by in one.asked) if one.asked else not answer["other"]
