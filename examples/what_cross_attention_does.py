"""What cross-attention does
=========================

Why do gradients grow toward the output in the decoder of the paper's Fig. 3(a), when they are flat in its theorem?
"""

# %%
# The theorem is about a stack of layers alone. A decoder's layers also attend to an encoder's output, and
# ``source_tokens`` puts that encoder beside the stack.
import matplotlib.pyplot as plt

import gradbounds as gb
from figures.looks import looks

alone = gb.Stack(placement="post", width=512, depth=12, tokens=12, vocab=512)
decoder = gb.Stack(placement="post", width=512, depth=12, tokens=12, vocab=512, source_tokens=12)

figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
layers = range(1, alone.depth + 1)
curves = (
    (alone, "grad_sq_W2", "a stack alone"),
    (decoder, "grad_sq_W2", "a decoder"),
    (decoder, "encoder_grad_sq_W2", "its encoder"),
)
for (stack, name, label), look in zip(curves, looks(), strict=False):
    samples = gb.sample(stack, draws=16, seed=0)
    measured = gb.estimate(samples[name])
    theory = look | {"marker": ""}
    ax.plot(layers, gb.predict(stack)[name] ** 0.5, **theory, label=label)
    norm = measured.mean**0.5
    ax.errorbar(layers, norm, yerr=measured.sem / norm, capsize=2, **look | {"linestyle": ""})
ax.set(yscale="log", xlabel="layer $l$", ylabel=r"$\|\partial\mathcal{L}/\partial W^{2,l}\|_F$")
ax.set_title("Post-LN: a decoder's gradients fall towards its input")
ax.legend()
plt.show()

# %%
# A LayerNorm divides the gradient by the length of its input. The branches of a stack return that; cross-attention
# returns its share to the encoder, so the decoder's gradient shrinks by the square root of two a layer on its way down.
# Nothing explodes and nothing is lost: the encoder's last layer has the gradient of the decoder's last.
norms = gb.predict(decoder)["grad_sq_W2"] ** 0.5
print(f"growth a layer in the decoder: {norms[-1] / norms[-2]:.3f}")
