"""The classes of transformers, built small with random weights: their defaults and the deviations of matrices."""

import contextlib
import dataclasses
import inspect
import itertools
import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from gradbounds.actions.logged_layers import ROLES
from theory.configurations.classes import CLASSES, ModelClass
from theory.configurations.configuration_file import FAMILIES

transformers = pytest.importorskip("transformers")  # an extra, which the suite does without
modeling_auto = pytest.importorskip("transformers.models.auto.modeling_auto")

WIDTH, DEPTH, HEADS, VOCAB, STD = 256, 4, 4, 512, 0.03

BY_SIZE: dict[str, tuple[str, ...]] = {
    "width": ("hidden_size", "n_embd", "d_model", "dim", "embedding_size"),
    "depth": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers"),
    "heads": (
        "num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads", "encoder_attention_heads",
        "decoder_attention_heads",
    ),
    "hidden": (
        "intermediate_size", "n_inner", "ffn_dim", "hidden_dim", "ffn_hidden_size", "d_ff", "encoder_ffn_dim",
        "decoder_ffn_dim",
    ),
    "shared": ("num_key_value_heads",),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "chosen": ("num_experts_per_tok", "moe_topk", "moe_k"),
    "shared experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "of expert": ("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"),
    "head": ("head_dim", "d_kv"),
    "vocab": ("vocab_size",),
    "std": ("initializer_range", "init_std"),
}  # fmt: skip
"""What configurations call their sizes."""

# With T5's, whose `wo` is the second matrix of the units and elsewhere that of attention.
_ROLES = {name: roles[0] for name, roles in ROLES.items() if len(roles) == 1} | {
    "q": "WQ", "k": "WK", "v": "WV", "o": "WO", "wi": "W1", "wi_0": "WG", "wi_1": "W1", "wo": "W2",
}  # fmt: skip
_WHOLE = ("transform.dense", "head.dense", "vocab_transform", "predictions.dense")
_NOT_LAYERS = ("norm", "moe_statics", "position", "relative", "token_type", "layernorm")


def lm_class(family: str) -> str:
    """The name of the class with a loss of words: masked ones where there are, else the next."""
    masked, seq, causal = (
        getattr(modeling_auto, f"MODEL_FOR_{what}_MAPPING_NAMES").get(family)
        for what in ("MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM")
    )
    return str(seq or masked or causal)


def field_defaults(family: str) -> dict[str, Any]:
    """What the fields of a family's configuration are if nobody gives them."""
    kind = transformers.CONFIG_MAPPING[family]
    if dataclasses.is_dataclass(kind):
        common = {one.name for one in dataclasses.fields(transformers.PreTrainedConfig)} - {"is_encoder_decoder"}
        values = {one.name: one.default for one in dataclasses.fields(kind) if one.name not in common}
    else:  # before 5.4
        given = inspect.signature(kind.__init__).parameters.values()
        values = {one.name: one.default for one in given if one.default is not inspect.Parameter.empty}
    left = ("_token_id", "dropout", "drop", "pdrop", "dropout_prob")
    return {name: value for name, value in values.items() if not name.endswith(left) and name not in _UNUSED}


_UNUSED = {"use_cache", "max_position_embeddings", "n_positions", "n_ctx", "pretraining_tp", "layerdrop"}


