"""The slow obvious twin of training: one draw, a network written out, gradients by autograd, torch's own steps."""

import torch
from torch import nn


def trained_slowly(stack, weights, batches, schedule):
    """Loss, squared gradients, changes of features and logits before every step of one draw.

    Args:
        stack: Post-LN, Pre-LN, Peri-LN or ReZero, of one sequence, whose tokens attend to their mean; ReLU or SwiGLU.
        weights: by role the matrices of the layers.
        batches: inputs (tokens, width) and labels of every pass, one more than there are steps.
        schedule: how it is trained.
    """
    held = {role: [nn.Parameter(w.clone()) for w in group] for role, group in weights.items()}
    if stack.placement == "rezero":
        held["scalar"] = [nn.Parameter(torch.zeros((), dtype=batches[0][0].dtype)) for _ in range(stack.depth)]
    rule = schedule.optimizer
    groups = [{"params": held[role], "name": role} for role in schedule.rates]
    sgd = torch.optim.SGD(groups, lr=0.0, momentum=rule.momentum, weight_decay=rule.weight_decay)
    adam = torch.optim.AdamW(groups, lr=0.0, betas=(rule.momentum, 0.999), weight_decay=rule.weight_decay)
    momenta = {role: [torch.zeros_like(w) for w in held[role]] for role in schedule.rates}
    found, first = [], None
    for step, (x, labels) in enumerate(batches):
        features, logits = outputs(stack, held, x)
        loss = nn.functional.cross_entropy(logits, labels)
        for w in (w for group in held.values() for w in group):
            w.grad = None
        loss.backward()
        first = first or [one.detach() for one in [*features, logits]]
        changes = [
            (one - then).square().sum() / then.square().sum() for one, then in zip(features, first[:-1], strict=True)
        ]
        found.append(
            {
                "loss": loss.detach(),
                "feature_change_sq": torch.stack(changes).detach(),
                "logit_change_sq": (logits - first[-1]).square().mean().detach(),
            }
            | {f"grad_sq_{role}": torch.stack([w.grad.square().sum() for w in held[role]]) for role in held}
            | {"branch_scalar": torch.stack([w.detach().clone() for w in held.get("scalar", [x.new_zeros(())])])}
        )
        if step == schedule.steps:
            break
        if rule.name in ("sgd", "adam"):
            torch_rule = sgd if rule.name == "sgd" else adam
            for group in torch_rule.param_groups:
                group["lr"] = schedule.rates_at(step)[group["name"]]
            torch_rule.step()
            continue
        with torch.no_grad():
            for role, rate in schedule.rates_at(step).items():
                for w, v in zip(held[role], momenta[role], strict=True):
                    v.mul_(rule.momentum).add_(w.grad)
                    left, sizes, right = torch.linalg.svd(v, full_matrices=False)
                    kept = int((sizes > 1e-5 * sizes[0]).sum())
                    shape = max(1.0, w.shape[1] / w.shape[0]) ** 0.5
                    w.mul_(1 - rate * rule.weight_decay).sub_(rate * shape * left[:, :kept] @ right[:kept])
    return {name: torch.stack([one[name] for one in found]) for name in found[0]}


def outputs(stack, weights, x):
    """The last residual sum of every layer, and the logits."""

    def norm(rows):
        return nn.functional.layer_norm(rows, rows.shape[-1:], eps=0.0)

    def inner(rows):
        return rows if stack.placement in ("post", "rezero") else norm(rows)

    def added(rows, made):
        made = of["scalar"] * made if "scalar" in of else made
        total = rows + (norm(made) if stack.placement == "peri" else made)
        return (norm(total) if stack.placement == "post" else total), total

    features = []
    for layer in range(stack.depth):
        of = {role: group[layer] for role, group in weights.items() if role != "Wemb"}
        values = inner(x).mean(0, keepdim=True) @ of["WV"]
        values = values @ of["WO"] if "WO" in of else values
        x, _ = added(x, values.expand_as(x))
        rows = inner(x)
        hidden = nn.functional.silu(rows @ of["WG"]) * (rows @ of["W1"]) if "WG" in of else torch.relu(rows @ of["W1"])
        x, total = added(x, hidden @ of["W2"])
        features.append(total)
    last = x if stack.placement in ("post", "rezero") else norm(x)
    return features, last @ weights["Wemb"][0]
