"""Answers to lecture 2: a bound, its slack, and a verdict
========================================================

How does one tell a true bound from a tight one? The answers to the four exercises.
"""

# %%
# **1.** One half.
import matplotlib.pyplot as plt
import numpy as np

import gradbounds as gb

widths = np.array([64, 256, 1024, 4096])
stacks = [gb.Stack(placement="post", width=int(width), depth=4, tokens=4, vocab=64) for width in widths]
norms = np.array([gb.predict(stack)["grad_sq_W2"][-1] ** 0.5 for stack in stacks])
print(np.diff(np.log(norms)) / np.diff(np.log(widths)))

# %%
# **2.** The proof loses :math:`\sqrt{d \ln d}`, in two steps: a row for an entry, and the largest unit for their mean.
shape = widths * np.sqrt(np.log(100 * widths))
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.plot(widths, norms, color="#d55e00", label="theory")
axes.plot(widths, norms[0] * shape / shape[0], "k--", label="the bound's shape, through the first point")
axes.set_title("The bound grows with the width faster than the gradient")
axes.set(xscale="log", yscale="log", xlabel="width $d$", ylabel=r"$\Vert\partial\mathcal{L}/\partial W^{2,L}\Vert_F$")
axes.legend()
plt.show()

# %%
# **3.** Up to a thousand or so, within seconds; the marks have bars of two standard errors.
narrow = stacks[:3]
samples = [gb.sample(stack, draws=16, seed=0)["grad_sq_W2"][:, -1] for stack in narrow]
means = np.array([one.mean() for one in samples])
bars = np.array([one.std(ddof=1) for one in samples]) / 4 / means**0.5  # two standard errors of the root
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.plot(widths, norms, color="#d55e00", label="theory")
axes.errorbar(widths[:3], means**0.5, bars, fmt="o", color="#d55e00", label="16 networks, 2 standard errors")
axes.set_title("Random networks lie on the theory at every width")
axes.set(xscale="log", yscale="log", xlabel="width $d$", ylabel=r"$\Vert\partial\mathcal{L}/\partial W^{2,L}\Vert_F$")
axes.legend()
plt.show()

# %%
# **4.** It does: exponent, interval, the bound's. The bound is kept, so it holds; it is not needed, so it is loose.
fit = gb.power_law(widths[:3], means**0.5, bars / 2)
print(np.round([fit.exponent, *fit.interval(), np.polyfit(np.log(widths), np.log(shape), 1)[0]], 2))
