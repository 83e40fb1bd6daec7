"""Answers to lecture 1: gradients from two small matrices
========================================================

Why does LayerNorm's place decide how gradients depend on the layer? The answers to the six exercises.
"""

# %%
# **1.** A branch times one half has a quarter of its energy, so a layer adds
# :math:`\frac14 (1 + \frac12) = \frac38`. After :math:`l` layers the energy is :math:`1 + \frac38 l`.
#
# **2.** Attention's sum has the energy :math:`1 + 1`, so its LayerNorm divides by 2; the sum multiplies by
# :math:`1 + 1`. The MLP's LayerNorm divides by :math:`1 + \frac12`; its sum multiplies by :math:`1 + \frac12`. The
# factor is 1. Appendix F leaves out the gradient that comes back through the branch.
#
# **3.** With :math:`h` the input of :math:`W^2` and :math:`u` the gradient at its output, the gradient is
# :math:`h^\top u`, with the squared norm :math:`|h|^2|u|^2` and :math:`|h|^2 = \frac d2`. Post-LN:
# :math:`\mathbb{E}|u|^2 = G / \frac32` by exercise 2, hence :math:`dG/3`. Pre-LN: with :math:`q` before a sub-layer,
# the squared gradient grows by :math:`1 + b/q = (q + b)/q`, so all factors below the final LayerNorm cancel but one:
# :math:`\mathbb{E}|u|^2 = \frac{G}{q_L} \cdot \frac{q_L}{q_l}` with :math:`q_l = 1 + \frac32 l`, hence
# :math:`dG/(2 + 3l)`. Neither depends on the depth.
#
# **4.** Every branch now adds 1, so :math:`q_l = 1 + 2l`. The MLP's output norm divides by :math:`\frac12` and ReLU
# multiplies by it, so a sub-layer's factor is :math:`1 + 1/q = (q + 1)/q`. Again they cancel to :math:`G/q_l`. The
# output norm doubles it at :math:`W^2`: :math:`\frac d2 \cdot 2G/q_l = dG/(1 + 2l)`.
#
# **5.** Attention: the diagonal becomes :math:`1 + m` and the rest :math:`c + m`, so :math:`1 - c` becomes
# :math:`(1 - c)/(1 + m)`. Nearly equal tokens have :math:`m \approx 1`, which halves :math:`1 - c`. The MLP then adds
# :math:`\frac12` to the diagonal, and to first order :math:`\frac12 - \frac12 (1 - c) = \frac c2` to the rest:
# :math:`1 - (c + \frac c2)/\frac32 = 1 - c`. So every late layer halves :math:`1 - c` (rank collapse).
import matplotlib.pyplot as plt
import numpy as np

import gradbounds as gb

halved, post, pre, peri = (
    gb.predict(gb.Stack(placement=placement, depth=24, tokens=1, branch_scale=scale))
    for placement, scale in (("pre", 1 / 2), ("post", 1), ("pre", 1), ("peri", 1))
)
layers = np.arange(1, len(pre["grad_sq_W2"]) + 1)
same = [one["grad_sq_W2"] * by for one, by in ((post, 3), (pre, 2 + 3 * layers), (peri, 1 + 2 * layers))]
print(np.allclose(halved["hidden_energy"], 1 + 3 / 8 * layers), np.allclose(same, same[0][0]))

# %%
# **6.** Post-LN is flat, Pre-LN falls with the layer, and appendix F with the distance from the output.
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.plot(layers, post["grad_sq_W2"] ** 0.5, color="#d55e00", label="Post-LN: flat")
axes.plot(layers, pre["grad_sq_W2"] ** 0.5, color="#0072b2", label=r"Pre-LN: $(2 + 3l)^{-1/2}$")
axes.plot(
    layers, post["grad_sq_W2"][-1] ** 0.5 * (2 / 3) ** ((layers[-1] - layers) / 2), "k:", label="appendix F, Post-LN"
)
axes.set_title("Post-LN is flat, and appendix F is not")
axes.set(xlabel="layer $l$", ylabel=r"$\Vert\partial\mathcal{L}/\partial W^2\Vert_F$", yscale="log")
axes.legend()
plt.show()
small = gb.Stack(placement="post", width=256, depth=6, tokens=1, vocab=64)
values = gb.sample(small, draws=16, seed=1)["grad_sq_W2"][:, 0]
print((values.mean() - gb.predict(small)["grad_sq_W2"][0]) / (values.std(ddof=1) / len(values) ** 0.5))
