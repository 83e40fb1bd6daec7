"""Published models before their first step
=========================================

Which layers of GPT-2, Llama 3 and BERT have the largest gradients at initialization, and by how much?
"""

# %%
# A model's configuration file says how its weights are drawn and where its norms stand, which is all that large-width
# theory asks for. Here we give the fields by hand; a path to a ``config.json`` does as well. Embeddings of inputs and
# outputs are taken as two matrices.
import matplotlib.pyplot as plt
import numpy as np

import gradbounds as gb
from figures.looks import looks

configs = {
    "GPT-2": {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257},
    "Llama 3.2 1B": {
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "rope_theta": 500000.0,
    },
    "BERT base": {
        "model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "vocab_size": 30522,
    },
}  # fmt: skip

# %%
# A stack and notes come of each: what changes nothing at initialization, and what is left out, such as dropout.
figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for (name, config), look in zip(configs.items(), looks(), strict=False):
    stack, notes = gb.stack_from_config(config, tokens=8, embeddings="untied")
    print(name, *[f"  {note}" for note in notes if note.what == "left out"], sep="\n")
    norms = np.sqrt(gb.predict(stack, patterns=8)["grad_sq_WV"])
    depth = np.arange(stack.depth) / (stack.depth - 1)
    ax.semilogy(depth, norms / norms[-1], **look, label=f"{name}, {stack.placement}")

ax.set_xlabel("layer, from the first (0) to the last (1)")
ax.set_ylabel(r"$\|\partial L/\partial W^V\|_F$ over that of the last layer")
ax.set_title("Pre-LN models begin with steep gradients, BERT does not")
ax.legend()
plt.show()
