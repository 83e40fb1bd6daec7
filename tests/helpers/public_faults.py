"""Faults of the kinds that public problems had, planted in families that are not theirs, and what is a right answer."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from checks.models.report import ProbeReport
from simulate.modules.layers import layer_lists
from tests.helpers.model_families import BATCH, HEADS, TOKENS, VOCAB, Block
from tests.helpers.single_modules import CAUSAL, HEALTHY, Layer, Single, next_word, norm_of

SEES = ("earlier", "all", "later")


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, over: int = -1, sees: str = "earlier",
    mixed: bool = False,
) -> Tensor:  # fmt: skip
    """Of (samples, heads, positions, d_k) to (samples, positions, heads, d_k).

    Args:
        q: queries.
        k: keys.
        v: values.
        scale: of q·k; 1/sqrt(d_k) if left out.
        over: the axis of softmax, -1 of keys and -2 of queries.
        sees: which positions a query sees beside its own, one of `SEES`.
        mixed: whether heads and positions are not transposed back, but taken for one another.
    """
    logits = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    ones = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device)
    hidden = {"earlier": ones.triu(1), "all": ~ones, "later": ones.tril(-1)}[sees]
    y = logits.masked_fill(hidden, -1e9).softmax(over) @ v
    samples, heads, positions, size = y.shape
    return y.reshape(samples, positions, heads, size) if mixed else y.transpose(1, 2)


def rewrite(module: nn.Module, layers: list[nn.Module], chosen: list[nn.Module], **fault: Any) -> None:
    """Let some of a module's layers attend with a fault, as arguments of `attend` say; the others as they did."""
    if isinstance(layers[0], Layer):
        for layer in chosen:
            _in_decoder(layer, fault)
    elif isinstance(layers[0], Block):
        for layer in chosen:
            _in_block(layer, fault)
    else:
        _in_transformers(module, layers, chosen, fault)


def _in_decoder(layer: nn.Module, fault: dict[str, Any]) -> None:
    attention = layer.attention

    def forward(x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (attention.q, attention.k, attention.v))
        return attention.o(attend(q, k, v, **fault).flatten(2))

    attention.forward = forward


