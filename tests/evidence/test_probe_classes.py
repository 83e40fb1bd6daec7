"""Every class of transformers that can be made small, options of x-transformers, timm and vit-pytorch: what is said.

As their classes draw them, and with faults. Kinds of faults, and bars, were chosen before the first run of this file.
"""

import math
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import version
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from checks.models.judge import judged_module
from checks.models.whole_model import LOSS
from simulate.modules.layers import tensor_of
from simulate.modules.predictions import logits_of
from tests.helpers.evidence_file import case_name, kept_case, kept_cases, record, rounded
from theory.configurations import stack_from_config

small_classes = pytest.importorskip("tests.helpers.small_classes")
other_tie = pytest.importorskip("tests.evidence.test_probe_config").other_tie
small_modules = pytest.importorskip("tests.helpers.small_modules")
pytestmark = [pytest.mark.evidence, pytest.mark.filterwarnings("ignore")]

SEED, SECONDS, TIMES = 73_000, 90, 30.0
# The shares of modules that may have a false alarm, and of faults that must be named.
FALSE, NAMED = 0.01, 0.95
PACKAGES = ("transformers", "timm", "vit-pytorch", "x-transformers")
# The share of the module's largest gradient below which one in double precision is rounding.
ROUNDING = 1e-12
# The share of the squared gradient below which half of the layers do not learn: a first step of SGD lowers the loss in
# proportion to it.
SILENT = 1e-3
OWN = "label of every position is its own input"
# By module with an alarm, what its source does, as somebody read it who had not written the rule.
READ = {
    **dict.fromkeys("marian pegasus blenderbot blenderbot-small bigbird_pegasus plbart trocr whisper".split(),
                    "the decoder's loss compares logits and labels of one position; it asks for shifted labels"),
    "cpmant": "the loss flattens logits and labels, and shifts neither",
    "xlnet": "seg_embed and r_s_bias enter only where token types are given",
    "prophetnet": "cross-attention runs only where an encoder's output is given",
    **dict.fromkeys(("longformer", "led"), "key_global and its like run only for positions of global attention"),
    "swiftformer": "the softmax over the last axis of queries @ w_g, which has one entry, is 1 whatever w_g is",
    "efficientvim_m1": "A is added to all positions of a state, and the softmax over positions cancels it",
    "qwen3_vl_vision": "mergers run after the layers of deepstack_visual_indexes, which four layers do not have",
    "vjepa2": "the classifier calls the backbone with skip_predictor=True",
    "bert-generation": "is_decoder is False by default, and attention is causal only if it is True",
    "deepseek_v32": "the indexer runs under no_grad and returns indices",
    "sam_vision_model": "initializer_range is 1e-10",
    "attn_orthog_projected_values": "orthog_project flattens positions with the width and projects on all of them",
}  # fmt: skip
# What the first run on the last list of modules kept aside found, with the rules of the commit before that list; rules
# were changed after each. Three alarms, on graphs whose nodes are the samples, are true by a number and false as read.
FIRST_RUN = {
    "list of commit": "44cd8c9d", "modules": 259, "with an alarm": 25,
    "of the lists before": "14 false of 155, 5 of 187, 9 of 197", "with a false alarm": [
        "repvit_m3", "torchvision regnet_y_400mf", "torchvision regnet_x_1_6gf", "talking heads, pre",
        "He's weights, PReLU"],
}  # fmt: skip
# Layers that are compared, and a matrix's shorter side.
_FEWEST, _SHORTEST = 3, 8

Single = tuple[nn.Module, Any, Callable[[Any], Tensor] | None]
Named = Callable[[list[Any]], bool]
# The planted fault with its place, and the function that tells whether alarms name it.
Planted = tuple[str, Named] | None


def of_transformers(family: str) -> Single:
    module = small_classes.built(family, seed=SEED)
    inputs, loss = small_classes.batch(module)
    return module, inputs, loss


@cache
def subjects() -> dict[tuple[str, str], Callable[[], Single]]:
    own = {("transformers", family): partial(of_transformers, family) for family in small_classes.families()}
    return own | small_modules.subjects()


def run(module: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*(inputs if isinstance(inputs, tuple) else (inputs,)))


