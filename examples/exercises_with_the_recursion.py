"""Lecture 1: gradients from two small matrices
============================================

Why does LayerNorm's place decide how gradients depend on the layer? An example and four exercises.
"""

# %%
# **The recursion for one token.** A stream of energy :math:`q` passes a branch, which adds the energy :math:`b`.
# Attention adds 1 and ReLU one half, of a normalized token. Post-LN resets the stream to 1; Pre-LN lets it grow.
import numpy as np

import gradbounds as gb

energy = gb.predict(gb.Stack(placement="pre", depth=24, tokens=1))["hidden_energy"]
layers = np.arange(1, len(energy) + 1)
print(np.allclose(energy, 1 + 3 / 2 * layers))

# %%
# Exercises
# ---------
#
# 1. What is the energy of Pre-LN after :math:`l` layers if every branch is halved (``branch_scale=1/2``)? Write it
#    down, then ask ``gb.predict``.
# 2. Backward, LayerNorm divides a squared gradient by the energy of its input. Post-LN's feed-forward sum has
#    :math:`\frac32`. Appendix F of Xiong et al. (2020) multiplies :math:`\frac23` over the layers. What is left out?
# 3. For Pre-LN the same steps give :math:`dG/(2 + 3l)`, without the depth. Draw both placements, and appendix F.
# 4. Is theory right at a width that you can draw? Sixteen networks: how many standard errors is it off?
#
# The answers are in ``answers_to_the_recursion``.
