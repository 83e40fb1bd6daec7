"""Every class of transformers that its own configuration can make small, with a batch: one of each family."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

transformers = pytest.importorskip("transformers")
modeling_auto = pytest.importorskip("transformers.models.auto.modeling_auto")

# Heads that are looked for, the first that a family has; a family without any is taken without a head.
TASKS = ("MASKED_LM", "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_CLASSIFICATION", "AUDIO_CLASSIFICATION", "CTC",
         "SPEECH_SEQ_2_SEQ", "VIDEO_CLASSIFICATION")  # fmt: skip
WIDTH, DEPTH, HEADS, TOKENS, SEQUENCES, VOCAB, IMAGE, SOUND, MOST = 64, 4, 4, 16, 2, 200, 32, 4000, 40_000_000
# The small sizes, and the names that configurations have for them.
SIZES: tuple[tuple[int, str], ...] = (
    (WIDTH, """
        hidden_size n_embd d_model dim embedding_size embed_dim projection_dim output_hidden_size
        decoder_hidden_size encoder_hidden_size word_embed_proj_dim codevector_dim proj_codevector_dim
        classifier_proj_size d_embed out_hidden_size pooler_hidden_size pooler_output_size text_hidden_size
        attention_hidden_size emb_dim lru_width encoder_hidden_dim d_latents mamba_d_ssm dim_model embedding_dim
        xvector_output_dim model_dim num_filters
    """),
    (2 * WIDTH, """
        intermediate_size n_inner ffn_dim ffn_hidden_size d_ff encoder_ffn_dim decoder_ffn_dim dim_ff mlp_dim
        moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size intermediate_size_mlp
        encoder_intermediate_size decoder_intermediate_size dense_intermediate_size dff inner_dim
        expert_intermediate_size shared_mlp_intermediate_size moe_shared_expert_intermediate_size
    """),
    (DEPTH, """
        num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers depth num_decoder_layers
        num_encoder_layers encoder_num_hidden_layers decoder_num_hidden_layers num_self_attends_per_block
        num_blocks
    """),
    (HEADS, """
        num_attention_heads n_head num_heads n_heads attention_heads encoder_attention_heads
        decoder_attention_heads encoder_num_attention_heads decoder_num_attention_heads num_experts
        n_routed_experts num_local_experts moe_num_experts num_cross_attention_heads num_self_attention_heads
        linear_num_value_heads index_n_heads mamba_num_heads linear_num_heads swa_num_attention_heads
    """),
    (2, """
        attn_layer_period num_key_value_heads multi_query_group_num num_experts_per_tok
        encoder_num_key_value_heads moe_topk moe_k decoder_num_key_value_heads swa_num_key_value_heads
        top_k_experts n_kv_heads num_kv_heads linear_num_key_heads
    """),
    (1, "attn_layer_offset n_group topk_group first_k_dense_replace num_nextn_predict_layers"),
    (0, "num_kv_shared_layers"),
    (WIDTH // HEADS, """
        head_dim d_kv kv_channels attention_head_dim head_size kv_lora_rank q_lora_rank qk_nope_head_dim
        v_head_dim attention_head_size swa_head_dim linear_key_head_dim linear_value_head_dim index_head_dim
        linear_head_dim global_head_dim d_head state_size mamba_d_state ssm_state_size time_step_rank
        mamba_head_dim mamba_dt_rank num_conv_pos_embedding_groups num_conv_pos_embeddings
    """),
    (WIDTH // HEADS // 2, "qk_rope_head_dim rotary_dim"),
    (3 * WIDTH // HEADS // 2, "qk_head_dim"),
    (VOCAB, """
        vocab_size vocab_size_per_layer_input decoder_vocab_size encoder_vocab_size src_vocab_size
        tgt_vocab_size
    """),
    (IMAGE, "image_size img_size input_size pretrain_image_size crop_size"),
    (4, "patch_size chunk_size mamba_chunk_size attention_chunk_size frames_per_clip"),
    (8, "sliding_window index_topk expert_capacity sliding_window_size"),
    (4 * TOKENS, """
        max_position_embeddings n_positions max_target_positions max_source_positions n_ctx max_seq_len
        context_length num_position_embeddings
    """),
)  # fmt: skip
TABLE = {name: size for size, names in SIZES for name in names.split()}
WIDTHS = ("hidden_sizes", "conv_dim", "tdnn_dim", "layer_channels", "out_channels", "encoder_hidden_sizes")
MELS = ("num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel", "num_mel_channels")
BY_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type", "attention_types", "block_types", "moe_layers",
            "no_rope_layers", "layer_type_list", "indexer_types", "layer_rope_theta")  # fmt: skip


def families(tasks: Sequence[str] = TASKS, *, without_head: bool = True) -> dict[str, str]:
    """The class of each family: of the first of these tasks that it has a head for, or the one without a head."""
    chosen: dict[str, Any] = {}
    for task in tasks:
        for family, name in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").items():
            chosen.setdefault(family, name)
    for family, name in modeling_auto.MODEL_MAPPING_NAMES.items() if without_head else ():
        chosen.setdefault(family, name)
    return {family: name if isinstance(name, str) else name[0] for family, name in sorted(chosen.items())}


def composite(config: Any) -> list[str]:
    """The names of the parts of a configuration that are configurations of their own."""
    return [name for name, value in vars(config).items() if isinstance(value, transformers.PreTrainedConfig)]


def small_fields(default: Any) -> dict[str, Any]:
    """Return a small copy of a default configuration: sizes by `TABLE`, lists by layer as long, widths a quarter."""
    fields: dict[str, Any] = {}
    known = default.to_dict()
    for name, value in known.items():
        if isinstance(value, bool):
            continue
        if (isinstance(value, int) and name in TABLE and not (name == "embed_dim" and "depths" in known)) or (
            value is None and name == "head_dim"
        ):
            fields[name] = TABLE[name]
        elif isinstance(value, int) and name.endswith("_token_id") and value >= VOCAB:
            fields[name] = 1
        elif name in BY_LAYER and isinstance(value, list | tuple):
            fields[name] = of_every_kind(list(value))
        elif name in WIDTHS and isinstance(value, list | tuple):
            fields[name] = [one // 2 if isinstance(one, int) and one % 64 == 0 else one for one in value]
        elif isinstance(value, dict) and "rope_theta" in value and default.model_type.endswith("text"):
            fields[name] = value | {"mrope_section": [2, 3, 3]}
        elif name == "image_size" and isinstance(value, list | tuple):
            fields[name] = [IMAGE] * len(value)
        elif name == "attn_layer_indices":
            fields[name] = [DEPTH - 1]
    for shared in ("num_key_value_heads", "swa_num_key_value_heads"):
        if known.get(shared) == known.get("num_attention_heads"):
            fields[shared] = HEADS
    if "qk_rope_head_dim" in fields:
        fields["head_dim"] = fields["qk_rope_head_dim"]
    if getattr(default, "is_encoder_decoder", False):
        fields |= {"decoder_start_token_id": 2, "pad_token_id": 0}
    return {name: value for name, value in fields.items() if name in known or name.endswith("_token_id")}


def of_every_kind(kinds: list[Any]) -> list[Any]:
    """The first layers' kinds, the last of these exchanged for kinds that come later."""
    chosen = kinds[:DEPTH]
    later = [kind for kind in dict.fromkeys(map(str, kinds)) if kind not in map(str, chosen)]
    for place, kind in enumerate(later[: DEPTH - 1], 1):
        chosen[-place] = next(one for one in kinds if str(one) == kind)
    return chosen


