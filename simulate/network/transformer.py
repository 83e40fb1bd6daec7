"""The forward and backward pass of the paper's Transformer, written once for all engines of weight matrices.

Tokens are rows, as in x W. LayerNorm has scale 1 and bias 0. Every draw in the batch is an independent network. Source:
Xiong et al. (2020), arXiv:2002.04745v2, Table 1 and section 3.3.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from simulate.network.activations import activation_of
from simulate.network.engines import ENCODER, EncoderEngine, Engine, MapEngine
from simulate.network.gram import GramEngine, normalized, rebased
from simulate.network.record import Record, Stream, norm, norm_of_sums, record_energies, record_last_norm
from simulate.network.tied_words import Words
from theory.stack import Stack
from theory.stack.depth_mixing import mixing_matrix
from theory.stack.plan import Kind, Step, plan
from theory.stack.weights import gain, law, rows_met, transform_gain, weight_shapes

Source = Float[Tensor, "draws source width"]
Rows = Float[Tensor, "draws tokens _"]  # of d numbers, or of as many coordinates as the engine has
Branch = Callable[[Stream], Stream]


def layer_norm(x: Float[Tensor, "*tokens width"], epsilon: float = 0.0) -> Float[Tensor, "*tokens width"]:
    """Return LayerNorm of every token, with an epsilon that is 0 in the paper.

    It is (x − mean(x)) / √(var(x) + ε).
    """
    return F.layer_norm(x, x.shape[-1:], eps=epsilon)


def normalize(stack: Stack, x: Stream) -> Stream:
    """Apply the network's norm with its gain: LayerNorm, RMSNorm, or tanh instead of a norm."""
    if x.shape[-1] < stack.width:
        after = normalized(x, stack)
    elif stack.normalization == "rms":
        after = F.rms_norm(x, x.shape[-1:], eps=stack.norm_epsilon)
    else:
        is_tanh = stack.normalization == "tanh"
        after = torch.tanh(stack.tanh_scale * x) if is_tanh else layer_norm(x, stack.norm_epsilon)
    return _scaled(after, stack.norm_gain)


def residual(x: Stream, branch: Stream, in_place: bool) -> Stream:
    """Return the sum of the residual stream and a branch; with `in_place`, the branch's memory is overwritten."""
    return branch.add_(x) if in_place else x + branch


def sublayer(step: Step, engine: Engine, x: Stream, branches: Sequence[Branch]) -> tuple[Rows, Rows, Rows]:
    """Apply one sub-layer: add the scaled outputs of one or several branches to the scaled residual stream.

    It is z = α x + Σ τ D(N(f(κ N(x)))), with dropout D and parallel branches f.

    Each norm N is applied only if the placement has it.

    Returns:
        The stream after the sub-layer, the residual sum z, and the sum of branches that was added to α x, for a second
        stream.
    """
    stack, placement = step.stack, step.stack.composition
    into = _scaled(normalize(stack, x) if placement.input_norm else x, step.input_scale)
    parts = []
    for branch, tau in zip(branches, step.branches, strict=True):
        output = branch(into)
        output = normalize(stack, output) if placement.output_norm else output
        output = _dropped(engine, output, stack.dropout)
        parts.append(engine.scaled_branch(output, step.layer, tau, learned=step.learned))
    added = parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
    # What nobody else asks for would leave a hole among what is kept, a sixth of a deep stack's memory; tanh keeps it
    # for its slope, and rows that are views of one cannot take a sum.
    ours = isinstance(engine, MapEngine) and not placement.second_stream and 0 not in added.stride()
    if isinstance(engine, GramEngine):
        total = rebased(residual(_scaled(x, step.residual), added, in_place=False), engine)
    else:
        total = residual(_scaled(x, step.residual), added, in_place=ours and stack.normalization != "tanh")
    return (normalize(stack, total) if placement.stream_norm else total), total, added


def mixed(outputs: Sequence[Stream], weights: Sequence[float]) -> Stream:
    """Return the weighted sum of the outputs of earlier layers; outputs with weight 0 are left out."""
    terms = [(output, weight) for output, weight in zip(outputs, weights, strict=False) if weight]
    total = _scaled(*terms[0])
    for output, weight in terms[1:]:
        total = torch.add(total, output, alpha=weight)
    return total


