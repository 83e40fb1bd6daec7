"""The entry point of the judges: all verdicts on claims that a set of samples allows."""

from collections.abc import Sequence

from checks.stacks.exponents import depth_exponent, first_layer_exponent, looseness_exponent, width_exponent
from checks.stacks.lemmas import lemma1, lemma2_attention, lemma2_post, lemma2_pre, lemma3
from checks.stacks.own_claims import own_verdicts
from checks.stacks.profiles import post_profile, pre_profile
from checks.stacks.proof import (
    branch_jacobians,
    definition1,
    largest_entries,
    lemma4,
    lemma5,
    norm_jacobians,
    proposition1,
)
from checks.stacks.relaxations import layer_growth, relaxation_rows
from checks.stacks.theorem1 import bound_kept, chain_kept
from checks.theory_and_samples import checked_cells, prediction_of
from checks.verdict import Verdict
from simulate import Samples
from theory import Stack
from theory.stack import PAPER

MINIMUM_DRAWS = 32
"""The smallest number of draws for a verdict: errors estimated from fewer make intervals of exponents too narrow."""


def verdicts(cells: Sequence[Samples]) -> list[Verdict]:
    """Judge all claims by samples of networks, and return the verdicts in the order of the claims.

    The claims are about Gaussian inputs and the paper's two placements. For networks with a dropped assumption, only
    the exponents of Theorem 1 and the profiles over layers are judged. Other networks, and networks with fewer than
    `MINIMUM_DRAWS` draws, are only compared with theory. A claim has no verdict if the samples do not contain the grid
    that it needs; an exponent needs three widths or depths. Registered claims come last, and their judges get every
    network with enough draws.

    Raises:
        ValueError: the judge of a registered claim fails, or an item is not a `Samples`.
    """
    enough = [s for s in checked_cells(cells) if s.cell.text is None and s.draws >= MINIMUM_DRAWS]
    judged = [s for s in enough if s.stack.in_paper]
    whole = [s for s in enough if s.stack.branches == "both"]  # of one kind of branch nothing is claimed
    relaxed = [s for s in whole if s.stack.relaxed and s.stack.placement in PAPER and prediction_of(s)]
    unit_output = [s for s in judged if s.stack.output_scale == Stack().output_scale]
    return [
        *lemma1(judged),
        *lemma2_post(judged),
        *lemma2_pre(judged),
        *lemma2_attention(judged),
        # About functions and laws, not networks, and sampled on the spot; of no use beside a text.
        *([*lemma3(), *lemma4(), *definition1(), *proposition1(), *lemma5()] if judged else []),
        *largest_entries(judged),
        *bound_kept(judged),
        *chain_kept(judged),
        *width_exponent(judged),
        *depth_exponent(unit_output),
        *first_layer_exponent(unit_output),
        *([*norm_jacobians(), *branch_jacobians()] if judged else []),
        *post_profile(unit_output),
        *pre_profile(unit_output),
        *looseness_exponent(unit_output),
        *relaxation_rows(relaxed),
        *layer_growth([*judged, *relaxed]),
        *own_verdicts(enough),
    ]
