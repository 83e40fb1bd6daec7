"""Lecture 2: a bound, its slack, and a verdict
============================================

How does one tell a true bound from a tight one? Four exercises.
"""

# %%
# Exercises
# ---------
#
# 1. Theorem 1 of Xiong et al. (2020) bounds the last layer's gradient by a constant times :math:`d \sqrt{\ln d}`.
#    Predict the exponent in :math:`d` of the gradient itself, at widths from 64 to 4096.
# 2. By what does the proof's bound grow over the same widths? Draw both; the gap is what the proof loses.
# 3. Draw sampled networks into the same picture. Which widths can a laptop sample, and how large are the errors of 16
#    draws?
# 4. Fit the exponent of the samples with an interval: does it exclude the bound's exponent? Is the right word *fails*
#    or *holds, loose*?
#
# The answers are in ``answers_to_the_bound``. The first exercise begins with these widths:
import numpy as np

import gradbounds as gb

widths = np.array([64, 256, 1024, 4096])
stacks = [gb.Stack(placement="post", width=int(width), depth=4, tokens=4, vocab=64) for width in widths]
print(stacks[0])
