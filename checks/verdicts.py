"""Every verdict that a set of samples can give."""

from collections.abc import Sequence

from checks.lemmas import lemma1, lemma2_attention, lemma2_post, lemma2_pre, lemma3
from checks.profiles import post_profile, pre_profile
from checks.theorem1 import bound_kept, depth_exponent, width_exponent
from checks.verdict import Verdict
from simulate import Samples
from theory import Stack


def verdicts(cells: Sequence[Samples]) -> list[Verdict]:
    """Verdicts in the order of the claims.

    The claims are about Gaussian inputs, so cells of text are left to the comparison with theory. A claim for which
    the cells hold no fitting grid (an exponent needs three widths or depths) gives no row.
    """
    gaussian = [s for s in cells if s.cell.text is None]
    unit_output = [s for s in gaussian if s.stack.output_scale == Stack().output_scale]
    return [
        *lemma1(gaussian),
        *lemma2_post(gaussian),
        *lemma2_pre(gaussian),
        *lemma2_attention(gaussian),
        *lemma3(),
        *bound_kept(gaussian),
        *width_exponent(gaussian),
        *depth_exponent(unit_output),
        *post_profile(unit_output),
        *pre_profile(unit_output),
    ]