def matrices_by_layer(module: nn.Module) -> list[list[tuple[str, int]]]:
    """Names of matrices of equal shapes in at least three layers, each with its layer's number from 0."""
    groups: dict[tuple[str, torch.Size], list[tuple[str, int]]] = {}
    for name, one in module.named_parameters():
        if one.ndim == 2 and min(one.shape) >= _SHORTEST and bool(one.any()) and one.requires_grad:
            parts = name.split(".")
            for place, part in enumerate(parts):
                if part.isdigit():
                    pattern = ".".join([*parts[:place], "*", *parts[place + 1 :]])
                    groups.setdefault((pattern, one.shape), []).append((name, int(part)))
    return [members for members in groups.values() if len(members) >= _FEWEST]


def larger_matrix(single: Single, choice: random.Random) -> Planted:
    module, *_ = single
    groups = matrices_by_layer(module)
    if not groups:
        return None
    group = choice.choice(groups)
    name, number = choice.choice(group)
    dict(module.named_parameters())[name].mul_(TIMES)
    # The group's members differ in the number alone.
    place = next(k for k, (a, b) in enumerate(zip(*(of[0].split(".") for of in group[:2]), strict=True)) if a != b)
    own = ".".join(name.split(".")[place + 1 :])
    return name, lambda alarms: any(own in str(one) and (one.layer == number + 1 or name in str(one)) for one in alarms)


def layers_of(module: nn.Module) -> list[tuple[str, int, nn.Module]]:
    """Modules with a forward, parts of lists of at least three of one class: name, number from 1, and module."""
    found: list[tuple[str, int, nn.Module]] = []
    for name, part in module.named_modules():
        children = list(part.children())
        alike = len(children) >= _FEWEST and len({type(one) for one in children}) == 1 and list(children[0].children())
        inside = any(name.startswith(f"{outer.rpartition('.')[0]}.") for outer, *_ in found)
        if isinstance(part, nn.ModuleList | nn.Sequential) and alike and not inside:
            found += [(f"{name}.{k}", k + 1, one) for k, one in enumerate(children)]
    return found


def first_positions_move(module: nn.Module, inputs: Any) -> float:
    """By how much the logits of all positions but the last move when the last word is another one, over their size."""
    other = {name: value.clone() if isinstance(value, Tensor) else value for name, value in inputs.items()}
    other["input_ids"][:, -1] = 4
    logits = [run(module, given).logits.double() for given in (inputs, other)]
    return float((logits[0] - logits[1])[:, :-1].norm() / logits[0].norm())


