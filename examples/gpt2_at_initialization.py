"""My GPT-2 at initialization
==========================

How large is the gradient of every matrix of GPT-2 (124M) before the first step, and which layers learn most?
"""

# %%
# GPT-2 draws every matrix with standard deviation 0.02, and divides that by the square root of the number of residual
# branches, :math:`2L`, where a branch ends. Embeddings of words and of positions both have 0.02 too, so that the stream
# starts with the energy :math:`2\cdot 0.02^2` a coordinate. Pre-LN does not care about the size of its stream, only
# about how large the branches are beside it: we measure the stream in units of its first energy, and scale the last
# matrix of each branch.
import matplotlib.pyplot as plt

import gradbounds as gb
from figures.layer_profile import layer_profile

WIDTH, DEPTH, STD = 768, 12, 0.02
START = 2 * STD**2


def gpt2_gain(role, d_in, d_out):
    """d_in times the variance of an entry, as `gb.Initialization` asks for it."""
    ends_branch = role in ("WO", "W2")
    return d_in * STD**2 / (2 * DEPTH * START if ends_branch else 1)


gb.register_initialization("gpt2", gb.Initialization(gain=gpt2_gain, source="Radford et al. (2019)"))

# %%
# Logits of attention have the standard deviation :math:`768\cdot 0.02^2 = 0.3`, so attention is close to a mean over
# the past, and we take it as one: queries and keys are zero. Inputs are independent of the output matrix, where GPT-2
# ties the two. Eight networks stand beside large-width theory.
gpt2 = gb.Stack(
    placement="pre", width=WIDTH, depth=DEPTH, tokens=8, vocab=50257, activation="gelu", ffn_ratio=4, mask="causal",
    output_projection="random", initialization="gpt2", output_scale=STD * WIDTH**0.5,
)  # fmt: skip
samples = gb.sample(gpt2, draws=8, seed=0)

figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
layer_profile(gb.comparison([samples]), axes=[ax])
ax.set_title("GPT-2: the first layers have the largest gradients")
plt.show()

# %%
# The stream grows with every layer, and a gradient is divided by what has grown. In GPT-2's own units the last matrix
# of a branch has a gradient that is larger by :math:`1/\sqrt{2\cdot 0.02^2}`, about 35, than drawn here;
# layers compare alike.
norms = gb.predict(gpt2)["grad_sq_W2"] ** 0.5
print(f"first layer over last layer, W2: {norms[0] / norms[-1]:.2f}")
