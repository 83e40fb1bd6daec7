"""Kinds of faults that public problems had are named in a family that needs no library; the evidence has all."""

import pytest
import torch

from checks.models.judge import judged_module
from tests.helpers.public_faults import KINDS
from tests.helpers.single_modules import OF_TRANSFORMERS


@pytest.mark.parametrize("kind", KINDS)
def test_public_kinds_are_answered(kind):
    """By what is said to be right; and healthy counterparts are silent."""
    one, torch_alone = KINDS[kind], [name for name in KINDS[kind].families if name not in OF_TRANSFORMERS]
    torch.manual_seed(13)
    answer = one.answers(judged_module(*one.plant(torch_alone[1], 2, 32, 3)), 2)
    assert any(answer[by] for by in one.asked) if one.asked else not answer["other"]
