"""The slow obvious twin of networks: one draw at a time, every rule written out, gradients by autograd."""

import json

import torch
from torch import nn

from simulate import Cell
from simulate.network import transformer as network
from simulate.network.dense import DenseEngine
from simulate.network.random_streams import RandomStreams
from simulate.runs.inputs import network_inputs, source_inputs
from tests.helpers.twins.experts import mixture, summed_by_layer

PHI = {
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda u: nn.functional.gelu(u, approximate="tanh"),
    "relu_squared": lambda u: torch.relu(u) ** 2,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
    "identity": lambda u: u,
}


GATE = float(torch.sigmoid(torch.tensor(-1.0, dtype=torch.float64)))


def mixed(scheme, outputs, count):
    """The next input by a scheme's own recursion, from the embedding and all outputs so far, `count` at the end."""
    if scheme == "highway":
        stream = outputs[0]
        for output in outputs[1:]:
            stream = (1 - GATE) * stream + GATE * output
        return stream
    if scheme == "denseformer":  # blocks of two sub-layers, whose averages start as the newest block alone
        blocks = [outputs[0]]
        for start in range(1, len(outputs), 2):
            weights = [0.0] * (len(blocks) - 1) + [1.0]
            average = sum(weight * block for weight, block in zip(weights, blocks, strict=True))
            blocks.append(average + sum(outputs[start : start + 2]))
        return blocks[-1]
    if scheme == "attention_residuals":
        query = torch.zeros(outputs[0].shape[-1], dtype=torch.float64)
        logits = torch.stack([(output * query).sum(-1) for output in outputs])
        return (logits.softmax(0)[..., None] * torch.stack(outputs)).sum(0)
    if scheme == "hyper_connections":
        streams = [outputs[0]] * 4
        for output in outputs[1:]:
            streams = [stream + output for stream in streams]
        return sum(streams) if len(outputs) == count else streams[len(outputs) % 4]
    return sum(weight * output for weight, output in zip(json.loads(scheme)[len(outputs) - 1], outputs, strict=False))