def without_mask(single: Single, choice: random.Random) -> Planted:
    module, inputs, _ = single
    words = isinstance(inputs, dict) and set(inputs) == {"input_ids", "labels"}
    if not words or first_positions_move(module, inputs) > 0:
        return None
    layers = layers_of(module)
    if not layers:
        return None
    name, number, layer = choice.choice(layers)

    def hide(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args, {k: None if "mask" in k else value for k, value in kwargs.items()}

    layer.register_forward_pre_hook(hide, with_kwargs=True)
    try:
        moved = first_positions_move(module, inputs)
    except Exception:
        return None
    if not moved > 0:
        return None
    return f"{name}: {moved:.2g}", lambda alarms: any(
        one.kind == "leak" and (one.layer == number or "see" in one.what) for one in alarms
    )


def without_residual(single: Single, choice: random.Random) -> Planted:
    module, inputs, _ = single
    layers = layers_of(module)
    if not layers:
        return None
    name, number, layer = choice.choice(layers)
    seen: list[float] = []

    def stream(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        return tensor_of([*args, *kwargs.values()])

    def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        x, y = stream(args, kwargs), tensor_of(output)
        if x is not None and y is not None and x.shape == y.shape:
            seen.append(float((x * y).sum() / (x * x).sum()))

    handle = layer.register_forward_hook(look, with_kwargs=True)
    run(module, inputs)
    handle.remove()
    if not seen or not 0.9 < seen[0] < 1.1:
        return None  # no residual connection that adds the stream as it is

    def cut(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        x, y = stream(args, kwargs), tensor_of(output)
        if y is output:
            return y - x
        return type(output)(y - x if one is y else one for one in output)

    layer.register_forward_hook(cut, with_kwargs=True)
    return f"{name}: coefficient {seen[0]:.3g}", lambda alarms: any(
        one.kind == "residual" and one.layer == number for one in alarms
    )


def of_the_other_tie(single: Single, _: random.Random) -> Planted:
    module, *_ = single
    planted = hasattr(module, "get_output_embeddings") and is_read(module) and other_tie(module)
    named: Named = lambda alarms: any("tie_word_embeddings" in str(one) for one in alarms)  # noqa: E731
    return ("both ends", named) if planted else None


def is_read(module: nn.Module) -> bool:
    with suppress(ValueError, AttributeError):
        stack_from_config(module.config.to_dict(), tokens=small_classes.TOKENS)
        return True
    return False


# Each with the number of modules that it is planted in, the first of a random order in which it can be.
FAULTS: dict[str, tuple[int, Callable[[Single, random.Random], Planted]]] = {
    "a matrix 30 times as large": (100, larger_matrix), "no mask": (25, without_mask),
    "no residual connection": (25, without_residual), "the other tie": (25, of_the_other_tie),
}  # fmt: skip


def harm(single: Single, alarms: list[Any]) -> dict[str, float]:
    """Numbers that show whether alarms are true, by the alarm's kind, in double precision where the class can.

    Returns:
        "loss": itself; "no gradient", "detached": the largest entry of the gradients of the parameters that the alarm
        names, divided by the largest of the module, 1 if it names none; "norm": how many times larger a named norm's
        output is without its epsilon, at least; "growth": the weaker half of a list's layers' share of the squared
        gradient; "leak": by how much outputs move with what they must not see (`moved_by_the_last`); "own labels": the
        relative difference of the loss from a cross-entropy of the inputs' ids, each at its own position.
    """
    kinds = {one.kind for one in alarms} & {"loss", "non-finite", "no gradient", "detached", "leak", "norm", "growth"}
    if not kinds:
        return {}
    module, inputs, loss = single
    double = tree_map(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, inputs)
    with suppress(RuntimeError):  # of a kernel that takes single precision alone
        found = shown(module.double(), double, loss, kinds, alarms)
        if all(map(math.isfinite, found.values())):
            return found
    return shown(module.float(), inputs, loss, kinds, alarms)


def shown(module: nn.Module, inputs: Any, loss: Any, kinds: set[str], alarms: list[Any]) -> dict[str, float]:
    found, times = dict[str, float](), list[float]()
    for _, part in named_by(alarms, "norm", module.named_modules()):
        if epsilon := next((one for one in ("eps", "variance_epsilon") if hasattr(part, one)), None):
            part.register_forward_hook(partial(without_epsilon, times, epsilon))
    module.zero_grad(set_to_none=True)
    output = run(module, inputs)
    value = output.loss if loss is None else loss(output)
    value.backward()
    if "norm" in kinds:
        found["norm"] = min(times, default=1.0)
    if "growth" in kinds:
        found["growth"] = max(weaker_half(module, one.part) for one in alarms if one.kind == "growth")
    if {"loss", "non-finite"} & kinds:
        found["loss"] = float(value.detach())
    for kind in {"no gradient", "detached"} & kinds:
        named = [one for _, one in named_by(alarms, kind, module.named_parameters())]
        gradients = ([one.grad for one in of if one.numel()] for of in (named, module.parameters()))
        largest, all_of = (max((float(g.abs().max()) for g in of if g is not None), default=0.0) for of in gradients)
        found[kind] = largest / all_of if named else 1.0
    if any(OWN in one.what for one in alarms):
        logits = logits_of(output).detach()
        own = nn.functional.cross_entropy(logits.flatten(0, -2), inputs["input_ids"].flatten())
        found["own labels"] = abs(float(value.detach() / own) - 1)
    elif "leak" in kinds:
        samples = any("other samples" in one.what for one in alarms)
        found["leak"] = moved_by_a_sample(module, inputs) if samples else moved_by_the_last(module, inputs)
    return found


def named_by(alarms: list[Any], kind: str, members: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the parameters or modules that alarms of a kind name, in the layers that these are about."""
    members = list(members)
    for alarm in (one for one in alarms if one.kind == kind):
        said = alarm.what.partition("; also ")[0]
        whole = kind == "detached" or "no parameter of its layers" in said
        words = {re.escape(word.rstrip(",:")).replace(r"\*", r"\d+") for word in said.split()}
        number = f"{alarm.layer - 1}" if alarm.layer else r"\d+"
        layer = rf"{re.escape(alarm.part)}\.{number}\." if alarm.part else ""
        pattern = re.compile(rf"{layer}(?:{'.*' if whole else '|'.join(words)})")
        yield from ((name, one) for name, one in members if pattern.fullmatch(name))


def weaker_half(module: nn.Module, part: str) -> float:
    """Return the share of the squared gradient of a list's layers that the weaker half of them has."""
    squares = Counter[int]()
    for name, one in module.named_parameters():
        if one.grad is not None and (layer := re.match(rf"{re.escape(part)}\.(\d+)\.", name)):
            squares[int(layer[1])] += float(one.grad.square().sum())
    half, total = sum(squares[k] for k in squares if 2 * k < len(squares)), sum(squares.values())
    return min(half, total - half) / total if total else 1.0


def without_epsilon(times: list[float], epsilon: str, part: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
    known = getattr(part, epsilon)
    setattr(part, epsilon, 1e-6 * known)
    times.append(float((part.forward(*args).square().mean() / output.square().mean()) ** 0.5))
    setattr(part, epsilon, known)


def moved_by_the_last(module: nn.Module, inputs: Any) -> float:
    """Return how far logits before the last token move with it, over their size; 0 unless a decoder takes token ids."""
    one_way = (
        isinstance(inputs, dict) and not module.config.is_encoder_decoder and "Masked" not in type(module).__name__
    )
    if one_way and "input_ids" in inputs:
        return first_positions_move(module, inputs)
    if isinstance(inputs, Tensor) and not inputs.is_floating_point():
        other = inputs.clone()
        other[:, -1] = (other[:, -1] + 1) % small_classes.VOCAB
        outputs = [logits_of(run(module, given)).detach() for given in (inputs, other)]
        return float((outputs[0] - outputs[1])[:, :-1].norm() / outputs[0].norm())
    return 0.0


def moved_by_a_sample(module: nn.Module, inputs: Any) -> float:
    """Return how far the first sample's outputs move with the last sample, divided by their size."""
    other = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, inputs)
    first = next(x for x in tree_leaves(other) if isinstance(x, Tensor))
    first[-1] = first[-1].flip(-1)
    outputs = [tensor_of(run(module, given)) for given in (inputs, other)]
    return float((outputs[0] - outputs[1])[0].norm() / outputs[0][0].norm())


def too_long(*_: object) -> None:
    raise TimeoutError(f"takes over {SECONDS} seconds of processor time")


def case(key: tuple[str, str], fault: str) -> Any:
    """Return the alarms on a module; None if the fault cannot be planted; a reason if there is no module."""
    signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    begin, planted = time.process_time(), ("", lambda _: False)
    try:
        torch.manual_seed(SEED)
        single = subjects()[key]()
        if any(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in single[0].modules()):
            single[0].train()
        output = run(*single[:2])
        (output.loss if single[2] is None else single[2](output)).backward()
        single[0].zero_grad(set_to_none=True)
        if fault:
            with torch.no_grad():
                planted = FAULTS[fault][1](single, random.Random(f"{key} {fault}"))
            if planted is None:
                return None
    except Exception as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        return {"not built": words_of(error)}
    try:
        report = judged_module(*single, seed=SEED)
        numbers = {} if fault else harm(single, report.alarms)
    except Exception as error:
        return {"planted": planted[0], "fails": words_of(error)}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {
        "planted": planted[0], "alarms": [str(one) for one in report.alarms], "named": planted[1](report.alarms),
        "class": type(single[0]).__name__, "parameters": sum(one.numel() for one in single[0].parameters()),
        "harm": numbers,
        "as drawn": [one for one in report.notes if re.search(r"\((a new .* has this too|by the code of .*)\)$", one)],
        "layers": report.layers.groupby("part", sort=False).size().to_dict(),
        "seconds": round(time.process_time() - begin, 2),
    }  # fmt: skip


def words_of(error: Exception) -> str:
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[:200]


def class_cases(_: Any) -> dict[tuple[Any, ...], Callable[[], Any]]:
    """Every module of the table as it is; those with faults follow from what can be built."""
    return {("class", *key, ""): partial(case, key, "") for key in subjects()}


def planted_cases(folder: Any, fault: str, keys: list[tuple[str, str]]) -> dict[tuple[str, str], Any]:
    """Return the first modules of a random order, as many as `FAULTS` has for the fault."""
    found: dict[tuple[str, str], Any] = {}
    for key in keys:
        one = kept_case(folder, case_name(("class", *key, fault)), partial(case, key, fault))
        if one is not None:
            found[key] = one
        if len(found) == FAULTS[fault][0]:
            break
    return found


def is_true(found: dict[str, Any], alarm: str) -> tuple[bool, str]:
    """Return whether an alarm on a module as it is drawn is true, and the number that shows it."""
    kind, harm_of = alarm.partition(":")[0], found["harm"]
    if kind == "non-finite":
        return not math.isfinite(harm_of["loss"]), f"loss in double precision {harm_of['loss']:g}"
    if kind in ("no gradient", "detached"):
        share = harm_of[kind]
        return share < ROUNDING, f"these gradients in double precision are {share:.2g} of the module's largest"
    if OWN in alarm:
        return harm_of[
            "own labels"
        ] < 1e-6, f"the loss is the inputs' own cross-entropy up to {harm_of['own labels']:.1g}"
    if kind == "norm" and "the epsilon of" in alarm:
        return harm_of[kind] > 2**0.5, f"without its epsilon the output is {harm_of[kind]:.3g} times as large"
    if kind == "attention" and (weight := re.search(r"one key, with ([\d.]+)", alarm)):
        return float(weight[1]) > 0.5, f"a query gives one key {weight[1]} of its weight"
    if kind == "growth" and "gradient norm" in alarm:
        what = f"half of the layers have {harm_of[kind]:.2g} of the squared gradient in double precision"
        return harm_of[kind] < SILENT, what
    if kind == "leak":
        return harm_of[kind] > 0, f"outputs move by {harm_of[kind]:.2g} with what they must not see"
    if kind == "loss":
        classes = re.search(r"among (\d+) classes", alarm)
        limit = LOSS * math.log(int(classes[1])) if classes else math.inf
        return harm_of[kind] > limit, f"loss in double precision {harm_of[kind]:.3g}, {LOSS:g} ln V = {limit:.3g}"
    return False, "no number shows harm"


def summary(healthy: dict[tuple[str, str], Any], faults: dict[str, dict[tuple[str, str], Any]]) -> dict[str, Any]:
    built = {key: one for key, one in healthy.items() if "alarms" in one}
    table = [
        {
            "package": key[0], "name": key[1], "class": one["class"], "parameters": one["parameters"],
            "layers": one["layers"],
            "alarms": [{"said": said, **dict(zip(("true", "shown by"), is_true(one, said), strict=True))}
                       for said in one["alarms"]],
            "as drawn": one["as drawn"], "read": READ.get(key[1], ""),
            "planted": {fault: {"where": of[key]["planted"], "named": of[key]["named"]}
                        for fault, of in faults.items() if key in of},
        } for key, one in sorted(built.items())
    ]  # fmt: skip
    false = [row["name"] for row in table if not all(alarm["true"] for alarm in row["alarms"])]
    return {
        "versions": {name: version(name) for name in (*PACKAGES, "torch")},
        "sizes": {"width": small_classes.WIDTH, "layers": small_classes.DEPTH, "tokens": small_classes.TOKENS},
        "modules": len(built), "of a package": Counter(package for package, _ in built),
        "with an alarm": sum(bool(row["alarms"]) for row in table), "with a false alarm": false,
        "with an alarm that the class raises as drawn": sum(bool(row["as drawn"]) for row in table),
        "faults": {fault: {"planted": len(of), "named": sum(one["named"] for one in of.values()),
                           "not named": [f"{key[1]}: {one['planted']}" for key, one in of.items() if not one["named"]]}
                   for fault, of in faults.items()},
        "table": table,
        "not built": {" ".join(key): one.get("not built", one.get("fails")) for key, one in sorted(healthy.items())
                      if key not in built},
    }  # fmt: skip


def test_classes(kept_folder):
    healthy = {key[1:3]: one for key, one in kept_cases(kept_folder, class_cases(None)).items()}
    keys = sorted(key for key, one in healthy.items() if "alarms" in one)
    random.Random(SEED).shuffle(keys)
    found = summary(healthy, {fault: planted_cases(kept_folder, fault, keys) for fault in FAULTS})
    found["held out"] = {"first run": FIRST_RUN}
    record("probe-classes", rounded(found), short=True)
    assert len(found["with a false alarm"]) <= FALSE * found["modules"]
    assert all(of["named"] >= NAMED * of["planted"] for of in found["faults"].values())
    assert not any("fails" in one for one in healthy.values())
