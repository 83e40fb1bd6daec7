"""Theory's line next to a run's at step 1: in a plain loop, and in a Trainer of an absent or a fake transformers."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import gradbounds as gb
from theory import NoRuleError

CONFIG = {
    "model_type": "gpt2",
    "n_layer": 1,
    "n_head": 4,
    "n_embd": 64,
    "vocab_size": 256,
    "tie_word_embeddings": False,
}
OPTIONS = {"tokens": 4, "text": "zipf:1"}
ARGS = SimpleNamespace(train_batch_size=2, gradient_accumulation_steps=3, world_size=4)


@pytest.fixture
def shown():
    return []


@pytest.fixture
def first(shown):
    return gb.StepOne(24, config=CONFIG, show=shown.append, **OPTIONS)


def test_a_loop_prints_both_lines_once(first, shown):
    """Tensors and numbers alike, in the first call only."""
    first(np.float32(first.line.loss), np.array([first.line.norm]))
    first(1.0, 1.0)
    assert len(shown) == 2
    assert shown[0].startswith(f"theory: loss {first.line.loss:.4g} +- ")
    assert shown[0].endswith(", at 24 sequences of 4 tokens, Zipf's law")
    numbers = f"loss {first.line.loss:.4g}, gradient norm {first.line.norm:.4g}"
    assert shown[1] == f"run:    {numbers}: as predicted"


@pytest.mark.parametrize(
    ("loss", "norm", "verdict"),
    [
        (1.0, None, "no gradient norm: as predicted"),
        (
            1.0,
            2.0,
            " times the prediction (95% of runs: 0.844 to 1.19); gradbounds predict --logged tests the causes",
        ),
        (1.5, None, "off: the loss is 1.5 times the prediction (95% of runs: "),
        (0.3, 9.0, " of ln V: the weights are trained"),
        (float("nan"), 1.0, ": not positive and finite"),
        (1.0, 0.0, ": not positive and finite"),
    ],
)
def test_verdicts(first, shown, loss, norm, verdict):
    first(loss * first.line.loss, None if norm is None else norm * first.line.norm)
    assert verdict in shown[1]


def test_networks_and_arguments_that_are_refused():
    with pytest.raises(ValueError, match="batch must be"):
        gb.StepOne(0, config=CONFIG)
    with pytest.raises(ValueError, match="like must be one of"):
        gb.StepOne(1, like="gpt9")
    with pytest.raises(NoRuleError):
        gb.StepOne(24, config=CONFIG, **OPTIONS, embeddings="tied")


def test_the_callback_requires_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"transformers must be installed: pip install 'gradbounds\[models\]'"):
        gb.step_one_callback()


@pytest.fixture
def trained(monkeypatch, shown):
    """A fake Trainer, which calls a callback as Trainer does: keywords for all that is not the state."""
    module = ModuleType("transformers")
    module.TrainerCallback = type("TrainerCallback", (), {})
    monkeypatch.setitem(sys.modules, "transformers", module)

    def train(logs, *, config=CONFIG, is_first=True, begins=0, **options):
        callback = gb.step_one_callback(show=shown.append, **OPTIONS | options)
        model = SimpleNamespace(config=SimpleNamespace(to_dict=lambda: config))
        state = SimpleNamespace(is_world_process_zero=is_first, global_step=begins)
        callback.on_train_begin(ARGS, state, None, model=model, optimizer=None)
        for state.global_step, record in logs:
            callback.on_log(ARGS, state, None, logs=record, model=model)
        return shown

    return train


def test_the_callback_prints_at_step_1(trained):
    """The batch is that of the arguments; a record without a loss is passed over."""
    lines = trained([(1, {"eval_loss": 5.0}), (1, {"loss": 5.6, "grad_norm": 1e6}), (2, {"loss": 5.0})])
    assert len(lines) == 2
    assert "at 24 sequences of 4 tokens" in lines[0]
    assert lines[1].startswith("run:    loss 5.6, gradient norm 1e+06: off: ")
    assert "at 8 sequences of 4 tokens" in trained([(1, {"loss": 5.6})], batch=8)[2]


def test_the_callback_leaves_the_training_alone(trained):
    """Other processes, resumed runs, later logs and networks without a rule print one line at most."""
    logs = [(1, {"loss": 5.6})]
    assert trained(logs, is_first=False) == []
    assert trained(logs, begins=7) == []
    later = trained([(10, {"loss": 5.6}), (20, {"loss": 5.5})])
    assert later == ["gradbounds compares step 1, and the first log is of step 10: set logging_first_step=True"]
    assert trained(logs, config={"model_type": "unheard"})[1].startswith("gradbounds does not predict step 1: ")