def slow_quantities(stack, weights, x, labels, ids=None, source=None):
    """Energies, loss and gradients of one draw of a stack without dropout, matrices as given.

    Args:
        stack: the network.
        weights: by role the matrices of the layers.
        x: the input, sequences one after another, (rows, width).
        labels: of every row.
        ids: the words of every row, if their embeddings are tied; without positions.
        source: the input of the encoder, (sequences * source tokens, width).
    """
    n, length = stack.rows, stack.tokens
    width, linear = stack.key_width, stack.attention_scale == "linear"
    if ids is not None:
        table = weights["Wemb"][0].clone()
        table[:, ids] = stack.output_scale * stack.width**-0.5 / stack.embedding_scale * x.T
        weights = weights | {"Wemb": [table]}
    weights = {role: [w.clone().requires_grad_() for w in group] for role, group in weights.items()}

    if ids is not None:
        x = weights["Wemb"][0][:, ids].T * (stack.embedding_scale * stack.width**0.5 / stack.output_scale)

    phi = PHI.get(stack.activation, lambda u: torch.where(u > 0, u, stack.leaky_slope * u))

    def norm(rows, last=False):
        if stack.normalization == "none" and not (
            last and "added" in (stack.final_norm, stack.embedding_norm, stack.output_transform)
        ):
            return rows
        if stack.normalization == "tanh":
            return stack.norm_gain * torch.tanh(stack.tanh_scale * rows)
        centred = rows - rows.mean(-1, keepdim=True) if stack.normalization != "rms" else rows
        return stack.norm_gain * centred / (centred.square().mean(-1, keepdim=True) + stack.norm_epsilon).sqrt()

    depths = {"": stack.depth, "encoder_": stack.encoder_depth or stack.depth}
    patterns = {prefix: [[] for _ in range(depth)] for prefix, depth in depths.items()}

    def attention(rows, layer, prefix, asked=None):
        kind, asked, own_length = ("W", rows, len(rows)) if asked is None else ("X", asked, len(asked))
        own_length //= stack.sequences
        values = asked @ weights[f"{prefix}{kind}V"][layer]
        queries = (
            rows @ weights[f"{prefix}{kind}Q"][layer]
            if "WQ" in weights
            else rows.new_zeros(len(rows), width * stack.heads)
        )
        keys = queries if kind == "W" else torch.zeros_like(values)
        if "WQ" in weights and (kind == "X" or "WK" in weights):
            keys = asked @ weights[f"{prefix}{kind}K" if "WK" in weights else f"{prefix}{kind}Q"][layer]
        if stack.query_key_norm != "none":
            group = width if stack.query_key_norm == "head" else width * stack.heads
            queries, keys = (
                torch.cat([part / (part.square().mean(-1, keepdim=True) + stack.norm_epsilon).sqrt()
                           for part in one.split(group, dim=-1)], dim=-1)
                for one in (queries, keys)
            )  # fmt: skip
        if stack.rotary:
            queries, keys = turned(queries), turned(keys)
        out = rows.new_zeros(len(rows), width * stack.heads)
        for i in range(len(rows)):
            start = i // (len(rows) // stack.sequences) * own_length
            causal = stack.mask == "causal" and not prefix and kind == "W"
            stop = i + 1 if causal else start + own_length
            if causal and stack.window:
                start = max(start, i + 1 - stack.window)
            seen = list(range(start, stop))
            if stack.mask == "given" and not prefix and kind == "W":
                seen = [j for j in seen if json.loads(stack.mask_rows)[i - start][j - start]]
            for head in range(stack.heads):
                own = slice(head * width, (head + 1) * width)
                group = head // (stack.heads // (stack.kv_heads or stack.heads))
                its = slice(group * width, (group + 1) * width)
                scores = torch.stack([queries[i, own] @ keys[j, its] for j in seen])
                scores = stack.logit_factor * scores / (width if linear else width**0.5)
                if stack.logit_softcap:
                    scores = stack.logit_softcap * torch.tanh(scores / stack.logit_softcap)
                pattern = torch.softmax(scores, 0)
                out[i, own] = pattern @ values[seen, its]
                if kind == "W":
                    patterns[prefix][layer].append(pattern)
        return out @ weights[f"{prefix}{kind}O"][layer] if "WO" in weights else out

    def turned(rows):
        """Coordinates f and f + r/2 of every head as one complex number, times its phase."""
        pairs = int(width * stack.rotary) // 2
        found = []
        for i in range(len(rows)):
            numbers = list(rows[i])
            for start in range(0, rows.shape[1], width):
                for f in range(pairs):
                    a, b = start + f, start + pairs + f
                    angle = torch.tensor(i % length * stack.rotary_base ** (-f / pairs), dtype=rows.dtype)
                    number = torch.complex(rows[i, a], rows[i, b]) * torch.polar(torch.ones_like(angle), angle)
                    numbers[a], numbers[b] = number.real, number.imag
            found.append(torch.stack(numbers))
        return torch.stack(found)

    def feed_forward(rows, layer, prefix):
        if stack.experts and layer >= stack.dense_layers:
            return mixture(stack, weights, rows, layer, phi)
        if "WG" in weights:
            gate = phi(rows @ weights[prefix + "WG"][layer])
            hidden = gate * (rows @ weights[prefix + "W1"][layer])
        else:
            hidden = phi(rows @ weights[prefix + "W1"][layer])
        return hidden @ weights[prefix + "W2"][layer]

    streams, scalars = {}, torch.zeros(stack.depth, dtype=torch.float64, requires_grad=True)

    def layers(x, prefix, memory=None):
        sums, streams[prefix], depth = [], [], depths[prefix]
        if stack.embedding_norm == "added":
            x = norm(x, last=True)
        other, outputs = x, [x]
        for layer in range(depth):
            name = stack.lower_placement if layer < round(stack.lower_share * depth) else stack.placement
            alpha = stack.residual_scale
            if alpha is None:
                alpha = {"keel": 2.0 * depth, "deepnorm": (2.0 * depth) ** 0.25}.get(name, 1.0)
            divided = {"none": 1, "depth": depth**0.5, "inverse_depth": depth, "layer": (layer + 1) ** 0.5}
            tau = {"unnormed": depth**-0.5, "rezero": scalars[layer]}.get(name, 1.0)
            tau = (tau if stack.branch_scale is None else stack.branch_scale) / divided[stack.branch_scaling]
            branches = {"attention": [attention], "feed_forward": [feed_forward]}.get(
                stack.branches, [attention, feed_forward]
            )
            if memory is not None:
                branches.insert(1, lambda rows, layer, prefix: attention(rows, layer, prefix, memory))
            for together in [branches] if stack.layout == "parallel" else [[branch] for branch in branches]:
                read = norm(x) if name in ("pre", "peri", "keel", "scaled") else x
                read = read / (layer + 1) ** 0.5 if "layer" == stack.input_scaling or name == "scaled" else read
                made = tau * sum(
                    (stack.feed_forward_factor if branch is feed_forward else stack.attention_factor)
                    * (norm(one) if name in ("peri", "output") else one)
                    for branch in together
                    for one in [branch(read, layer, prefix)]
                )
                outputs.append(made)
                other = other + made
                is_mixed = stack.depth_mixing != "none"
                sums.append(mixed(stack.depth_mixing, outputs, 2 * depth + 1) if is_mixed else alpha * x + made)
                x = norm(sums[-1]) if name in ("post", "deepnorm", "keel", "residual") else sums[-1]
            end = made if is_mixed else x
            end.retain_grad()
            streams[prefix].append(end)
        if stack.placement == "residual":
            return x + norm(other), sums
        without = stack.placement in ("post", "deepnorm", "keel", "unnormed", "rezero")
        own = stack.final_norm == "own" and (without or stack.normalization == "none")
        return x if own else norm(x, last=True), sums

    memory, read = None, []
    if source is not None:
        source = source.clone().requires_grad_()
        memory, read = layers(source, "encoder_")
        memory.retain_grad()
    output, sums = layers(x, "", memory)
    if "WH" in weights:
        output = norm(phi(output @ weights["WH"][0]), last=True)
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

    def of_layers(sums, prefix, each):
        rows = len(sums[0])
        length = rows // stack.sequences
        pairs = [(i, j) for i in range(rows) for j in range(rows) if i != j and i // length == j // length]
        correlations = [torch.stack([(s[i] * s[j]).mean() for i, j in pairs]).mean() for s in sums[each - 1 :: each]]
        found = {
            "attention_energy": torch.stack([s.square().mean() for s in sums[::each]]),
            "hidden_energy": torch.stack([s.square().mean() for s in sums[each - 1 :: each]]),
            "token_correlation": torch.stack(correlations),
        }
        if stack.placement != "residual":
            found["stream_gradient_sq"] = torch.stack([x.grad.square().sum() for x in streams[prefix]])
        if "WQ" in weights:
            for name, of in (("attention_entropy", torch.special.entr), ("attention_squares", torch.square)):
                found[name] = torch.stack([torch.stack([of(a).sum() for a in one]).mean() for one in patterns[prefix]])
        return {prefix + name: value for name, value in found.items()}

    each = 1 if stack.branches != "both" or stack.layout == "parallel" else 2 if source is None else 3
    found = {"loss": loss} | of_layers(sums, "", each)
    if scalars.grad is not None:
        found["grad_sq_scalar"] = scalars.grad.square()
    if stack.branches == "feed_forward" or stack.layout == "parallel":
        del found["attention_energy"]
    if source is not None:
        found |= of_layers(read, "encoder_", 2)
        found["cross_energy"] = torch.stack([s.square().mean() for s in sums[1::3]])
        found["memory_gradient_sq"] = memory.grad.square().sum()
        found["encoder_input_gradient_sq"] = source.grad.square().sum()
    for role, group in weights.items():
        norms = summed_by_layer(stack, role, group)
        prefix, matrix = ("encoder_", role[8:]) if role.startswith("encoder_") else ("", role)
        found[f"{prefix}grad_sq_{matrix}"] = norms[0] if role in ("WH", "Wemb") else norms
    return found


def deviation(stack, text=None):
    """The largest relative deviation of a quantity of the network from the slow twin's, float64, two draws."""
    engine = DenseEngine(RandomStreams([0], 2), torch.float64, keep=True)
    x, labels, words = network_inputs(Cell(stack, "dense", dtype="float64", text=text), engine)
    source = source_inputs(stack, engine)
    record = network.run(stack, engine, x, labels, words, source)
    found = record.per_network | {name: torch.stack(layers, 1) for name, layers in record.per_layer.items()}
    ids = [None, None] if words is None else words.ids
    worst = 0.0
    for draw in range(2):
        weights = {role: [w[draw] for w in group] for role, group in engine.weights.items()}
        for name, value in slow_quantities(
            stack, weights, x[draw], labels[draw], ids[draw], None if source is None else source[draw]
        ).items():
            # Of what a layer does not have there is no number, and what is 0 is 0.
            value, seen = value.detach(), found[name][draw]
            assert torch.equal(seen.isnan(), value.isnan())
            off = torch.where(value == 0, seen, seen / value - 1).abs()
            worst = max(worst, float(off.nan_to_num().max()))
    return worst
