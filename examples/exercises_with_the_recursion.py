"""Lecture 1: gradients from two small matrices
============================================

Why does LayerNorm's place decide how gradients depend on the layer? An example and six exercises.
"""

# %%
# **Symbols.** The width is :math:`d`. The energy of a vector :math:`x` is its mean square,
# :math:`q = |x|^2/d`. A branch (attention or MLP) adds the energy :math:`b` to the residual stream, so the sum has
# :math:`q + b`: a random branch is uncorrelated with the stream. :math:`G` is the mean squared norm of the loss's
# gradient at the output of the last LayerNorm. All weights are :math:`N(0, 1/d)`, and there is one token.
#
# **Rules.** *Forward*, a matrix keeps the energy, ReLU halves it, and LayerNorm sets it to 1. So :math:`b = 1` for
# attention and :math:`b = \frac12` for the MLP, because both read a normalized vector. *Backward*, a matrix keeps the
# squared gradient, ReLU halves it, and LayerNorm divides it by the energy of its input. A residual sum adds the
# squared gradients of the stream and of the branch.
#
# **Example.** Pre-LN adds :math:`\frac32` per layer. Post-LN has :math:`\frac32` before a layer's last LayerNorm, and 1
# after it.
import numpy as np

import gradbounds as gb

energy = gb.predict(gb.Stack(placement="pre", depth=24, tokens=1))["hidden_energy"]
layers = np.arange(1, len(energy) + 1)
print(np.allclose(energy, 1 + 3 / 2 * layers))

# %%
# Exercises
# ---------
#
# Exercises 1 to 5 need pen and paper, exercise 6 a computer.
#
# 1. What is Pre-LN's energy after :math:`l` layers if every branch is multiplied by one half?
# 2. By what factor does one layer of Post-LN change the squared gradient on its way down? Appendix F of Xiong et al.
#    (2020) finds :math:`\frac23`. What does it leave out?
# 3. Derive :math:`\mathbb{E}\|\partial\mathcal{L}/\partial W^{2,l}\|_F^2` for Post-LN and Pre-LN, as a function of
#    :math:`l`, :math:`d` and :math:`G`. For which placement does it depend on the depth?
# 4. Peri-LN also normalizes the output of every branch. Derive the same expectation.
# 5. Now the tokens have the cosine :math:`c`. To all of their inner products divided by :math:`d`, uniform attention
#    adds the same number :math:`m`. The MLP adds :math:`\frac{1}{2\pi}[\sqrt{1 - c^2} + c(\pi - \arccos c)]`. What does
#    a layer of Post-LN make of :math:`1 - c` when tokens are nearly equal?
# 6. Draw theory for both placements, and appendix F. Sample sixteen networks: how many standard errors is theory off?
#
# The answers are in ``answers_to_the_recursion``.
