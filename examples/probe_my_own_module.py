"""Probe my own module
===================

Does my Transformer behave like Post-LN or like Pre-LN, and is one of its layers broken?
"""

# %%
# ``gb.probe`` asks for a factory: from a width and a depth it makes a module, and a function that gives a batch of
# inputs and a loss for a seed.
import matplotlib.pyplot as plt
import torch
from torch import nn

import gradbounds as gb
from figures.looks import CURVES


class Block(nn.Module):
    """A feed-forward block with a norm before its branch."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        """(tokens, width) to (tokens, width)."""
        return x + self.down(torch.relu(self.up(self.norm(x))))


def mine(width, depth):
    """A stack of blocks in which somebody drew the weights of the fifth with variance 1."""
    blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
    nn.init.normal_(blocks[4].up.weight)

    def batch(seed):
        return torch.randn(64, width), lambda y: (y * torch.randn_like(y)).mean()

    return nn.Sequential(blocks, nn.LayerNorm(width)), batch


report = gb.probe(mine, widths=[64], depths=[6, 8, 12], seeds=4)
print("\n".join(report.lines()))

# %%
# The alarm names the layer and the weight. ``report.to_frame()`` has every number, one row for each width, depth, seed,
# layer and quantity, so the picture is a few lines.
table = report.to_frame()
energy = table[(table["quantity"] == "hidden_energy") & (table["depth"] == 12)].groupby("layer")["value"].mean()
figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.semilogy(energy.index, energy, **CURVES[0])
ax.set(xlabel="layer", ylabel="mean squared entry of the stream", title="The fifth block is not like its neighbours")
plt.show()
