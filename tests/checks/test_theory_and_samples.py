"""Theory beside samples: whose errors count, and which networks are wide enough."""

import dataclasses

import numpy as np

from checks import theory_and_samples
from checks.statistics import estimate
from checks.theory_and_samples import comparison
from checks.trust import Trust
from simulate import sample
from theory import Prediction, Stack


def test_the_error_of_a_prediction_counts(monkeypatch):
    """A mean ten of its standard errors off differs from exact theory, and not from theory as uncertain as that."""
    samples = sample(Stack(width=256, depth=1, tokens=2, vocab=8), draws=64, seed=0)
    loss = estimate(samples["loss"])
    predicted = {"loss": np.array(loss.mean - max(10 * loss.sem, 0.1 * loss.mean))}
    for errors, word in (({}, "differs"), ({"loss": np.array(0.1 * loss.mean + 10 * loss.sem)}, "undecided")):
        prediction = Prediction(samples.stack, predicted, errors)
        monkeypatch.setattr(theory_and_samples, "prediction_of", lambda _, patterns, prediction=prediction: prediction)
        table = comparison([samples])
        assert table.loc[table["quantity"] == "loss", "agreement"].tolist() == [word]


def test_all_tokens_of_a_batch_ask_for_width():
    """The output matrix's gradient is off by the number of its rows over d, whatever sequences they are of."""
    one = Stack(width=256, depth=1, tokens=8, vocab=16)
    assert not Trust.of(one).why
    assert Trust.of(dataclasses.replace(one, sequences=4)).why
    assert Trust.of(dataclasses.replace(one, tokens=32)).why


def test_own_logits_in_the_exponent_ask_for_heads():
    """One matrix of queries and keys over √d_k, whose own logits vary by s² (d_k/d)^(1/2); two matrices do not ask."""
    tied = Stack(width=512, depth=1, tokens=4, vocab=16, query_key_scale=1.0, query_key="tied", heads=128)
    assert not Trust.of(tied).why
    assert Trust.of(dataclasses.replace(tied, heads=64)).why
    assert Trust.of(dataclasses.replace(tied, query_key_scale=1.2)).why
    for other in ({"query_key": "untied"}, {"attention_scale": "linear"}):
        assert not Trust.of(dataclasses.replace(tied, heads=64, **other)).why
