"""Find the bug in an initialization
=================================

All layers of my model share one mistake. Which one, when there is no healthy layer to compare with?
"""

# %%
# Two factories that should make the same network. The second forgot to scale down the matrix that ends each branch.
import matplotlib.pyplot as plt
import torch
from torch import nn

import gradbounds as gb
from figures.looks import looks


class Block(nn.Module):
    """A feed-forward block with a norm before its branch."""

    def __init__(self, width, std):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        nn.init.normal_(self.down.weight, std=std)

    def forward(self, x):
        """(tokens, width) to (tokens, width)."""
        return x + self.down(torch.relu(self.up(self.norm(x))))


def stack_of(std):
    """A factory of stacks whose branches end with entries of a standard deviation that depends on width and depth."""

    def factory(width, depth):
        blocks = nn.Sequential(*(Block(width, std(width, depth)) for _ in range(depth)))
        model = nn.Sequential(blocks, nn.LayerNorm(width))
        return model, lambda seed: (torch.randn(64, width), lambda y: (y * torch.randn_like(y)).mean())

    return factory


intended = stack_of(lambda width, depth: (4 * width) ** -0.5 / (2 * depth) ** 0.5)
written = stack_of(lambda width, depth: (4 * width) ** -0.5)

# %%
# ``against=`` holds every size of the model against the reference. What differs before anything runs comes first, since
# it is most likely the cause.
sizes = {"widths": [32, 64], "depths": [4, 8], "seeds": 8}
report = gb.probe(written, against=intended, **sizes)
print("\n".join(str(alarm) for alarm in report.alarms[:3]))

# %%
# The picture: the energy of the stream over the layers of both.
figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
both = (("as intended", gb.probe(intended, **sizes)), ("as written", report))
for (label, probed), look in zip(both, looks(), strict=False):
    rows = probed.to_frame().query("quantity == 'hidden_energy' and depth == 8 and width == 64")
    ax.plot(rows.groupby("layer")["value"].mean(), **look, label=label)
ax.set(xlabel="layer", ylabel="mean squared entry", title="Unscaled branches double the stream in 8 layers")
ax.legend()
plt.show()
