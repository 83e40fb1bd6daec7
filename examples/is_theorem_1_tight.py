"""Is Theorem 1 tight?
===================

By how much does Theorem 1's bound exceed the gradient that it bounds, and does the gap close as networks get wider?
"""

# %%
# The bound has constants, so that it is a number for every network; theory has the gradient itself.
import matplotlib.pyplot as plt
import numpy as np

import gradbounds as gb
from figures.looks import PLACEMENTS

widths = 2 ** np.arange(6, 17)
norms, bounds = {}, {}
for placement in ("post", "pre"):
    stacks = [gb.Stack(placement=placement, width=int(d), depth=6, tokens=8, vocab=int(d)) for d in widths]
    norms[placement] = np.array([gb.predict(stack)["grad_sq_W2"][-1] ** 0.5 for stack in stacks])
    bounds[placement] = np.array([float(gb.bound_value(stack).value) for stack in stacks])

# %%
# The proof bounds each entry of a matrix of rank one by a whole row of it, which costs the square root of d, and each
# hidden unit by the largest of all, which costs the square root of ln 100d. The dotted line has that slope.
figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for placement in ("post", "pre"):
    ax.loglog(widths, bounds[placement] / norms[placement], label=f"{placement.title()}-LN", **PLACEMENTS[placement])
ax.loglog(widths, 30 * np.sqrt(widths * np.log(100 * widths)), ":", color="grey", label=r"$\propto\sqrt{d \ln 100d}$")
ax.set(xlabel="width $d$", ylabel="bound over gradient", title="The bound is loose, and more so as $d$ grows, $L = 6$")
ax.legend()
plt.show()

# %%
# At the largest width, and with the exponents of both: the bound's is 1 and more, the gradient's is one half.
for placement in ("post", "pre"):
    norm, bound = norms[placement], bounds[placement]
    exponents = [gb.power_law(widths, y, 0.01 * y).exponent for y in (norm, bound)]
    print(f"{placement}: bound over gradient {bound[-1] / norm[-1]:.0f} at d = {widths[-1]}, ", end="")
    print(f"exponents in d {exponents[0]:.2f} (gradient) and {exponents[1]:.2f} (bound)")
