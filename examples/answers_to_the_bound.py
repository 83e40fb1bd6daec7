"""Answers to lecture 2: a bound, its slack, and a verdict
========================================================

How does one tell a true bound from a tight one? The answers to the seven exercises.
"""

# %%
# **1.** Bound / norm is :math:`B d \sqrt{\frac{40}{3} \ln(100d)} / \sqrt{dG/3} = B \sqrt{40 d \ln(100d)/G}`. It
# grows like :math:`\sqrt{d \ln d}`: from :math:`d = 64` to 4096 by :math:`\sqrt{64 \ln 409600 / \ln 6400} = 9.7`.
#
# **2.** :math:`\|h^\top u\|_F^2 = \sum_{ij} h_i^2 u_j^2 = |h|^2 |u|^2`. A row has :math:`d` entries, each bounded by
# :math:`|h_i| |u|`: their squares sum to :math:`d h_i^2 |u|^2` instead of :math:`h_i^2 |u|^2`, which loses
# :math:`\sqrt d`. The mean of :math:`h_i^2` is :math:`\frac12`; its bound :math:`2 \ln(100d)` loses
# :math:`2 \sqrt{\ln(100d)}`.
#
# **3.** :math:`Y \le a` means :math:`M - Y \ge M - a`, and :math:`M - Y \ge 0`: this is Markov's inequality. For
# :math:`\mathbb{E}Y = 1`, :math:`M = 1.1` and :math:`a = 0.1` it gives :math:`0.1`. But let :math:`Y = 0.05` with
# probability 0.875, and :math:`Y = 7.65` otherwise: the mean is 1, and :math:`\mathbb{P}[Y \le a] = 0.875`.
#
# **4.** One half.
import matplotlib.pyplot as plt
import numpy as np

import gradbounds as gb

widths = np.array([64, 256, 1024, 4096])
stacks = [gb.Stack(placement="post", width=int(width), depth=4, tokens=4, vocab=64) for width in widths]
norms = np.array([gb.predict(stack)["grad_sq_W2"][-1] ** 0.5 for stack in stacks])
print(np.diff(np.log(norms)) / np.diff(np.log(widths)))
ratio = (widths * np.log(100 * widths)) ** 0.5
print(ratio[-1] / ratio[0], 0.875 * 0.05 + 0.125 * 7.65)

# %%
# **5.** The proof loses :math:`\sqrt{d \ln d}`, by rows for entries, the largest unit for the mean, and a constant.
shape = widths * np.sqrt(np.log(100 * widths))
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.plot(widths, norms, color="#d55e00", label="theory")
axes.plot(widths, norms[0] * shape / shape[0], "k--", label="the bound's shape, through the first point")
labels = {"xlabel": "width $d$", "ylabel": r"$\Vert\partial\mathcal{L}/\partial W^{2,L}\Vert_F$"}
axes.set(xscale="log", yscale="log", title="The bound grows with the width faster than the gradient", **labels)
axes.legend()
plt.show()

# %%
# **6.** Up to a thousand or so, within seconds; the marks have bars of two standard errors.
narrow = stacks[:3]
samples = [gb.sample(stack, draws=16, seed=0)["grad_sq_W2"][:, -1] for stack in narrow]
means = np.array([one.mean() for one in samples])
bars = np.array([one.std(ddof=1) for one in samples]) / 4 / means**0.5  # two standard errors of the root
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.plot(widths, norms, color="#d55e00", label="theory")
axes.errorbar(widths[:3], means**0.5, bars, fmt="o", color="#d55e00", label="16 networks, 2 standard errors")
axes.set(xscale="log", yscale="log", title="Random networks lie on the theory at every width", **labels)
axes.legend()
plt.show()

# %%
# **7.** It does: exponent, interval, the bound's. The bound is kept, so it holds; it is not needed, so it is loose.
fit = gb.power_law(widths[:3], means**0.5, bars / 2)
print(np.round([fit.exponent, *fit.interval(), np.polyfit(np.log(widths), np.log(shape), 1)[0]], 2))
