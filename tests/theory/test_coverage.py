"""The table of what theory has no rule for: each row has a network, and every prediction refuses it in its words."""

import re

import pytest
import torch

import gradbounds as gb
from simulate.curvature.first_step import first_step_problem
from simulate.curvature.problems import StackModule
from studies.hessian.gauss_newton import gauss_newton_norms, gauss_newton_traces
from studies.hessian.largest_eigenvalue import largest_eigenvalues
from studies.mean_hessian.theory import mean_hessian_trace
from studies.training.train import train
from theory import NoRuleError, Stack, predict
from theory.coverage import GAPS, SUBJECTS, Gap, gaps
from theory.first_step.noise_scale import noise_scale
from theory.first_step.prediction import first_step
from theory.paper.layer_growth import layer_factor

NORMED_STREAMS = gb.Composition(
    title="two", source="here", stream_norm=True, final_norm=True, second_stream=True, input_norm=True
)
TIED = {"embeddings": "tied", "vocab": 128}
CALLS = {
    "prediction": lambda stack: predict(stack, patterns=2),
    "grouped": lambda stack: predict(stack, grouped=True),
    "finite_width": lambda stack: predict(stack, finite_width=True),
    "first_step": first_step,
    "noise_scale": noise_scale,
    "gauss_newton": gauss_newton_traces,
    "gauss_newton_norms": lambda stack: gauss_newton_norms(stack, samples=2),
    "mean_hessian": mean_hessian_trace,
    "hessian_eigenvalue": largest_eigenvalues,
    "layer_growth": layer_factor,
    "training": lambda stack: train(stack, steps=1, learning_rate=0.1, draws=1, seed=0),
    "hessian": lambda stack: StackModule(stack, 0, torch.float32),
    "sampled_step": lambda stack: first_step_problem(stack, seed=0),
}
# By what each gap asks for, a network that lacks it.
LACKING = {
    "untied embeddings or query_key": TIED | {"query_key_scale": 1.0, "query_key": "tied"},
    "untied embeddings, or output_projection": TIED | {"heads": 4, "kv_heads": 2},
    "untied embeddings or vocab": TIED | {"vocab": 5},
    "untied embeddings or no dropout": TIED | {"dropout": 0.1},
    "untied embeddings or no source_tokens": TIED | {"source_tokens": 2},
    "untied embeddings, or one stream": TIED | {"embedding_norm": "added"},
    "untied embeddings or labels": TIED | {"labels": "zipf"},
    "untied embeddings or at least": TIED | {"query_key_scale": 1.0},
    "query_key 'untied'": {"query_key": "tied", "query_key_scale": 1.0, "source_tokens": 2},
    "a norm, or tanh": {"normalization": "tanh"},
    "two residual streams whose": {"placement": "normed-streams"},
    "untied embeddings, or layers alike": TIED | {"norm_gain": 2.0},
    "untied embeddings or loss_share 1": TIED | {"loss_share": 0.5},
    "untied embeddings, no sinusoidal": TIED | {"positions": "sinusoidal"},
    "norms": {"normalization": "tanh"},
    "loss_share 1": {"loss_share": 0.5},
    "a norm with random queries": {"normalization": "none", "query_key_scale": 1.0},
    "untied embeddings": TIED,
    "fixed attention weights": {"query_key_scale": 1.0},
    "no dropout": {"dropout": 0.1},
    "one stream": {"placement": "residual"},
    "at most 64": {"tokens": 65},
    "vocab of at most 200": {"width": 2, "vocab": 401},
    "exchangeable tokens": {"mask": "causal"},
    "window 0 or": {"mask": "causal", "window": 4, "tokens": 8},
    "independent tokens": {"loss_on": "last"},
    "one stream, query_key": {"query_key": "tied", "query_key_scale": 1.0},
    "query_key_scale > 0": {},
    "heads of at least 16": {"width": 64, "heads": 8, "query_key_scale": 1.0},
    "the paper's setting": {"activation": "gelu"},
    "a final norm": {"norm_epsilon": 0.1},
    "ffn 'plain'": {"activation": "gelu"},
    "no source_tokens": {"source_tokens": 2},
    "both branches one after": {"norm_epsilon": 0.1},
    "untied embeddings or no experts": TIED | {"experts": 2},
    "no experts": {"experts": 2},
    "no shared expert": {"experts": 2, "shared_ratio": 1.0},
    "depth_mixing": {"placement": "pre", "depth_mixing": "highway"},
    "a norm of sums, branches": {"normalization": "none", "experts": 2},
    "projection_gain and down_gain": {"down_gain": 0.0},
    "untied embeddings, or projection_gain": TIED | {"down_gain": 0.0},
    "output_transform 'none'": {"output_transform": "added"},
}


def fields_of(gap: Gap) -> dict[str, object]:
    """The network of the longest beginning of what a gap asks for."""
    return LACKING[max((start for start in LACKING if gap.needs.startswith(start)), key=len)]


@pytest.mark.parametrize("gap", GAPS, ids=[gap.networks[:40] for gap in GAPS])
def test_every_gap_is_refused_in_its_words(gap, own_names):
    gb.register_placement("normed-streams", NORMED_STREAMS)
    stack = Stack(**{"width": 64, "depth": 1, "tokens": 3, "vocab": 16} | fields_of(gap))
    for subject in gap.subjects:
        assert gap in gaps(stack, subject)
        if subject in CALLS:
            with pytest.raises(NoRuleError, match=re.escape(f"{gap.needs} ({gap.because})")):
                CALLS[subject](stack)


def test_the_papers_network_lacks_nothing():
    assert [subject for subject in SUBJECTS if gaps(Stack(), subject)] == []
    with pytest.raises(ValueError, match="^subject must be one of prediction, "):
        gaps(Stack(), "everything")