def _in_block(layer: nn.Module, fault: dict[str, Any]) -> None:
    sees = "earlier" if layer.causal else "all"

    def forward(x: Tensor) -> Tensor:
        parts = layer.qkv(layer.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        x = x + layer.proj(attend(q, k, v, **{"sees": sees} | fault).flatten(2))
        return x + layer.down(functional.gelu(layer.up(layer.norm2(x))))

    layer.forward = forward


def _in_transformers(
    module: nn.Module, layers: list[nn.Module], chosen: list[nn.Module], fault: dict[str, Any]
) -> None:
    """By an interface of their own, which `transformers` has for this; functions that it does not know get no mask."""
    from transformers import AttentionInterface

    AttentionInterface.register("written out", _interface)
    module.config._attn_implementation = "written out"
    sees = "earlier" if "CausalLM" in type(module).__name__ or "LMHead" in type(module).__name__ else "all"
    for layer in layers:
        for part in layer.modules():
            part.attends = {"sees": sees} | (fault if layer in chosen else {})


def _interface(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    return attend(q, k, v, **module.attends), None


CLASSES = 10


def random_labels(single: Single) -> Single:
    """The same module and batch, under cross-entropy with labels at random for every position."""
    module, inputs, _ = single
    labels = torch.randint(VOCAB, (BATCH * TOKENS,))

    def loss(output: Any) -> Tensor:
        logits = getattr(output, "logits", output)
        return functional.cross_entropy(logits.flatten(0, -2), labels.to(logits.device))

    return module, inputs, loss


class OfTorch(nn.Module):
    """Words, an encoder of torch.nn whose layers are drawn each by itself, and an output matrix.

    Args:
        width: of the stream.
        depth: how many layers.
        first: whether norms stand first.
        batch_first: of the layers; the batch is (samples, positions) whatever it is.
        sees: "earlier", "all", or "later": the mask.
        pooled: whether the mean over positions is classified.
        alike: whether layers are copies of one, as the encoder makes them.
    """

    def __init__(
        self, width: int, depth: int, *, first: bool, batch_first: bool = True, sees: str = "earlier",
        pooled: bool = False, alike: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()

        def layer() -> nn.Module:
            return nn.TransformerEncoderLayer(
                width, HEADS, 4 * width, dropout=0.0, batch_first=batch_first, norm_first=first
            )

        self.words = nn.Embedding(VOCAB, width)
        norm = nn.LayerNorm(width) if first else None
        self.encoder = nn.TransformerEncoder(layer(), depth, norm, enable_nested_tensor=False)
        if not alike:
            self.encoder.layers = nn.ModuleList(layer() for _ in range(depth))
        self.head = nn.Linear(width, CLASSES if pooled else VOCAB, bias=False)
        self.sees, self.pooled = sees, pooled

    def forward(self, words: Tensor) -> Tensor:
        x, ones = self.words(words), torch.ones(words.shape[1], words.shape[1], device=words.device).bool()
        mask = {"earlier": ones.triu(1), "all": None, "later": ones.tril(-1)}[self.sees]
        x = self.encoder(x, mask)
        return self.head(x.mean(1) if self.pooled else x)


class Mixing(nn.Module):
    """A residual layer around attention or a recurrence of torch.nn, and a feed-forward block."""

    def __init__(self, width: int, *, recurrent: bool, batch_first: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixer: nn.Module = (
            nn.GRU(width, width, batch_first=batch_first) if recurrent
            else nn.MultiheadAttention(width, HEADS, batch_first=batch_first)
        )  # fmt: skip
        self.up, self.down, self.recurrent = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), recurrent

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        y = self.mixer(y)[0] if self.recurrent else self.mixer(y, y, y, need_weights=False)[0]
        x = x + y
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class Mixed(nn.Module):
    """Words, such layers or one recurrence of torch.nn with layers of its own, and an output matrix."""

    def __init__(self, width: int, body: nn.Module, *, pooled: bool) -> None:
        super().__init__()
        self.words, self.body, self.norm = nn.Embedding(VOCAB, width), body, nn.LayerNorm(width)
        self.head, self.pooled = nn.Linear(width, CLASSES if pooled else VOCAB, bias=False), pooled

    def forward(self, words: Tensor) -> Tensor:
        x = self.body(self.words(words))
        x = self.norm(x[0] if isinstance(x, tuple) else x)
        return self.head(x.mean(1) if self.pooled else x)


def _layers(width: int, depth: int, *, recurrent: bool, batch_first: bool, pooled: bool) -> nn.Module:
    body = nn.Sequential(*(Mixing(width, recurrent=recurrent, batch_first=batch_first) for _ in range(depth)))
    return Mixed(width, body, pooled=pooled)


def _words(samples: int) -> Tensor:
    return torch.randint(VOCAB, (samples, TOKENS))


def _language(make: Callable[[int, int, bool], nn.Module], samples: int = BATCH) -> Callable[..., Single]:
    def single(width: int, depth: int, *, batch_first: bool) -> Single:
        words = _words(samples)
        return make(width, depth, batch_first), words, next_word(words)

    return single


def _classifier(make: Callable[[int, int, bool], nn.Module]) -> Callable[..., Single]:
    def single(width: int, depth: int, *, batch_first: bool) -> Single:
        labels = torch.randint(CLASSES, (BATCH,))
        module = make(width, depth, batch_first)
        return module, _words(BATCH), lambda y: functional.cross_entropy(y, labels.to(y.device))

    return single


def _masked(make: Callable[[int, int, bool], nn.Module]) -> Callable[..., Single]:
    """Three words of every sample are hidden behind one word, and guessed."""

    def single(width: int, depth: int, *, batch_first: bool) -> Single:
        words = _words(BATCH)
        hidden = torch.rand(words.shape).argsort(-1) < 3
        labels = words.masked_fill(~hidden, -100)
        return (
            make(width, depth, batch_first),
            words.masked_fill(hidden, 0),
            lambda y: functional.cross_entropy(y.flatten(0, 1), labels.flatten().to(y.device)),
        )

    return single


def _encoder(*, first: bool, sees: str, pooled: bool) -> Callable[[int, int, bool], nn.Module]:
    return lambda width, depth, batch_first: OfTorch(
        width, depth, first=first, sees=sees, pooled=pooled, batch_first=batch_first
    )


def _of_layers(*, recurrent: bool, pooled: bool) -> Callable[[int, int, bool], nn.Module]:
    return lambda width, depth, batch_first: _layers(
        width, depth, recurrent=recurrent, batch_first=batch_first, pooled=pooled
    )


def _one_recurrence(width: int, depth: int, batch_first: bool) -> nn.Module:
    return Mixed(width, nn.GRU(width, width, depth, batch_first=batch_first), pooled=False)


# By name: of a width, a depth and batch_first; the loss tells which axis of the batch is that of samples.
AXIS_TOLD: dict[str, Callable[..., Single]] = {
    # As many samples as positions: or its mask has no shape that is taken.
    "encoder, Pre-LN, next word": _language(_encoder(first=True, sees="earlier", pooled=False), TOKENS),
    "encoder, Post-LN, next word": _language(_encoder(first=False, sees="earlier", pooled=False), TOKENS),
    "encoder, Pre-LN, classes": _classifier(_encoder(first=True, sees="all", pooled=True)),
    "encoder, Post-LN, classes": _classifier(_encoder(first=False, sees="all", pooled=True)),
    "MultiheadAttention, classes": _classifier(_of_layers(recurrent=False, pooled=True)),
    "GRU in layers, next word": _language(_of_layers(recurrent=True, pooled=False)),
    "GRU in layers, classes": _classifier(_of_layers(recurrent=True, pooled=True)),
    "one GRU, next word": _language(_one_recurrence),
}
# Likewise, and it does not: every label might belong to either.
AXIS_NOT_TOLD: dict[str, Callable[..., Single]] = {
    "encoder, Pre-LN, masked words": _masked(_encoder(first=True, sees="all", pooled=False)),
    "encoder, Post-LN, masked words": _masked(_encoder(first=False, sees="all", pooled=False)),
    "MultiheadAttention, masked words": _masked(_of_layers(recurrent=False, pooled=False)),
    "GRU in layers, masked words": _masked(_of_layers(recurrent=True, pooled=False)),
    "one GRU, masked words": _masked(_one_recurrence),
}


def of_torch(width: int, depth: int, **kinds: Any) -> Single:
    words = _words(BATCH)
    return OfTorch(width, depth, **kinds), words, next_word(words)


class Routed(nn.Module):
    """Four linear maps in place of one, and a gate that sends every token to `top` of them.

    Args:
        plain: the map whose sizes and deviation they have.
        top: how many.
        divided: whether weights are divided by their sum; of one that makes 1 of it, whatever the gate says.
    """

    def __init__(self, plain: nn.Module, *, top: int, divided: bool) -> None:
        super().__init__()
        weight = plain.weight if isinstance(plain, nn.Linear) else plain.weight.mT  # transformers' Conv1D
        outputs, inputs = weight.shape
        self.experts = nn.ModuleList(nn.Linear(inputs, outputs, bias=False) for _ in range(4))
        for expert in self.experts:
            nn.init.normal_(expert.weight, std=float(weight.detach().std()))
        self.gate, self.top, self.divided = nn.Linear(inputs, 4, bias=False), top, divided

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(self.top)
        if self.divided:
            weights = weights / weights.sum(-1, keepdim=True)
        every = torch.stack([expert(x) for expert in self.experts], -2)
        taken = every.gather(-2, chosen[..., None].expand(*chosen.shape, every.shape[-1]))
        return (weights[..., None] * taken).sum(-2)


# Whose attention can be written out.
ATTENDING = ("decoder", "nanoGPT-like", "ViT-like", "Llama", "GPT-2", "BERT")
# Whose layers add to the stream, with no norm behind.
PRE = ("decoder", "nanoGPT-like", "without attention", "ViT-like", "torch.nn, Pre-LN", "Llama", "GPT-2")
# And whether norms stand first.
OF_TORCH = {"torch.nn, Pre-LN, words": True, "torch.nn, Post-LN, words": False}
WITH_BIASES = ("nanoGPT-like", "ViT-like", "torch.nn, Pre-LN", "torch.nn, Post-LN", "GPT-2", "BERT")
# Maps that write into the stream, and the second of them in a layer.
_ENDS = ("o", "proj", "down", "linear2", "out_proj", "o_proj", "down_proj", "c_proj")
_SECOND = ("down", "mlp.down_proj", "mlp.c_proj")
_HEADS = ("head", "lm_head", "cls.predictions.decoder", "words")

# Of a family, a number of a layer, a width and a depth.
Planted = Callable[[str, int, int, int], Single]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault, or of its healthy counterpart.

    Attributes:
        section: where it stands in the list of public kinds.
        asked: what is a right answer, the weakest first: of "fact", "note" and "alarm"; () if it is to be silent.
        words: a pattern of it.
        families: in which it makes sense.
        plant: makes a module with it.
        local: whether it is in one layer alone, which an alarm has to name.
    """

    section: str
    asked: tuple[str, ...]
    words: str
    families: tuple[str, ...]
    plant: Planted
    local: bool = False

    def answers(self, report: ProbeReport, number: int) -> dict[str, bool]:
        """Which of alarm, note and fact names it, and whether there is another alarm."""
        pattern = re.compile(self.words) if self.words else re.compile("(?!)")
        right = [
            alarm for alarm in report.alarms
            if pattern.search(str(alarm)) and (not self.local or alarm.layer == number)
        ]  # fmt: skip
        where = re.compile(rf"layer {number} of " if self.local else "")
        facts = [line for line in report.lines()[1:] if not line.startswith(("ALARM", "note", "Judged", "Not judged"))]
        return {
            "alarm": bool(right),
            "note": any(pattern.search(note) and where.search(note) for note in report.notes),
            "fact": any(pattern.search(line) for line in facts),
            "other": len(report.alarms) > len(right),
        }


def _plant(change: Callable[[nn.Module, list[nn.Module], int, int], None]) -> Planted:
    """Change a family's module; of module, layers, number of the one to change, and width."""

    def planted(family: str, number: int, width: int, depth: int) -> Single:
        module, inputs, loss = HEALTHY[family](width, depth)
        layers = list(layer_lists(module, (), 0)[0].layers)
        with torch.no_grad():
            change(module, layers, number, width)
        return module, inputs, loss

    return planted


def _attention(local: bool = False, next_words: bool = True, **fault: Any) -> Planted:
    """As `attend` takes it; a function of width and d_k stands for a number."""

    def planted(family: str, number: int, width: int, depth: int) -> Single:
        if family in OF_TORCH:
            single = of_torch(width, depth, first=OF_TORCH[family], **fault)
        else:
            module, inputs, loss = HEALTHY[family](width, depth)
            layers = list(layer_lists(module, (), 0)[0].layers)
            known = {name: value(width, width // HEADS) if callable(value) else value for name, value in fault.items()}
            rewrite(module, layers, [layers[number - 1]] if local else layers, **known)
            single = module, inputs, loss
        return single if next_words else random_labels(single)

    return planted


def _batch_second(families: dict[str, Callable[..., Single]]) -> Planted:
    return lambda family, _, width, depth: families[family](width, depth, batch_first=False)


def _of_torch_alike(family: str, _: int, width: int, depth: int) -> Single:
    return of_torch(width, depth, first=OF_TORCH[family], alike=True)


def _epsilon(_: nn.Module, layers: list[nn.Module], number: int, __: int) -> None:
    norm = norm_of(layers[number - 1])
    setattr(norm, "eps" if hasattr(norm, "eps") else "variance_epsilon", 1.0)


def divided_by_norm(single: Single, number: int, run: Callable[[nn.Module, Any], Any]) -> float:
    """What the first norm of a layer divides by, but for its epsilon, in the mean over tokens."""
    module, inputs, _ = single
    norm, seen = norm_of(layer_lists(module, (), 0)[0].layers[number - 1]), list[float]()

    def look(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        x = args[0].detach()
        seen.append(float((x.var(-1, correction=0) if isinstance(norm, nn.LayerNorm) else x.square().mean(-1)).mean()))

    handle = norm.register_forward_pre_hook(look)
    run(module, inputs)
    handle.remove()
    return seen[-1]


def _one_seed(module: nn.Module, _: list[nn.Module], __: int, ___: int) -> None:
    """Every matrix is drawn from the same seed, those of one shape with one deviation."""
    deviations: dict[torch.Size, float] = {}
    for one in module.parameters():
        if one.ndim == 2:
            deviation = deviations.setdefault(one.shape, float(one.std()))
            one.normal_(std=deviation, generator=torch.Generator().manual_seed(1))


def _repeated(_: nn.Module, layers: list[nn.Module], __: int, ___: int) -> None:
    """Both shards of every matrix are drawn from the same seed."""
    for layer in layers:
        for one in layer.parameters():
            if one.ndim == 2:
                half = len(one) // 2
                one[half : 2 * half] = one[:half].clone()


def _first_of(module: nn.Module, names: tuple[str, ...]) -> nn.Module:
    known = dict(module.named_modules())
    return next(known[name] for name in names if name in known)


def _head(value: float) -> Callable[[nn.Module, list[nn.Module], int, int], None]:
    def change(module: nn.Module, *_: Any) -> None:
        nn.init.normal_(_first_of(module, _HEADS).weight, std=value)

    return change


def _biases_of_attention(layer: nn.Module) -> list[Tensor]:
    names = ("qkv.bias", "proj.bias", "in_proj_bias", "out_proj.bias", "attn.c_attn.bias", "attn.c_proj.bias")
    return [
        one for name, one in layer.named_parameters()
        if name.endswith("bias") and "mlp" not in name and (name.endswith(names) or "self." in name)
    ]  # fmt: skip


def _garbage(_: nn.Module, layers: list[nn.Module], __: int, ___: int) -> None:
    for layer in layers:
        for bias in _biases_of_attention(layer):
            nn.init.normal_(bias, std=30.0)


def _key_bias(_: nn.Module, layers: list[nn.Module], __: int, width: int) -> None:
    """All of it 1000: the second third, or BERT's own."""
    for layer in layers:
        for name, one in layer.named_parameters():
            if name.endswith("key.bias"):
                one.fill_(1000.0)
            elif name.endswith(("qkv.bias", "in_proj_bias", "attn.c_attn.bias")):
                one[width : 2 * width] = 1000.0


def _unused_norms(_: nn.Module, layers: list[nn.Module], __: int, width: int) -> None:
    for layer in layers:
        layer.q_norm, layer.k_norm = nn.LayerNorm(width // HEADS), nn.LayerNorm(width // HEADS)


def _gated(layer: nn.Module, gate: Tensor) -> None:
    """Its branches times a gate."""
    plain = layer.forward

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        y = plain(x, *args, **kwargs)
        gated = x + gate * ((y[0] if isinstance(y, tuple) else y) - x)
        return (gated, *y[1:]) if isinstance(y, tuple) else gated

    layer.forward = forward


def _zeros(*, gate: str = "", ends: bool = False) -> Callable[[nn.Module, list[nn.Module], int, int], None]:
    """A gate of every layer that is 0, a "parameter" or a "buffer", and the last matrices of its branches."""

    def change(_: nn.Module, layers: list[nn.Module], __: int, ___: int) -> None:
        for layer in layers:
            if gate:
                layer.register_parameter("factor", nn.Parameter(torch.zeros(1))) if gate == "parameter" else (
                    layer.register_buffer("factor", torch.zeros(1))
                )
                _gated(layer, layer.factor)
            for name, one in layer.named_parameters():
                if ends and name.rpartition(".")[0].rpartition(".")[2] in _ENDS:
                    one.zero_()

    return change


def _routed(top: int, *, divided: bool) -> Callable[[nn.Module, list[nn.Module], int, int], None]:
    def change(_: nn.Module, layers: list[nn.Module], __: int, ___: int) -> None:
        for layer in layers:
            known = dict(layer.named_modules())
            name = next(name for name in _SECOND if name in known)
            owner, _, last = name.rpartition(".")
            setattr(known[owner], last, Routed(known[name], top=top, divided=divided))

    return change


def _norms_twice(module: nn.Module, _: list[nn.Module], __: int, ___: int) -> None:
    for norm in module.modules():
        if "norm" in type(norm).__name__.lower():
            norm.forward = lambda x, plain=norm.forward: x * plain(x)


EVERY = tuple(HEALTHY)
_ALARM, _NAMED, _FACT = ("alarm",), ("note", "alarm"), ("fact", "note", "alarm")
_CAUSAL = (*CAUSAL, *OF_TORCH)
# torch.nn asks its layer for the weight of the map that stands there.
_ROUTED = tuple(family for family in PRE if "torch.nn" not in family)
# In an encoder of torch.nn layers of the same numbers are what it makes.
_DRAWN = tuple(family for family in HEALTHY if "torch.nn" not in family)
_UNTIED = ("decoder", "without attention", "ViT-like", "torch.nn, Pre-LN", "torch.nn, Post-LN", "Llama")
_NEVER = "no parameter of its layers gets a gradient, now or in later steps"
_SEES, _LABEL = r"^Positions seen in \S+: earlier and later", "every position sees its own label"
_TURNED = "sees later positions and no earlier ones"
_SAMPLES = "they (see|do not see one another along the second axis; along the first axis they do\\b)"

KINDS: dict[str, Kind] = {
    "q.k without 1/sqrt(d_k), one layer": Kind(
        "K6", _NAMED, r"logits are q\.k times 1,|attention logits are [\d.]+ times the other", ATTENDING,
        _attention(local=True, scale=1.0), local=True,
    ),
    "q.k without 1/sqrt(d_k), all layers": Kind(
        "K6", _NAMED, r"logits are q\.k times 1,", ATTENDING, _attention(scale=1.0)
    ),
    "q.k times sqrt(d_k)": Kind(
        "K6", _NAMED, r"logits are q\.k times [24]", ATTENDING, _attention(scale=lambda _, size: size**0.5)
    ),
    "q.k over sqrt(d)": Kind(
        "K6", _NAMED, r"logits are q\.k times 0\.1[28]", ATTENDING, _attention(scale=lambda width, _: width**-0.5)
    ),
    "softmax over queries, all layers": Kind("K6", _ALARM, "over its keys, not to 1", ATTENDING, _attention(over=-2)),
    "batch_first forgotten, labels tell": Kind(
        "K7", _ALARM, r"sees other samples.*batch_first=False", tuple(AXIS_TOLD), _batch_second(AXIS_TOLD)
    ),
    "batch_first forgotten, labels do not tell": Kind(
        "K7", _FACT, f"{_SAMPLES}|batch_first=False", tuple(AXIS_NOT_TOLD), _batch_second(AXIS_NOT_TOLD)
    ),
    "no mask, next word": Kind("K7", _ALARM, _LABEL, _CAUSAL, _attention(sees="all")),
    "no mask, labels at random": Kind("K7", _FACT, _SEES, _CAUSAL, _attention(sees="all", next_words=False)),
    "heads for positions, next word": Kind("K7", _ALARM, _LABEL, CAUSAL, _attention(mixed=True)),
    "heads for positions, labels at random": Kind(
        "K7", _FACT, _SEES, CAUSAL, _attention(mixed=True, next_words=False)
    ),
    "the other triangle, next word": Kind("K7", _ALARM, _TURNED, _CAUSAL, _attention(sees="later")),
    "the other triangle, labels at random": Kind(
        "K7", _ALARM, _TURNED, _CAUSAL, _attention(sees="later", next_words=False)
    ),
    "epsilon of 1, one layer": Kind("K5", _NAMED, "epsilon of", EVERY, _plant(_epsilon), local=True),
    "norms times their input": Kind("K5", _ALARM, "does not normalize", EVERY, _plant(_norms_twice)),
    "layers that torch.nn copied": Kind("K1", _NAMED, "have the same numbers", tuple(OF_TORCH), _of_torch_alike),
    "every matrix from one seed": Kind("K1", _ALARM, "the same numbers", _DRAWN, _plant(_one_seed)),
    "rows that repeat, all layers": Kind("K1", _ALARM, r"of the rows of \S+ repeat", EVERY, _plant(_repeated)),
    "output matrix of N(0, 1)": Kind("K4", _ALARM, r"loss [\d.]+ at the start; a", EVERY, _plant(_head(1.0))),
    "biases of attention that nobody wrote": Kind("K4", _ALARM, "bias: .*entries of", WITH_BIASES, _plant(_garbage)),
    "key biases of 1000": Kind("K4", _ALARM, "entries of .*bias", WITH_BIASES, _plant(_key_bias)),
    "norms that are not called": Kind("K4", _ALARM, r"no layer uses .*q_norm", EVERY, _plant(_unused_norms)),
    "one expert's weight over itself": Kind(
        "K4", _ALARM, r"no gradient: .*gate\S* is only a rounding error", _ROUTED, _plant(_routed(1, divided=True))
    ),
    "two factors of 0 in a row": Kind("K4", _ALARM, _NEVER, PRE, _plant(_zeros(gate="parameter", ends=True))),
    "a buffer of 0": Kind("K4", _ALARM, _NEVER, PRE, _plant(_zeros(gate="buffer"))),
    "a head of 0": Kind("K4", _NAMED, "get gradient 0 at .* must change first", _UNTIED, _plant(_head(0.0))),
    "healthy: last matrices of 0": Kind("K4", (), "", PRE, _plant(_zeros(ends=True))),
    "healthy: ReZero": Kind("K4", (), "", PRE, _plant(_zeros(gate="parameter"))),
    "healthy: two experts, divided": Kind("K4", (), "", _ROUTED, _plant(_routed(2, divided=True))),
    "healthy: one expert, not divided": Kind("K4", (), "", _ROUTED, _plant(_routed(1, divided=False))),
    "healthy: batch_first": Kind(
        "K7", (), "", (*AXIS_TOLD, *AXIS_NOT_TOLD),
        lambda family, _, width, depth: (AXIS_TOLD | AXIS_NOT_TOLD)[family](width, depth, batch_first=True),
    ),
}  # fmt: skip
