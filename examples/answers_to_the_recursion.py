"""Answers to lecture 1: gradients from two small matrices
========================================================

Why does LayerNorm's place decide how gradients depend on the layer? The answers to the four exercises.
"""

# %%
# **1.** A quarter of the energy is added, :math:`1 + \frac38 l`.
import matplotlib.pyplot as plt
import numpy as np

import gradbounds as gb

halved = gb.predict(gb.Stack(placement="pre", depth=24, tokens=1, branch_scale=1 / 2))["hidden_energy"]
layers = np.arange(1, len(halved) + 1)
print(halved[:3], 1 + 3 / 8 * layers[:3])

# %%
# **2.** The branch is left out, which returns half of the gradient: :math:`\frac23 (1 + \frac12) = 1`.
norms = {
    placement: gb.predict(gb.Stack(placement=placement, depth=24, tokens=1))["grad_sq_W2"] ** 0.5
    for placement in ("post", "pre")
}

# %%
# **3.** Post-LN is flat, Pre-LN falls with the layer, and appendix F with the distance from the output.
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.plot(layers, norms["post"], color="#d55e00", label="Post-LN: flat")
axes.plot(layers, norms["pre"], color="#0072b2", label=r"Pre-LN: $(2 + 3l)^{-1/2}$")
axes.plot(layers, norms["post"][-1] * (2 / 3) ** ((layers[-1] - layers) / 2), "k:", label="appendix F, Post-LN")
axes.set_title("Post-LN is flat, and appendix F is not")
axes.set(xlabel="layer $l$", ylabel=r"$\Vert\partial\mathcal{L}/\partial W^2\Vert_F$", yscale="log")
axes.legend()
plt.show()

# %%
# **4.** So many of them:
sampled = gb.sample(gb.Stack(placement="post", width=256, depth=6, tokens=1, vocab=64), draws=16, seed=1)
values = sampled["grad_sq_W2"][:, 0]
theory = gb.predict(gb.Stack(placement="post", width=256, depth=6, tokens=1, vocab=64))["grad_sq_W2"][0]
print((values.mean() - theory) / (values.std(ddof=1) / len(values) ** 0.5))