def small_fields(family: str, **others: Any) -> dict[str, Any]:
    """Fields of a small network, by the names that the family has for them."""
    known = field_defaults(family)
    sizes = {
        "width": WIDTH, "depth": DEPTH, "heads": HEADS, "hidden": 2 * WIDTH, "shared": 2, "head": WIDTH // HEADS,
        "vocab": VOCAB, "std": STD, "experts": 4, "chosen": 2, "of expert": WIDTH, "shared experts": 2,
    }  # fmt: skip
    found = {name: sizes[size] for size, names in BY_SIZE.items() for name in names if name in known}
    found |= {"rotary_dim": 32} if "rotary_dim" in known else {}
    found |= {"attention_types": [[["global", "local"], DEPTH // 2]]} if "attention_types" in known else {}
    return found | others


def build(family: str, fields: dict[str, Any], *, seed: int = 0) -> torch.nn.Module:
    """A model with a head for words, of attention that is written out, in evaluation."""
    torch.manual_seed(seed)
    tokens = {f"{name}_token_id": k for k, name in enumerate(("pad", "bos", "eos"))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = transformers.CONFIG_MAPPING[family](**tokens | fields)
        return getattr(transformers, lm_class(family))._from_config(config, attn_implementation="eager").eval()


def matrices(model: torch.nn.Module, *, gradient: bool = False) -> Iterator[tuple[str, int, Tensor]]:
    """Our name, the layer from 0, and the weight or its gradient, of every matrix of every layer.

    One that is made of several is split. In encoders the name has the prefix `encoder_`; W^H is of layer 0.
    """
    config = model.config
    both = config.is_encoder_decoder
    for name, parameter in model.named_parameters():
        value = parameter.grad if gradient else parameter.detach()
        if parameter.ndim < 2 or value is None:
            continue
        layer = next((int(part) for part in name.split(".") if part.isdigit()), None)
        if layer is None:
            if any(part in name for part in _WHOLE):
                yield "WH", 0, value
            continue
        shared = "shared_expert" in name or "shared_mlp" in name
        if parameter.ndim == 3 or shared or name.endswith(("gate.weight", "gate.wg.weight", "router.weight")):
            yield from ((role, layer, part) for role, part in _of_experts(name, value))
            continue
        if any(part in name.split(".")[-2].lower() for part in _NOT_LAYERS):
            continue
        prefix = "encoder_" if both and ".encoder." in f".{name}" else ""
        cross = "EncDecAttention" in name or "encoder_attn" in name
        for role, part in _parts(name, value, config):
            yield prefix + (role.replace("W", "X") if cross else role), layer, part


def _of_experts(name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Those of a layer's experts together, (experts, out, in); of a shared one; and of the router."""
    if name.endswith("experts.gate_up_proj"):
        yield from zip(("WG", "W1"), value.chunk(2, 1), strict=True)
    elif value.ndim == 3:
        yield "W2", value
    elif name.endswith("shared_mlp.input_linear.weight"):
        yield from zip(("SG", "S1"), value.chunk(2), strict=True)
    elif name.endswith("shared_mlp.output_linear.weight"):
        yield "S2", value
    elif "shared_expert_gate" not in name and "shared" in name:
        yield _ROLES[name.split(".")[-2]].replace("W", "S"), value
    else:
        yield ("SR" if "shared_expert_gate" in name else "WR"), value


def _parts(name: str, value: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    leaf, read = name.split(".")[-2], lambda *names: next(getattr(config, one) for one in names if hasattr(config, one))
    heads = read("num_attention_heads", "n_head")
    if leaf == "Wqkv":
        yield from zip(("WQ", "WK", "WV"), value.chunk(3), strict=True)
    elif leaf == "Wi":
        yield from zip(("WG", "W1"), value.chunk(2), strict=True)
    elif leaf == "Wo":
        yield ("WO" if "attn" in name else "W2"), value
    elif leaf == "qkv_proj" and config.model_type == "codegen":  # four parts for as many devices: query, value, key
        split = value.view(4, 3, -1, value.shape[1])
        yield from ((role, split[:, k].flatten(0, 1)) for k, role in enumerate(("WQ", "WV", "WK")))
    elif leaf == "qkv_proj" or (leaf == "c_attn" and config.model_type == "gpt_bigcode"):
        shared = read("num_key_value_heads")
        width = value.shape[0] // (heads + 2 * shared)
        sizes = [heads * width, shared * width, shared * width]
        yield from zip(("WQ", "WK", "WV"), value.split(sizes), strict=True)
    elif leaf == "c_attn":  # transposed
        yield from zip(("WQ", "WK", "WV"), value.chunk(3, 1), strict=True)
    elif leaf == "gate_up_proj":
        yield from zip(("WG", "W1"), value.chunk(2), strict=True)
    elif leaf == "query_key_value" and config.model_type == "falcon" and config.multi_query:
        width = value.shape[0] // (heads + 2)
        yield from zip(("WQ", "WK", "WV"), value.split([heads * width, width, width]), strict=True)
    elif leaf == "query_key_value":  # head by head
        by_head = value.view(heads, 3, -1, value.shape[1])
        yield from ((role, by_head[:, k].flatten(0, 1)) for k, role in enumerate(("WQ", "WK", "WV")))
    elif leaf == "c_proj":
        yield ("WO" if "attn" in name else "W2"), value
    elif leaf == "dense" and ("intermediate" in name or ".output" in name):
        yield ("WO" if "attention" in name else "W1" if "intermediate" in name else "W2"), value
    elif leaf == "dense":
        yield "WO", value
    else:
        yield _ROLES[leaf], value


# Of each matrix, in all layers and networks: their root mean square then errs by 0.3%.
_ENTRIES = 2**16


def deviations(family: str, fields: dict[str, Any]) -> dict[str, float]:
    """Root mean squares of the entries of each matrix over all layers, of as many networks as have entries enough.

    Raises:
        ValueError: a layer's is off that by more than 6 standard errors.
    """
    found: dict[str, list[tuple[float, int]]] = {}
    for seed in itertools.count():
        for role, _, value in matrices(build(family, fields, seed=seed)):
            found.setdefault(role, []).append((float(value.square().mean()), value.numel()))
        if min(sum(count for _, count in squares) for squares in found.values()) >= _ENTRIES:
            break
    for role, squares in found.items():
        mean = sum(one for one, _ in squares) / len(squares)
        if any(abs(one / mean - 1) > 6 * (2 / count) ** 0.5 for one, count in squares):
            raise ValueError(f"layers must be drawn alike, got {squares} of {role}.")
    return {role: (sum(one for one, _ in squares) / len(squares)) ** 0.5 for role, squares in found.items()}


def _is_tied(family: str, fields: dict[str, Any], tied: bool) -> bool:
    model = build(family, fields | {"tie_word_embeddings": tied})
    output = model.get_output_embeddings()
    return output is not None and output.weight is model.get_input_embeddings().weight


def _own_heads(family: str, fields: dict[str, Any]) -> bool:
    """Whether W^O of heads twice as wide has twice as many inputs."""
    width = 2 * WIDTH // HEADS
    try:
        model = build(family, fields | {"head_dim": width})
    except (AttributeError, TypeError, ValueError):  # of a class that computes it
        return False
    return next(value.numel() for role, _, value in matrices(model) if role.endswith("WO")) == HEADS * width * WIDTH


def measured(family: str) -> ModelClass:
    kind, fields = transformers.CONFIG_MAPPING[family], small_fields(family)
    rope = getattr(kind(), "rope_parameters", None)
    rounded = {role: float(f"{value:.4g}") for role, value in deviations(family, fields).items()}
    tied = (_is_tied(family, fields, False), _is_tied(family, fields, True))
    names, own = dict(kind.attribute_map), _own_heads(family, fields)
    return ModelClass(lm_class(family), field_defaults(family), names, rope, tied, own, fields, rounded)


def read_families() -> list[str]:
    """Families of transformers that are read."""
    return sorted(set(FAMILIES) - {"nanogpt"})


def with_experts() -> set[str]:
    return {name for name in read_families() if "num_experts_per_tok" in CLASSES[name].keys}


def families_of_words() -> dict[str, str]:
    """What a configuration of several parts takes its words to be if they do not say it, of families that are read."""
    found = {}
    for family in transformers.CONFIG_MAPPING.keys():  # noqa: SIM118  # a lazy mapping
        kind = transformers.CONFIG_MAPPING[family]
        if "text_config" not in (getattr(kind, "sub_configs", None) or {}):
            continue
        with contextlib.suppress(Exception):  # some cannot be built of nothing
            found[family] = kind().text_config.model_type
    without = other_types()[1]
    return {family: words for family, words in sorted(found.items()) if words in FAMILIES and family not in without}


_HEAD = ("transformers", "older", "words", "without words", "other types")


def other_types() -> tuple[str, list[str]]:
    """The types of all classes that are not read; and those with a `text_config` and no class that predicts words."""
    known = [one for one in modeling_auto.CONFIG_MAPPING_NAMES if one not in FAMILIES]
    of_words = {
        name
        for what in ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "MASKED_LM",
                     "SPEECH_SEQ_2_SEQ", "PRETRAINING", "VISUAL_QUESTION_ANSWERING")
        for name in getattr(modeling_auto, f"MODEL_FOR_{what}_MAPPING_NAMES", ())
    }  # fmt: skip
    parts = {one: getattr(transformers.CONFIG_MAPPING[one], "sub_configs", None) or {} for one in known}
    without = [one for one in known if "text_config" in parts[one] and one not in of_words]
    return " ".join(sorted(known)), sorted(without)


def table_text(table: dict[str, Any]) -> str:
    """The table as its file has it, a line for each part of a family."""
    lines = []
    for family, one in sorted(table["classes"].items()):
        parts = [
            f"   {json.dumps(part)}: {json.dumps(value)}" for part, value in one.items() if value or part == "tied"
        ]
        lines.append(f"  {json.dumps(family)}: {{\n" + ",\n".join(parts) + "\n  }")
    assert set(table) == {*_HEAD, "classes"}
    head = "".join(f" {json.dumps(name)}: {json.dumps(table[name])},\n" for name in _HEAD)
    return "{\n" + head + ' "classes": {\n' + ",\n".join(lines) + "\n }\n}\n"