def built(family: str, *, seed: int = 0, tasks: Sequence[str] = TASKS) -> nn.Module:
    """A class, small, with random weights, in evaluation, its attention written out.

    Raises:
        ValueError: it is made of several parts, or too large; somebody else's class may raise any other error, too.
    """
    kind = transformers.CONFIG_MAPPING[family]
    default = kind()
    if parts := composite(default):
        raise ValueError(f"is made of {' and '.join(sorted(parts))}, which are here on their own")
    config = kind(**small_fields(default))
    owner = getattr(transformers, families(tasks)[family])
    with torch.device("meta"):
        count = sum(weight.numel() for weight in owner(config).parameters())
    if count > MOST:
        raise ValueError(f"has {count / 1e6:.0f} million parameters at these sizes")
    torch.manual_seed(seed)
    try:
        return owner._from_config(config, attn_implementation="eager").eval()
    except ValueError:
        return owner(config).eval()


def inputs_of(module: nn.Module, draw: torch.Generator) -> Iterator[dict[str, Any]]:
    """Inputs by the names of forward's parameters, in the shapes that a class may want.

    Raises:
        ValueError: it takes others.
    """
    takes, config = inspect.signature(module.forward).parameters, module.config
    name = module.main_input_name if module.main_input_name in takes or "kwargs" in takes else ""
    name = next((one for one in ("grid_thw", name, "pixel_values", "input_features") if one in takes), name)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    channels = getattr(config, "num_channels", None) or getattr(config, "in_channels", None) or 3
    if name == "input_ids":
        given = {"input_ids": words(draw)}
        both = "decoder_input_ids" in takes and "labels" not in takes
        yield given | ({"decoder_input_ids": words(draw)} if both else {})
        yield given | {"bbox": torch.randint(0, 50, (SEQUENCES, TOKENS, 4), generator=draw).sort(-1).values}
    elif name == "grid_thw":
        first = next(one for one in takes if one in ("hidden_states", "pixel_values"))
        size = channels * config.patch_size**2 * getattr(config, "temporal_patch_size", 1)
        yield {first: noise(SEQUENCES * 16, size), "grid_thw": torch.tensor([[1, 4, 4]] * SEQUENCES)}
    elif name in ("pixel_values", "pixel_values_videos"):
        side = getattr(config, "image_size", IMAGE)
        sides = tuple(side) if isinstance(side, list | tuple) else (side, side)
        frames = getattr(config, "num_frames", None) or getattr(config, "frames_per_clip", None)
        yield {name: noise(SEQUENCES, *([frames] if frames else []), channels, *sides)}
    elif name == "input_values":
        for shape in ((SOUND,), (1, SOUND), (getattr(config, "max_length", 1), getattr(config, "num_mel_bins", 1))):
            yield {"input_values": noise(SEQUENCES, *shape)}
    elif name == "input_features":
        mels = next((size for one in MELS if (size := getattr(config, one, None))), 80)
        for shape in ((mels, 8 * TOKENS), (8 * TOKENS, mels)):
            yield {"input_features": noise(SEQUENCES, *shape)}
    else:
        raise ValueError(f"takes {name or 'no input that is known here'}")


