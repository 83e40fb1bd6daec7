"""My own sweep and its exponents
==============================

With which power of the width does a gradient of my variant grow, and does that agree with theory?
"""

# %%
# A sweep writes whole files into a folder, and goes on where it stopped. The same call with more draws adds them, and
# ``gradbounds runs runs/exponents`` shows meanwhile which draws have landed.
import matplotlib.pyplot as plt
import numpy as np

import gradbounds as gb
from figures.looks import PLACEMENTS

stacks = [
    gb.Stack(placement="pre", width=width, depth=4, tokens=8, vocab=512, activation="gelu", ffn_ratio=4)
    for width in (64, 128, 256, 512, 1024)
]
samples = gb.sweep(stacks, draws=64, seed=0, out="runs/exponents").samples()

# %%
# Each width has a root mean square over draws with its error; theory is fitted at the same widths with the same errors,
# since over a finite range neither need be the limit.
widths = np.array([one.stack.width for one in samples])
energy = [gb.estimate(one["grad_sq_W2"][:, -1]) for one in samples]
norm = np.array([float(one.mean) ** 0.5 for one in energy])
error = np.array([float(one.sem) for one in energy]) / (2 * norm)
theory = np.array([gb.predict(one.stack)["grad_sq_W2"][-1] ** 0.5 for one in samples])
measured, predicted = gb.power_law(widths, norm, error), gb.power_law(widths, theory, error)
print(f"exponent in d: samples {measured.exponent:.3f} +- {measured.sem:.3f}, theory {predicted.exponent:.3f}")

# %%
color = PLACEMENTS["pre"]["color"]  # as in every figure of Pre-LN
figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.errorbar(widths, norm, yerr=2 * error, fmt="s", color=color, capsize=2, label="samples, two standard errors")
ax.plot(widths, theory, color=color, label="large-width theory")
ax.set(xscale="log", yscale="log", xlabel="width $d$", ylabel=r"$\|\partial\mathcal{L}/\partial W^{2,L}\|_F$")
ax.set_title(f"With GELU too, the last gradient grows like $d^{{{measured.exponent:.2f}}}$")
ax.legend()
plt.show()
