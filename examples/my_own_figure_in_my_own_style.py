"""My own figure in my own style
=============================

How do I put a figure of gradbounds into a figure of my paper, with my fonts, my colours and my panels?
"""

# %%
# Give the axes: with ``axes=`` a figure function draws into them under the style that is set, and leaves size, fonts
# and layout alone. It returns the figure that the axes belong to.
import matplotlib.pyplot as plt

import gradbounds as gb
from figures.layer_profile import layer_profile

stacks = [gb.Stack(placement=placement, width=512, depth=12, tokens=8, vocab=512) for placement in ("post", "pre")]
table = gb.comparison([gb.sample(stack, draws=16, seed=0) for stack in stacks])

with plt.style.context({"font.family": "serif", "axes.spines.right": False, "axes.spines.top": False}):
    figure, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
    layer_profile(table, axes=[ax])
    ax.set_title("(a) Gradients over the layers")
    plt.show()

# %%
# What the axes hold is matplotlib's: lines, labels and limits can be changed afterwards. The numbers are in a frame,
# one row for each network, quantity and layer, so any other library draws them as well.
columns = ["placement", "quantity", "layer", "mean", "sem", "predicted"]
print(table.loc[table["quantity"] == "grad_sq_W2", columns].tail(3).to_string(index=False))
