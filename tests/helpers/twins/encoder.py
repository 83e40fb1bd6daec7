"""The slow obvious twin of the network: torch.nn modules with the same weights, full gradients by autograd."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from simulate.network.dense import DenseEngine
from theory import Stack


def encoder(stack: Stack, weights: dict[str, list[Tensor]], draw: int) -> nn.TransformerEncoder:
    """`torch.nn.TransformerEncoder` with one head, zero queries and keys, identity W^O and the engine's matrices."""
    d = stack.width
    layer = nn.TransformerEncoderLayer(
        d, 1, d, dropout=0.0, layer_norm_eps=0.0, batch_first=True, norm_first=stack.placement == "pre",
        bias=False, dtype=torch.float64,
    )  # fmt: skip
    final = nn.LayerNorm(d, eps=0.0, bias=False, dtype=torch.float64) if stack.placement == "pre" else None
    module = nn.TransformerEncoder(layer, stack.depth, norm=final, enable_nested_tensor=False)
    with torch.no_grad():
        for i, block in enumerate(module.layers):
            attention = block.self_attn
            attention.in_proj_weight.zero_()
            attention.in_proj_weight[2 * d :] = weights["WV"][i][draw].T
            attention.out_proj.weight.copy_(torch.eye(d))
            block.linear1.weight.copy_(weights["W1"][i][draw].T)
            block.linear2.weight.copy_(weights["W2"][i][draw].T)
    return module


def quantities(stack: Stack, engine: DenseEngine, inputs: Tensor, labels: Tensor, draw: int) -> dict[str, np.ndarray]:
    """Every recorded quantity of one draw, the long way round."""
    d, n = stack.width, stack.tokens
    module = encoder(stack, engine.weights, draw)
    seen: dict[str, list[Tensor]] = {"attention": [], "ffn": [], "hidden": [], "stream": []}
    for block in module.layers:
        if stack.placement == "post":  # the residual sums are what the norms are given
            block.norm1.register_forward_pre_hook(lambda _, args: seen["attention"].append(args[0]))
            block.norm2.register_forward_pre_hook(lambda _, args: seen["ffn"].append(args[0]))
        else:
            block.norm2.register_forward_pre_hook(lambda _, args: seen["attention"].append(args[0]))
            block.register_forward_hook(lambda _, __, output: seen["ffn"].append(output))
        block.register_forward_hook(lambda _, __, output: (output.retain_grad(), seen["stream"].append(output))[0])
        block.linear2.register_forward_pre_hook(lambda _, args: seen["hidden"].append(args[0]))
    x = inputs[draw].clone().requires_grad_()
    w_emb = engine.weights["Wemb"][0][draw].clone().requires_grad_()
    output = module(x[None])[0]
    output.retain_grad()
    losses = nn.functional.cross_entropy(output @ w_emb, labels[draw], reduction="none")
    own = [torch.autograd.grad(losses[i], output, retain_graph=True)[0][i] for i in range(n)]
    last, hidden = seen["ffn"][-1].reshape(n, d), seen["hidden"][-1].reshape(n, d)
    jacobians = [torch.autograd.functional.jacobian(lambda row: nn.functional.layer_norm(row, (d,), eps=0.0), row)
                 for row in last.detach()]  # fmt: skip
    norms = [torch.linalg.matrix_norm(jacobian, 2) for jacobian in jacobians]

    def chain(factor: Callable[[int], Tensor]) -> Tensor:
        return torch.stack([factor(i).square() for i in range(n)]).mean()

    losses.mean().backward()

    def energy(stream: Tensor) -> Tensor:
        return stream.square().sum() / (n * d)

    def correlation(stream: Tensor) -> Tensor:
        gram = stream.reshape(n, d) @ stream.reshape(n, d).T / d
        return (gram.sum() - gram.trace()) / (n * (n - 1)) if n > 1 else torch.tensor(torch.nan)

    def norm(rows: Tensor) -> Tensor:
        return (d**0.5 / rows.reshape(n, d).norm(dim=1)).mean()

    values = {
        "loss": losses.mean(),
        "hidden_energy": torch.stack([energy(s) for s in seen["ffn"]]),
        "attention_energy": torch.stack([energy(s) for s in seen["attention"]]),
        "token_correlation": torch.stack([correlation(s) for s in seen["ffn"]]),
        "grad_sq_W1": torch.stack([b.linear1.weight.grad.square().sum() for b in module.layers]),
        "grad_sq_W2": torch.stack([b.linear2.weight.grad.square().sum() for b in module.layers]),
        "grad_sq_WV": torch.stack([b.self_attn.in_proj_weight.grad[2 * d :].square().sum() for b in module.layers]),
        "grad_sq_Wemb": w_emb.grad.square().sum(),
        "loss_gradient_sq": torch.stack([g.square().sum() for g in own]).mean(),
        "stream_gradient_sq": torch.stack([s.grad.square().sum() for s in seen["stream"]]),
        "input_gradient_sq": x.grad.square().sum(),
        "ffn_hidden_energy": torch.stack([energy(h) for h in seen["hidden"]]),
        "ffn_hidden_max_sq": torch.stack([h.square().max() for h in seen["hidden"]]),
        "norm_jacobian": norm(last - last.mean(-1, keepdim=True)),
        "norm_jacobian_uncentred": norm(last),
        "loss_through_norm_sq": chain(lambda i: norms[i] * own[i].norm()),
        "chain_positions_sq": chain(lambda i: hidden[i].norm() * (jacobians[i].T @ own[i]).norm()),
        "chain_jacobian_sq": chain(lambda i: hidden[i].norm() * norms[i] * own[i].norm()),
        "head_norm": torch.linalg.svdvals(w_emb)[0],
    }
    return {name: value.detach().numpy() for name, value in values.items()}
