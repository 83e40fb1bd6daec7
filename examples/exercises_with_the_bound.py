"""Lecture 2: a bound, its slack, and a verdict
============================================

How does one tell a true bound from a tight one? Seven exercises.
"""

# %%
# **Symbols.** The width is :math:`d`. The mean squared norm of the loss's gradient at the output of the last LayerNorm
# is :math:`G`, as in lecture 1. The input of the last :math:`W^2` is :math:`h`, and :math:`u` is the gradient at its
# output. For Post-LN, the proof of Theorem 1 of Xiong et al. (2020) bounds the norm of this matrix's gradient by
# :math:`B d \sqrt{\frac{40}{3} \ln(100d)}`. Here :math:`B` bounds the gradient at the output of the last LayerNorm.
#
# Exercises
# ---------
#
# Exercises 1 to 3 need pen and paper, the others a computer.
#
# 1. For one token, lecture 1 derives the mean square :math:`dG/3` of this norm. How does bound /
#    norm grow with :math:`d`, if :math:`B` and :math:`G` stay? By what factor from :math:`d = 64` to :math:`d = 4096`?
# 2. One token's gradient is the matrix :math:`h^\top u`. What is its norm exactly? The proof bounds every entry of row
#    :math:`i` by :math:`|h_i| |u|`, and every :math:`h_i^2` by :math:`2 \ln(100d)`. What does each step lose?
# 3. Lemma 5: if :math:`Y \le M` and :math:`a < M`, then :math:`\mathbb{P}[Y \le a] \le \mathbb{E}[M - Y]/(M - a)`.
#    Prove it. The paper has :math:`Y \le M` only with probability :math:`1 - \delta`: find a :math:`Y` for which the
#    conclusion is false.
# 4. Predict the exponent of the gradient in :math:`d`, at widths from 64 to 4096.
# 5. By what does the proof's bound grow over the same widths? Draw both; the gap is what the proof loses.
# 6. Draw sampled networks into the same picture. Which widths can a laptop sample, and how large are the errors of 16
#    draws?
# 7. Fit the exponent of the samples with an interval: does it exclude the bound's exponent? Is the right word *fails*
#    or *holds, loose*?
#
# The answers are in ``answers_to_the_bound``. Exercise 4 begins with these widths:
import numpy as np

import gradbounds as gb

widths = np.array([64, 256, 1024, 4096])
stacks = [gb.Stack(placement="post", width=int(width), depth=4, tokens=4, vocab=64) for width in widths]
print(stacks[0])
