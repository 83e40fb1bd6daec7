"""Faults of the kinds that public problems had, planted in families that are not theirs, and what is a right answer."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from checks.models.report import ProbeReport
from simulate.modules.layers import layer_lists
from tests.helpers.model_families import HEADS
from tests.helpers.public_families import AXIS_NOT_TOLD, AXIS_TOLD, Routed, of_torch, random_labels
from tests.helpers.single_modules import CAUSAL, HEALTHY, Single
from tests.helpers.written_attention import rewrite

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
    """As `written_attention.attend` takes it; a function of width and d_k stands for a number."""

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


def norm_of(layer: nn.Module) -> nn.Module:
    return next(part for part in layer.modules() if "norm" in type(part).__name__.lower())


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
