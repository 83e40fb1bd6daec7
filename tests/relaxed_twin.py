"""The slow obvious twin of relaxed networks: one draw at a time, every rule written out, gradients by autograd."""

import torch
from torch import nn

from simulate import Cell, network
from simulate.dense import DenseEngine
from simulate.sample import network_inputs
from simulate.streams import Streams

PHI = {
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
    "leaky_relu": nn.functional.leaky_relu,
    "identity": lambda u: u,
}


def slow_quantities(stack, weights, x, labels, ids=None):
    """Energies, loss and gradients of one draw of a Post-LN or Pre-LN stack without dropout, matrices as given.

    Args:
        stack: the network.
        weights: by role the matrices of the layers.
        x: the input, sequences one after another, (rows, width).
        labels: of every row.
        ids: the words of every row, if their embeddings are tied; without positions.
    """
    n, length = stack.rows, stack.tokens
    width, linear = stack.width // stack.heads, stack.attention_scale == "linear"
    if ids is not None:
        table = weights["Wemb"][0].clone()
        table[:, ids] = stack.output_scale * stack.width**-0.5 * x.T
        weights = weights | {"Wemb": [table]}
    weights = {role: [w.clone().requires_grad_() for w in group] for role, group in weights.items()}

    if ids is not None:
        x = weights["Wemb"][0][:, ids].T * (stack.width**0.5 / stack.output_scale)

    def norm(rows):
        if stack.normalization == "none":
            return rows
        centred = rows - rows.mean(-1, keepdim=True) if stack.normalization == "layer" else rows
        return centred / (centred.square().mean(-1, keepdim=True) + stack.norm_epsilon).sqrt()

    patterns = [[] for _ in range(stack.depth)]

    def attention(rows, layer):
        values = rows @ weights["WV"][layer]
        queries = rows @ weights["WQ"][layer] if "WQ" in weights else torch.zeros_like(rows)
        keys = rows @ weights["WK"][layer] if "WK" in weights else queries
        out = torch.zeros_like(rows)
        for i in range(n):
            start = i // length * length
            stop = i + 1 if stack.mask == "causal" else start + length
            for head in range(stack.heads):
                own = slice(head * width, (head + 1) * width)
                scores = torch.stack([queries[i, own] @ keys[j, own] for j in range(start, stop)])
                patterns[layer].append(torch.softmax(scores / (width if linear else width**0.5), 0))
                out[i, own] = patterns[layer][-1] @ values[start:stop, own]
        return out @ weights["WO"][layer] if "WO" in weights else out

    def feed_forward(rows, layer):
        if "WG" in weights:
            hidden = PHI[stack.activation](rows @ weights["WG"][layer]) * (rows @ weights["W1"][layer])
        else:
            hidden = PHI[stack.activation](rows @ weights["W1"][layer])
        return hidden @ weights["W2"][layer]

    sums = []
    for layer in range(stack.depth):
        for branch in (attention, feed_forward):
            if stack.placement == "post":
                sums.append(x + branch(x, layer))
                x = norm(sums[-1])
            else:
                x = x + branch(norm(x), layer)
                sums.append(x)
    output = x if stack.placement == "post" else norm(x)
    logits = output @ weights["Wemb"][0]
    losses = []
    for i in range(n):
        if stack.loss_on == "last" and (i + 1) % length:
            continue
        target = torch.full((stack.vocab,), stack.label_smoothing / stack.vocab, dtype=x.dtype)
        target[labels[i]] += 1 - stack.label_smoothing
        losses.append(-(target * logits[i].log_softmax(0)).sum())
    loss = sum(losses) / len(losses)
    loss.backward()
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j and i // length == j // length]
    found = {
        "loss": loss,
        "attention_energy": torch.stack([s.square().mean() for s in sums[::2]]),
        "hidden_energy": torch.stack([s.square().mean() for s in sums[1::2]]),
        "token_correlation": torch.stack(
            [torch.stack([(s[i] * s[j]).mean() for i, j in pairs]).mean() for s in sums[1::2]]
        ),
    }
    if "WQ" in weights:
        for name, of in (("attention_entropy", torch.special.entr), ("attention_squares", torch.square)):
            found[name] = torch.stack([torch.stack([of(a).sum() for a in layer]).mean() for layer in patterns])
    for role, group in weights.items():
        norms = torch.stack([w.grad.square().sum() for w in group])
        found[f"grad_sq_{role}"] = norms[0] if role == "Wemb" else norms
    return found


def deviation(stack, text=None):
    """The largest relative deviation of a quantity of the network from the slow twin's, float64, two draws."""
    engine = DenseEngine(Streams([0], 2), torch.float64, keep=True)
    x, labels, words = network_inputs(Cell(stack, "dense", dtype="float64", text=text), engine)
    record = network.run(stack, engine, x, labels, words)
    found = record.per_network | {name: torch.stack(layers, 1) for name, layers in record.per_layer.items()}
    ids = [None, None] if words is None else words.ids
    worst = 0.0
    for draw in range(2):
        weights = {role: [w[draw] for w in group] for role, group in engine.weights.items()}
        for name, value in slow_quantities(stack, weights, x[draw], labels[draw], ids[draw]).items():
            worst = max(worst, float((found[name][draw] / value.detach() - 1).abs().max()))
    return worst
