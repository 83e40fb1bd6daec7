"""Today's attention as a `torch.nn.Module`: torch's own norms and attention, with matrices that it draws or is given.

It shares nothing with the network but the Stack: pairs of coordinates are neighbours, which rotate as complex numbers,
and heads share keys in `scaled_dot_product_attention`.
"""

import torch
from torch import nn
from torch.nn import functional as F

ROLES = {"WQ": "q", "WK": "k", "WV": "v", "WO": "o", "W1": "up", "W2": "down"}


class Layer(nn.Module):
    """Attention and ReLU units; norms where the placement (post, pre, peri) has them."""

    def __init__(self, stack):
        super().__init__()
        self.stack, self.d_k = stack, stack.width // stack.heads
        d, shared = stack.width, self.d_k * (stack.kv_heads or stack.heads)
        sizes = {"q": (d, d), "k": (d, shared), "v": (d, shared), "o": (d, d), "up": (d, d), "down": (d, d)}
        self.maps = nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})

    def norm(self, x, *, only=True):
        return nn.RMSNorm(x.shape[-1], eps=self.stack.norm_epsilon, elementwise_affine=False)(x) if only else x

    def turned(self, x):
        """Of shape (heads, tokens, d_k)."""
        if not self.stack.rotary:
            return x
        places, pair = (torch.arange(count, dtype=torch.float64) for count in (x.shape[1], self.d_k // 2))
        angles = places[:, None] / self.stack.rotary_base ** (2 * pair / self.d_k)
        pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2))) * torch.exp(1j * angles)
        return torch.view_as_real(pairs).flatten(-2).to(x.dtype)

    def attention(self, x):
        s, n = self.stack, len(x)
        q, k, v = (self.maps[name](x) for name in "qkv")
        if s.query_key_norm == "all":
            q, k = self.norm(q), self.norm(k)
        q, k, v = (one.unflatten(-1, (-1, self.d_k)).transpose(0, 1) for one in (q, k, v))
        if s.query_key_norm == "head":
            q, k = self.norm(q), self.norm(k)
        q, k = self.turned(q), self.turned(k)
        ago = torch.arange(n)[:, None] - torch.arange(n)
        seen = (ago >= 0) & (ago < (s.window or n))
        if s.logit_softcap:
            k, v = (one.repeat_interleave(len(q) // len(one), 0) for one in (k, v))
            scores = s.logit_softcap * torch.tanh(q @ k.mT / self.d_k**0.5 / s.logit_softcap)
            out = torch.where(seen, scores, -torch.inf).softmax(-1) @ v
        else:
            out = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=seen, enable_gqa=True)[0]
        return self.maps["o"](out.transpose(0, 1).flatten(1))

    def forward(self, x):
        sums = []
        for branch in (self.attention, lambda one: self.maps["down"](F.relu(self.maps["up"](one)))):
            placement = self.stack.placement
            made = branch(self.norm(x, only=placement != "post"))
            sums.append(x + self.norm(made, only=placement == "peri"))
            x = self.norm(sums[-1], only=placement == "post")
        return x, sums


class Model(nn.Module):
    """Layers, the last norm and the output matrix."""

    def __init__(self, stack):
        super().__init__()
        self.stack = stack
        self.layers = nn.ModuleList(Layer(stack) for _ in range(stack.depth))
        self.head = nn.Linear(stack.width, stack.vocab, bias=False)

    def draw(self, generator):
        """Fan-in normal matrices, those of queries and keys times the stack's scale."""
        for name, matrix in self.named_parameters():
            scale = self.stack.query_key_scale if name.split(".")[-2] in "qk" else 1.0
            nn.init.normal_(matrix, std=scale * matrix.shape[1] ** -0.5, generator=generator)

    def quantities(self, x, labels):
        """Of one draw, by their names in `theory.QUANTITIES`."""
        self.zero_grad(set_to_none=True)
        x = x.clone().requires_grad_()
        rows, energies = x, []
        for layer in self.layers:
            rows, sums = layer(rows)
            energies.append([float(one.detach().square().mean()) for one in sums])
        rows = rows if self.stack.placement == "post" else self.layers[0].norm(rows)
        loss = F.cross_entropy(self.head(rows), labels)
        loss.backward()
        attention, hidden = zip(*energies, strict=True)
        found = {
            "loss": float(loss.detach()),
            "input_gradient_sq": _square(x),
            "grad_sq_Wemb": _square(self.head.weight),
        }
        found |= {"attention_energy": list(attention), "hidden_energy": list(hidden)}
        for role, name in ROLES.items():
            found[f"grad_sq_{role}"] = [_square(layer.maps[name].weight) for layer in self.layers]
        return found


def _square(leaf):
    return float(leaf.grad.square().sum())
