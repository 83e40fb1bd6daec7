"""A fixture by which a file of tests of `--logged` predicts each network once."""

import pytest

from gradbounds.actions import logged_theory
from gradbounds.actions.first_line import scale_of_batch


@pytest.fixture(scope="module")
def predicted_once():
    """Keep the predictions of networks, since many cases ask for the same ones."""
    kept = {}

    def once(stack, law, patterns, budget, *, coarse=False, notes=()):
        key = stack, law and law.key, patterns, coarse, notes
        if key not in kept:
            kept[key] = scale_of_batch(stack, law, patterns, budget, coarse=coarse, notes=notes)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logged_theory, "scale_of_batch", once)
        yield