def _scaled(x: Stream, factor: float) -> Stream:
    # A pass over memory less where there is nothing to do, which is nearly everywhere.
    return x if factor == 1.0 else x * factor


def _dropped(engine: Engine, x: Tensor, share: float) -> Tensor:
    # Apply inverted dropout with the engine's random numbers, independent for every entry.
    if share == 0.0:
        return x
    # A draw may have several entries of the first axis, its sequences.
    kept = engine.streams.uniform(x.numel() // engine.streams.draws, dtype=engine.dtype).view(x.shape) >= share
    return x * kept / (1.0 - share)


def apply_weight(
    stack: Stack, engine: Engine, role: str, rows: Float[Tensor, "draws rows d_in"]
) -> Float[Tensor, "draws rows d_out"]:
    """Return the product of rows with a new random weight matrix of a role such as "W1".

    The matrix is initialized as in the stack.
    """
    d_in, d_out = weight_shapes(stack)[role]
    return engine.apply(role, rows, d_out, d_in**-0.5 * gain(stack, role) ** 0.5, law=law(stack))


def attention(stack: Stack, engine: Engine, record: Record, x: Stream, memory: Source | None = None) -> Stream:
    """Apply softmax attention of tokens to themselves, or to the encoder's output if it is given.

    With W^Q = W^K = 0, a token receives the mean of the tokens to which it attends, times W^V W^O.
    """
    draws, _, width = x.shape
    kind, key_tokens, length = ("W", x, stack.tokens) if memory is None else ("X", memory, stack.source_tokens)
    roles = {role: kind + role for role in "QKVO"}
    fixed = stack.attention_dropout == 0.0 and roles["Q"] not in weight_shapes(stack)
    if fixed and rows_met(stack)[roles["V"]] == stack.sequences:
        # The mean over tokens commutes with W^V, so one row of each sequence meets the matrix instead of n.
        # Divided when they are few: autograd would divide the gradient of every token by itself.
        means = key_tokens.reshape(draws, stack.sequences, length, width).sum(2) / length
        values = apply_weight(stack, engine, roles["V"], means)
        if stack.key_heads != stack.heads:
            values = of_every_head(stack, of_heads(stack, values)).reshape(draws, stack.sequences, -1)
        values = _projected(stack, engine, roles, values)
        return values[:, :, None].expand(draws, stack.sequences, stack.tokens, width).reshape(x.shape)
    weights = _attention_weights(stack, engine, record, roles, x, memory)
    weights = _dropped(engine, weights, stack.attention_dropout)
    values = of_every_head(stack, of_heads(stack, apply_weight(stack, engine, roles["V"], key_tokens)))
    return _projected(
        stack, engine, roles, (weights.to(values.dtype) @ values).transpose(1, 2).reshape(draws, x.shape[1], -1)
    )


def _attention_weights(
    stack: Stack, engine: Engine, record: Record, roles: dict[str, str], x: Stream, memory: Source | None
) -> Float[Tensor, "batch heads queries keys"]:
    if not stack.query_key_scale:
        length = stack.tokens if memory is None else stack.source_tokens
        logits = x.new_zeros(len(x) * stack.sequences, stack.heads, stack.tokens, length)
    else:
        logits = attention_logits(stack, *_queries_and_keys(stack, engine, roles, x, memory))
    weights = (_masked(stack, logits) if memory is None else logits).softmax(-1)
    if stack.query_key_scale and memory is None:
        for name, value in (("attention_entropy", torch.special.entr), ("attention_squares", torch.square)):
            record.layer(name, value(weights.detach()).sum(-1).view(len(x), -1).mean(1))
    return weights


def _queries_and_keys(
    stack: Stack, engine: Engine, roles: dict[str, str], x: Stream, memory: Source | None
) -> tuple[Float[Tensor, "draws tokens inner"], Float[Tensor, "draws others shared"]]:
    if stack.query_key == "untied":
        key_tokens = x if memory is None else memory
        return apply_weight(stack, engine, roles["Q"], x), apply_weight(stack, engine, roles["K"], key_tokens)
    if memory is None:
        queries = apply_weight(stack, engine, roles["Q"], x)
        return queries, queries
    # One matrix for both is one map of all rows.
    both = apply_weight(stack, engine, roles["Q"], torch.cat([x, memory], dim=1))
    return both[:, : x.shape[1]], both[:, x.shape[1] :]


def _projected(
    stack: Stack, engine: Engine, roles: dict[str, str], values: Float[Tensor, "draws tokens inner"]
) -> Stream:
    return values if stack.output_projection == "identity" else apply_weight(stack, engine, roles["O"], values)


def _masked(stack: Stack, logits: Float[Tensor, "... tokens tokens"]) -> Float[Tensor, "... tokens tokens"]:
    if stack.mask == "none":
        return logits
    if stack.mask == "given":
        return logits.masked_fill(
            torch.from_numpy(stack.given_mask == 0).to(logits.device, non_blocking=True), -torch.inf
        )
    seen = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    if stack.window:
        seen = seen.triu(1 - stack.window)
    return logits.masked_fill(~seen, -torch.inf)


def _units(stack: Stack, engine: Engine, x: Stream, kind: str = "W") -> Float[Tensor, "draws tokens units"]:
    activation = activation_of(stack.activation, stack.leaky_slope)
    if stack.ffn == "gated":
        return activation(apply_weight(stack, engine, kind + "G", x)) * apply_weight(stack, engine, kind + "1", x)
    return activation(apply_weight(stack, engine, kind + "1", x))


def feed_forward(stack: Stack, engine: Engine, record: Record, x: Stream) -> Stream:
    """Apply a feed-forward branch (MLP) to the tokens; with experts, return their weighted sum.

    It is φ(x W1) W2 or, gated, (φ(x WG) ∘ x W1) W2.
    """
    if stack.experts:
        return _experts(stack, engine, record, x)
    if isinstance(engine, GramEngine):
        return engine.feed_forward(stack, record, x)
    hidden = _units(stack, engine, x)
    extremes = (size(hidden.detach(), (1, 2)) for size in (torch.amax, torch.amin))
    record.hidden(stack.ffn_width, torch.linalg.vector_norm(hidden.detach(), dim=-1), *extremes)
    return apply_weight(stack, engine, "W2", hidden)


def _experts(stack: Stack, engine: Engine, record: Record, x: Stream) -> Stream:
    # All experts apply to all tokens, weighted by the router (0 if not chosen), and the shared expert.
    weights = expert_weights(stack, record, apply_weight(stack, engine, "WR", x))
    output, energies, largest = torch.zeros_like(x), [], []
    for weight in weights.unbind(-1):
        hidden = _units(stack, engine, x)
        output = output + weight[..., None] * apply_weight(stack, engine, "W2", hidden)
        energies.append(hidden.detach().square().mean(-1))
        largest.append(hidden.detach().abs().amax(-1))
    chosen = weights.detach() > 0
    record.layer("ffn_hidden_energy", (torch.stack(energies, -1) * chosen).sum((1, 2)) / chosen.sum((1, 2)))
    record.layer("ffn_hidden_max_sq", (torch.stack(largest, -1) * chosen).amax((1, 2)).square())
    if not stack.shared_ratio:
        return output
    gate = apply_weight(stack, engine, "SR", x).sigmoid() if stack.shared_gate == "sigmoid" else 1.0
    return output + gate * apply_weight(stack, engine, "S2", _units(stack, engine, x, "S"))


def layers(stack: Stack, engine: Engine, record: Record, x: Stream, memory: Source | None = None) -> tuple[Rows, Rows]:
    """Run the forward pass through all layers of a network, and record mean squares and correlations of tokens.

    Returns:
        The layers' output (the input of the output matrix or its transform, or an encoder's output), and the last
        residual sum.
    """
    composition = stack.composition
    x = normalize(stack, x) if stack.embedding_norm == "added" else x
    matrix = mixing_matrix(stack)
    outputs = [x]
    x = x if matrix is None else mixed(outputs, matrix[0].tolist())
    total = second = x
    norms: list[Tensor] = []
    sums: list[Tensor] = []
    across = partial(attention, memory=memory)
    rules: dict[Kind, Callable[..., Stream]] = {"attention": attention, "cross": across, "units": feed_forward}
    for step in plan(stack):
        branches: list[Branch] = [partial(rules[kind], step.stack, engine, record) for kind in step.kinds]
        x, total, added = sublayer(step, engine, x, branches)
        second = second + added if composition.second_stream else second
        if matrix is not None:
            outputs.append(total)
            x = total = mixed(outputs, matrix[len(outputs) - 1].tolist())
        norms.append(norm(total))
        if step.ends_layer:
            record.keep(total)
            if not composition.second_stream:
                record.watch_gradient(x if matrix is None else outputs[-1])
            sums.append(norm_of_sums(total, stack.sequences))
    record.settle()
    record_energies(stack, record, norms, sums)
    if composition.second_stream:
        return x + (normalize(stack, second) if composition.final_norm else second), total
    return (normalize(stack, x) if composition.final_norm else x), total


def transformed(stack: Stack, engine: Engine, output: Stream) -> Stream:
    """Return the tokens that the output matrix multiplies: the layers' output, or its output transform.

    It is x, or N(φ(x W^H)).
    """
    if stack.output_transform == "none":
        return output
    before = engine.apply("WH", output, stack.width, (transform_gain(stack) / stack.width) ** 0.5, law=law(stack))
    return normalize(stack, activation_of(stack.activation, stack.leaky_slope)(before))


def run(
    stack: Stack,
    engine: Engine,
    inputs: Stream,
    labels: Int[Tensor, "draws tokens"],
    words: Words | None = None,
    source: Source | None = None,
    record: Record | None = None,
) -> Record:
    """Run one forward and one backward pass of a batch of random networks, and record every quantity.

    Args:
        stack: the network.
        engine: the source of the weight matrices; afterwards it also holds the gradient norms.
        inputs: x_0 of every draw, (draws, tokens, width).
        labels: class ids of every position.
        words: the inputs as rows of the output matrix, if embeddings are tied.
        source: x_0 of the encoder, if the stack has one.
        record: an empty record to fill; None makes a new one.
    """
    record = Record() if record is None else record
    of_encoder = Record(with_streams=True)
    record.with_streams = True
    inputs = inputs.detach().requires_grad_()
    leaves, memory = [inputs], None
    if stack.encoder is not None and source is not None:
        source = source.detach().requires_grad_()
        memory, _ = layers(stack.encoder, EncoderEngine(engine), of_encoder, source)
        leaves += [source, memory]
    output, total = layers(stack, engine, record, inputs, memory)
    counted = stack.counted
    given = transformed(stack, engine, output[:, counted])
    logits = engine.apply("Wemb", given, stack.vocab, stack.output_scale * stack.width**-0.5)
    logits = logits if words is None else words.put_in(logits, given)
    record.keep(logits)
    rows = labels[0, counted].numel()
    count = max(1, round(stack.loss_share * rows))
    weights = [] if count == rows else [weights_of_some(engine, rows, count)]
    loss = sequence_loss(logits, labels[:, counted], stack.label_smoothing, *weights)
    leaves = [output, total, *([] if words is None else [words.rows]), *leaves]
    output_gradient, last_gradient, *gradients = torch.autograd.grad(loss.sum(), leaves)
    of_rows = [] if words is None else [gradients.pop(0)]

    record.network("loss", loss.detach())
    names = ["input_gradient_sq", "encoder_input_gradient_sq", "memory_gradient_sq"][: len(gradients)]
    for name, gradient in zip(names, gradients, strict=True):
        record.network(name, gradient.square().sum((1, 2)))
    record_last_norm(stack, record, total.detach(), output_gradient, last_gradient, positions=count)
    record.gradients(stack, engine.gradients)
    for scalar in engine.scalars:
        record.layer("grad_sq_scalar", scalar.gradient.square())
    if stack.output_transform == "added":
        record.network("grad_sq_WH", engine.gradients.of("WH")[:, 0])
    of_words = 0.0 if words is None else words.gradient_sq(stack, gradients[0], *of_rows)
    record.network("grad_sq_Wemb", engine.gradients.of("Wemb")[:, 0] + of_words)
    if stack.encoder is not None:
        of_encoder.gradients(stack.encoder, engine.gradients, ENCODER)
        record.per_layer |= {f"encoder_{name}": values for name, values in of_encoder.per_layer.items()}
    return record


def expert_weights(
    stack: Stack, record: Record, logits: Float[Tensor, "draws tokens experts"]
) -> Float[Tensor, "draws tokens experts"]:
    """Return the weight of every expert for every token, 0 if it is not chosen, and record the experts' loads."""
    scores = logits.softmax(-1) if stack.router_scores == "softmax" else logits.sigmoid()
    chosen = torch.zeros_like(scores).scatter(-1, logits.topk(stack.experts_per_token, dim=-1).indices, 1.0)
    weights = scores * chosen
    if stack.router_norm == "sum":
        weights = weights / weights.sum(-1, keepdim=True)
    loads = chosen.sum(1)
    record.layer("expert_load_max", loads.amax(-1) / logits.shape[1])
    record.layer("expert_load_deviation", loads.std(-1, correction=0) / loads.mean(-1))
    balance = (loads * logits.detach().softmax(-1).mean(1)).sum(-1)
    record.layer("expert_balance", stack.experts / logits.shape[1] * balance)
    return stack.routed_scale * weights


def sequence_loss(
    logits: Float[Tensor, "draws tokens vocab"],
    labels: Int[Tensor, "draws tokens"],
    smoothing: float = 0.0,
    weights: Float[Tensor, "draws tokens"] | None = None,
) -> Tensor:
    """Return the cross-entropy loss of each random network in nats, averaged over positions.

    The shape is (draws,), and labels may be smoothed.
    """
    losses = F.cross_entropy(logits.mT, labels, reduction="none", label_smoothing=smoothing)
    return losses.mean(1) if weights is None else (losses * weights).sum(1)


def weights_of_some(engine: Engine, rows: int, count: int) -> Float[Tensor, "draws rows"]:
    """Sample which positions count in the loss, and return the weights of all positions.

    A weight is 1/count for `count` random rows of each random network, and 0 for the others.
    """
    return (engine.streams.uniform(rows, dtype=engine.dtype).argsort(1).argsort(1) < count).to(engine.dtype) / count


def attention_logits(
    stack: Stack, queries: Float[Tensor, "draws rows width"], keys: Float[Tensor, "draws others shared"]
) -> Float[Tensor, "batch heads tokens asked"]:
    """Return the attention logits before the mask, for every sequence of every random network.

    Args:
        stack: the network.
        queries: queries of all heads, one head after another.
        keys: keys of the attended tokens, in the same form.
    """
    if stack.query_key_norm == "all":
        queries, keys = _normed(stack, queries), _normed(stack, keys)
    q, k = (of_heads(stack, rows) for rows in (queries, keys))
    if stack.query_key_norm == "head":
        q, k = _normed(stack, q), _normed(stack, k)
    if stack.rotary:
        q, k = _rotated(stack, q), _rotated(stack, k)
    scale = stack.logit_factor * q.shape[-1] ** (-0.5 if stack.attention_scale == "sqrt" else -1.0)
    logits = scale * (q @ of_every_head(stack, k).mT)
    return stack.logit_softcap * (logits / stack.logit_softcap).tanh() if stack.logit_softcap else logits


def of_heads(
    stack: Stack, rows: Float[Tensor, "draws rows columns"]
) -> Float[Tensor, "batch heads tokens coordinates"]:
    """Split the rows of all sequences into sequences and attention heads.

    There are as many heads as there are columns for.
    """
    split = rows.unflatten(-1, (-1, stack.key_width)).unflatten(1, (stack.sequences, -1))
    return split.flatten(0, 1).transpose(1, 2)


def of_every_head(
    stack: Stack, shared: Float[Tensor, "batch groups tokens coordinates"]
) -> Float[Tensor, "batch heads tokens coordinates"]:
    """Repeat keys or values that groups of neighbouring heads share, so that every head has its own."""
    return shared if stack.key_heads == stack.heads else shared.repeat_interleave(stack.heads // stack.key_heads, 1)


def _normed(stack: Stack, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
    return F.rms_norm(x, x.shape[-1:], eps=stack.norm_epsilon)


def _rotated(
    stack: Stack, rows: Float[Tensor, "batch heads tokens width"]
) -> Float[Tensor, "batch heads tokens width"]:
    """Rotate pairs (f, f + r/2) of a head's first r coordinates by their token's position times base^(-2 f/r)."""
    half = stack.rotary_width // 2
    steps = torch.arange(half, device=rows.device, dtype=torch.float64) / half
    angles = torch.arange(stack.tokens, device=rows.device, dtype=torch.float64)[:, None] * stack.rotary_base**-steps
    cos, sin = angles.cos().to(rows.dtype), angles.sin().to(rows.dtype)
    first, second, rest = rows.split([half, half, rows.shape[-1] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