def words(draw: torch.Generator) -> Tensor:
    return torch.randint(5, VOCAB - 2, (SEQUENCES, TOKENS), generator=draw)


def batch(module: nn.Module, *, seed: int = 0) -> tuple[dict[str, Any], Callable[[Any], Tensor] | None]:
    """Inputs with labels; and a loss, where the class has none of its own.

    Raises:
        ValueError: it takes no inputs that are known here; or what the class raises for the first of them.
    """
    takes, name, draw = inspect.signature(module.forward).parameters, type(module).__name__, torch.Generator()
    labelled = "labels" in takes and not name.endswith("Model")
    error = None
    for given in inputs_of(module, draw.manual_seed(seed)):
        if labelled and "Classification" in name:
            given["labels"] = torch.randint(module.config.num_labels, (SEQUENCES,), generator=draw)
        elif labelled:
            causal = "Masked" not in name and not module.config.is_encoder_decoder and "CTC" not in name
            given["labels"] = given["input_ids"] if causal and "input_ids" in given else words(draw)
        try:
            own = getattr(module(**given), "loss", None)
        except Exception as failed:
            error = error or failed
            continue
        return given, projection if own is None else None
    raise error or ValueError("takes no inputs")


def projection(output: Any) -> Tensor:
    """The mean square of all tensors of floats in an output from random numbers."""
    draw = torch.Generator().manual_seed(1)
    values = output.values() if isinstance(output, Mapping) else output
    tensors = [one for one in tree_leaves(list(values) if not isinstance(values, Tensor) else values) if asked(one)]
    return torch.stack([(one - torch.randn(one.shape, generator=draw)).square().mean() for one in tensors]).mean()


def asked(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.requires_grad
