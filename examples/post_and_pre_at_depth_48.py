"""Post-LN against Pre-LN at depth 48
==================================

Do gradients vanish toward the input of a deep Post-LN stack, as appendix F of the paper says?
"""

# %%
# Two stacks of 48 layers that differ in the place of LayerNorm alone. Theory takes a second, and so do 16 networks.
import matplotlib.pyplot as plt

import gradbounds as gb
from figures.layer_profile import layer_profile

stacks = [gb.Stack(placement=placement, width=1024, depth=48, tokens=8, vocab=1024) for placement in ("post", "pre")]
samples = [gb.sample(stack, draws=16, seed=0) for stack in stacks]

# %%
# Pale lines are theory, marks are samples, and the dotted line is appendix F's law for :math:`W^2`.
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
layer_profile(gb.comparison(samples), axes=[ax])
plt.show()

# %%
# They do not: Post-LN's gradients are flat over all layers. Every LayerNorm divides the gradient by the length of its
# input, and the residual branch returns exactly what that takes away. In Pre-LN gradients are largest near the input.
for stack in stacks:
    norms = gb.predict(stack)["grad_sq_W2"] ** 0.5
    print(f"{stack.placement}: first layer over last layer {norms[0] / norms[-1]:.2f}, appendix F: ", end="")
    print(f"{(2 / 3) ** ((stack.depth - 1) / 2):.0e}" if stack.placement == "post" else "1")
