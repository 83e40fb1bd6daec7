"""A third list of modules that no rule of `probe` was made with: fixed before the first of them was judged.

Names of timm were drawn at random from what neither the table of classes nor the first two lists (commits 4c455338 and
1de0fb00) have. Options of x-transformers have values here, the lists before had switches. Families of transformers and
classes of vit-pytorch have other settings than their defaults. The modules at the end are written from memory of papers
and public code.
"""

import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.helpers import small_classes, small_modules

Single = small_modules.Single
WIDTH, DEPTH, HEADS, TOKENS, VOCAB, SAMPLES, SEED = 160, 7, 10, 28, 230, 3, 20_261_203
_ROWS = (WIDTH, 3 * WIDTH, DEPTH, HEADS, 2, 1, 0, WIDTH // HEADS, WIDTH // HEADS // 2, 3 * WIDTH // HEADS // 2)
TIMM = """
    efficientvim_m2 regnetx_002 vit_srelpos_small_patch16_224 efficientvit_l1 deepseek_vit_412m_align mixer_b16_224
    vgg16_bn cait_s24_224 inception_v4 swin_tiny_patch4_window7_224 cpubone_s0 swinv2_tiny_window8_256 hrnet_w32
    hiera_small_abswin_256 convmixer_1024_20_ks9_p14 crossvit_15_dagger_408 efficientvit_m5 starnet_s3 gcvit_small
    vit_small_resnet50d_s16_224 hardcorenas_b davit_small fastvit_mci0 twins_svt_small deit3_small_patch16_224
    cspnext_x inception_resnet_v2 ghostnetv2_100 repghostnet_058 lowformer_e2 poolformer_m48 mvitv2_small_cls
    gemma4_vit_570m halonet50ts mobilevitv2_150 eca_resnet33ts focalnet_small_srf levit_conv_512_s8 inception_v3
    pvt_v2_b2
"""
# By layers' options, and those of the model after a colon.
OPTIONS = """
    attn_kv_heads=2,rotary_pos_emb=1,ff_glu=1,ff_swish=1,use_rmsnorm=1,ff_no_bias=1 attn_sparse_topk=8
    attn_num_mem_kv=4 attn_max_attend_past=6 attn_value_dim_head=24 attn_qk_norm=1,attn_qk_norm_groups=2
    attn_kv_heads=1,attn_head_scale=1 attn_swiglu_values=1 attn_l2_distance=1 attn_add_zero_kv=1
    attn_gate_value_heads=1 attn_value_rmsnorm=1,attn_qk_rmsnorm=1 attn_on_attn=1 attn_cog_signed=1
    attn_rotate_num_heads=5,rotary_pos_emb=1 sandwich_coef=2 par_ratio=3 macaron=1,use_rmsnorm=1 shift_tokens=1
    num_residual_streams=4 num_residual_streams=2,ff_glu=1 use_layerscale=1,layerscale_init_value=0.1 unet_skips=1
    use_dynamic_tanh=1,dynamic_tanh_init_alpha=0.5 ff_mult=1 pre_norm=0 pre_norm=0,use_rmsnorm=1 layer_dropout=0.1
    rotary_xpos=1,rotary_pos_emb=1 rel_pos_bias=1,rel_pos_num_buckets=8 gated_multi_residual=1
    scale_residual=1,scale_residual_constant=0.5 ff_relu_squared=1,use_scalenorm=1 ff_post_act_ln=1,ff_glu=1
    ff_glu=1,ff_glu_mult_bias=1 attn_sublayer_dropout=0.1,ff_sublayer_dropout=0.1
    use_simple_rmsnorm=1,sandwich_norm=1 ff_glu=1:post_emb_norm=1 :num_memory_tokens=3 :scaled_sinu_pos_emb=1
    :l2norm_embed=1 :use_abs_pos_emb=0,emb_frac_gradient=0.1 :mixture_of_softmax=1 :sigsoftmax_logits=1
    :ff_deep_embed=1 :emb_dim=64 :logits_dim=230,emb_dropout=0.1 use_rmsnorm=1:recycling=1
"""
SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gpt2", {"activation_function": "relu", "scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False}),
    ("gpt2", {"n_inner": WIDTH, "layer_norm_epsilon": 1e-8}),
    ("openai-gpt", {"afn": "relu"}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}),
    ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True, "rms_norm_eps": 1e-8}),
    ("llama", {"pretraining_tp": 1, "initializer_range": 0.006}),
    ("mistral", {"sliding_window": 4, "hidden_act": "relu"}),
    ("qwen2", {"tie_word_embeddings": True, "use_sliding_window": True, "max_window_layers": 2}),
    ("qwen3", {"attention_bias": True, "num_key_value_heads": HEADS}),
    ("gemma", {"hidden_activation": "relu"}),
    ("gemma2", {"final_logit_softcapping": None, "attn_logit_softcapping": 10.0, "query_pre_attn_scalar": 64}),
    ("gemma3_text", {"query_pre_attn_scalar": 16, "tie_word_embeddings": False}),
    ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False}),
    ("gptj", {"activation_function": "gelu"}),
    ("falcon", {"parallel_attn": False, "bias": True}),
    ("falcon", {"alibi": True, "multi_query": False}),
    ("bloom", {"apply_residual_connection_post_layernorm": True}),
    ("opt", {"do_layer_norm_before": False}),
    ("opt", {"enable_bias": False, "activation_function": "gelu"}),
    ("bert", {"is_decoder": True, "hidden_act": "relu"}),
    ("bert-generation", {"is_decoder": True}),
    ("roberta", {"layer_norm_eps": 1e-3, "hidden_act": "silu"}),
    ("xlm-roberta", {"intermediate_size": WIDTH}),
    ("albert", {"num_hidden_groups": DEPTH}),
    ("albert", {"inner_group_num": 2, "embedding_size": 32}),
    ("electra", {"embedding_size": 40, "hidden_act": "relu"}),
    ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("umt5", {"feed_forward_proj": "relu"}),
    ("mt5", {"num_decoder_layers": 3}),
    ("bart", {"activation_function": "relu", "scale_embedding": True}),
    ("bart", {"decoder_layers": 4, "decoder_ffn_dim": WIDTH}),
    ("xglm", {"scale_embedding": False}),
    ("biogpt", {"scale_embedding": False, "hidden_act": "relu"}),
    ("phi", {"partial_rotary_factor": 1.0, "qk_layernorm": True}),
    ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True}),
    ("stablelm", {"qk_layernorm": True}),
    ("olmo", {"clip_qkv": 0.5}),
    ("olmo2", {"attention_bias": True, "hidden_act": "gelu"}),
    ("starcoder2", {"use_bias": False, "tie_word_embeddings": False}),
    ("cohere", {"use_qk_norm": True}),
    ("mixtral", {"num_experts_per_tok": 1}),
    ("qwen2_moe", {"decoder_sparse_step": 2, "norm_topk_prob": True}),
    ("granite", {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.0625}),
    ("persimmon", {"qk_layernorm": False}),
    ("gpt_bigcode", {"multi_query": False}),
    ("glm", {"attention_bias": False}),
    ("helium", {"head_dim": 32}),
    ("smollm3", {"no_rope_layer_interval": 2}),
    ("mamba", {"use_conv_bias": False}),
    ("mamba2", {"use_bias": True, "rms_norm": False}),
    ("xlm", {"sinusoidal_embeddings": True, "causal": True}),
    ("flaubert", {"pre_norm": True}),
    ("deberta-v2", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    ("mpnet", {"relative_attention_num_buckets": 8}),
    ("vit", {"qkv_bias": False, "hidden_act": "relu"}),
    ("beit", {"layer_scale_init_value": 1e-5, "use_relative_position_bias": True}),
    ("dinov2", {"use_swiglu_ffn": True}),
    ("swin", {"use_absolute_embeddings": True, "window_size": 4}),
    ("convnext", {"layer_scale_init_value": 0.0}),
    ("poolformer", {"use_layer_scale": False}),
    ("resnet", {"layer_type": "basic"}),
    ("regnet", {"layer_type": "x"}),
    ("bit", {"layer_type": "bottleneck"}),
    ("whisper", {"scale_embedding": True, "activation_function": "relu"}),
    ("hubert", {"do_stable_layer_norm": True, "feat_extract_norm": "layer"}),
    ("siglip_vision_model", {"hidden_act": "relu"}),
    ("nanochat", {"num_key_value_heads": 1}),
    ("bitnet", {"hidden_act": "silu"}),
    ("diffllama", {"attention_bias": True}),
    ("nemotron", {"partial_rotary_factor": 1.0}),
    ("lfm2", {"conv_bias": True}),
    ("ctrl", {"layer_norm_epsilon": 1e-3}),
)
VISION: tuple[tuple[str, dict[str, Any]], ...] = (
    ("vit.ViT", {"pool": "mean", "emb_dropout": 0.1}),
    ("deepvit.DeepViT", {"pool": "mean"}),
    ("cait.CaiT", {"layer_dropout": 0.1}),
    ("normalized_vit.nViT", {"residual_lerp_scale_init": 0.1}),
    ("vit_with_keel_post_ln.ViT", {"keel_residual_scale": 4.0}),
    ("simple_uvit.SimpleUViT", {"num_register_tokens": 1}),
    ("rvt.RvT", {"use_rotary": False, "use_ds_conv": False}),
    ("rvt.RvT", {"use_glu": False}),
    ("vit_with_decorr.ViT", {"pool": "mean", "dropout": 0.1}),
    ("t2t.T2TViT", {"t2t_layers": ((7, 4), (3, 2))}),
    ("parallel_vit.ViT", {"num_parallel_branches": 3}),
    ("simple_vit.SimpleViT", {"dim_head": 32}),
    ("vit_for_small_dataset.ViT", {"pool": "mean"}),
    ("xcit.XCiT", {"local_patch_kernel_size": 5}),
)


def of_family(number: int) -> Single:
    """A family of transformers with settings that differ from its defaults."""
    (family, settings), fields = SETTINGS[number], small_classes.small_fields
    with pytest.MonkeyPatch.context() as patch:
        rows = zip(small_classes.SIZES, (*_ROWS, VOCAB, *(size for size, _ in small_classes.SIZES[11:])), strict=True)
        patch.setattr(small_classes, "TABLE", {name: size for (_, names), size in rows for name in names.split()})
        patch.setattr(small_classes, "small_fields", lambda default: fields(default) | settings)
        for name, size in (("DEPTH", DEPTH), ("HEADS", HEADS), ("TOKENS", TOKENS), ("SEQUENCES", SAMPLES)):
            patch.setattr(small_classes, name, size)
        module = small_classes.built(family, seed=SEED)
        return module, *small_classes.batch(module, seed=SEED)


def of_vision(number: int) -> Single:
    path, settings = VISION[number]
    part, name = path.split(".")
    owner = getattr(importlib.import_module(f"vit_pytorch.{part}"), name)
    sizes = {
        "image_size": 64,
        "patch_size": 16,
        "num_classes": 10,
        "dim": WIDTH,
        "depth": DEPTH,
        "heads": HEADS,
        "mlp_dim": 2 * WIDTH,
        "dim_head": WIDTH // HEADS,
        "cls_depth": 2,
    }
    taken = {one: size for one, size in sizes.items() if one in small_modules._takes(owner)}
    return small_modules.of_images(lambda: owner(**(taken | settings)).train(), 64)


def words(seed: int = SEED) -> Tensor:
    return torch.randint(1, VOCAB, (SAMPLES, TOKENS + 1), generator=torch.Generator().manual_seed(seed))


def of_words(make: Callable[[], nn.Module]) -> Single:
    ids = words()
    return make(), ids[:, :-1], small_modules.next_word(ids)


def of_options(text: str) -> Single:
    library = small_modules.x_transformers
    layers, model = (
        {
            name: float(value) if "." in value else int(value)
            for name, value in (one.split("=") for one in of.split(",") if one)
        }
        for of in (text if ":" in text else f"{text}:").split(":")
    )
    switch = {
        name: bool(value) if value in (0, 1) and name not in ("shift_tokens", "ff_mult", "attn_kv_heads") else value
        for name, value in layers.items()
    }
    made = library.Decoder(dim=WIDTH, depth=DEPTH, heads=HEADS, attn_dim_head=WIDTH // HEADS, **switch)
    return of_words(
        lambda: library.TransformerWrapper(
            num_tokens=VOCAB,
            max_seq_len=TOKENS,
            attn_layers=made,
            **{name: bool(value) if value in (0, 1) else value for name, value in model.items()},
        )
    )


class Written(nn.Module):
    def __init__(self, does: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        for name, part in {"does": does, **parts}.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.does(self, *inputs)


def linear(rows: int = WIDTH, columns: int = WIDTH, *, bias: bool = True, std: float = 0.0) -> nn.Linear:
    made = nn.Linear(columns, rows, bias=bias)
    if std:
        nn.init.normal_(made.weight, std=std)
    return made


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


MASK = torch.ones(TOKENS, TOKENS).tril().bool()
BACK = (torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)).clamp(min=0)


def qkv(m: Any, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(split(one) for one in m.qkv(x).chunk(3, -1))


def attending(scores: Callable[[Any, Tensor, Tensor], Tensor], **parts: Any) -> nn.Module:
    """Causal attention with given scores of queries and keys."""

    def mixed(m: Any, x: Tensor) -> Tensor:
        q, k, v = qkv(m, x)
        return m.out(joined(m.scores(m, q, k).masked_fill(~MASK, -1e9).softmax(-1) @ v))

    return Written(mixed, scores=scores, qkv=linear(3 * WIDTH), out=linear(), **parts)


def recurrent(step: Callable[..., tuple[Tensor, Tensor]], begin: Callable[[Tensor], Tensor], **parts: Any) -> nn.Module:
    """A scan over positions in a loop, as in reference implementations."""

    def scanned(m: Any, x: Tensor) -> Tensor:
        state, outputs = m.begin(x), []
        for position in range(x.shape[1]):
            state, y = m.step(m, state, x[:, position])
            outputs.append(y)
        return m.out(torch.stack(outputs, 1))

    return Written(scanned, step=step, begin=begin, out=linear(), **parts)


def delta(m: Any, s: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """DeltaNet's: keys of norm 1 erase what they held."""
    q, k, v = (one.unflatten(-1, (HEADS, -1)) for one in m.qkv(x).chunk(3, -1))
    k, beta = functional.normalize(k, dim=-1), m.beta(x).sigmoid()[..., None]
    s = s + k[..., :, None] * (beta * (v - torch.einsum("bhd,bhde->bhe", k, s)))[..., None, :]
    return s, torch.einsum("bhd,bhde->bhe", q, s).flatten(1)


def gated_sum(m: Any, s: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Gated linear attention: a state of keys times values, with a gate per key."""
    q, k, v = (one.unflatten(-1, (HEADS, -1)) for one in m.qkv(x).chunk(3, -1))
    s = (
        s * (functional.logsigmoid(m.gate(x)) / 16).exp().unflatten(-1, (HEADS, -1))[..., None]
        + k[..., None] * v[..., None, :]
    )
    return s, functional.silu(m.silu(x)) * torch.einsum("bhd,bhde->bhe", q, s).flatten(1) * (WIDTH // HEADS) ** -0.5


def selective(m: Any, s: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mamba's state space with 8 states for every channel."""
    step, (b, c) = functional.softplus(m.step_size(x)), m.bc(x).chunk(2, -1)
    s = s * (-step[..., None] * m.a_log.exp()).exp() + (step * x)[..., None] * b[:, None]
    return s, (s * c[:, None]).sum(-1) + m.skip * x


def minimal(m: Any, s: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The update of minGRU."""
    gate = m.gate(x).sigmoid()
    s = (1 - gate) * s + gate * m.value(x)
    return s, s


def gated_recurrence(m: Any, s: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Griffin's RG-LRU."""
    rate = torch.exp(-8 * functional.softplus(m.decay) * m.forget(x).sigmoid())
    s = rate * s + (1 - rate.square()).sqrt() * m.enter(x).sigmoid() * x
    return s, s


def long_convolution(m: Any, x: Tensor) -> Tensor:
    """Hyena's: a filter by a small network of positions, applied by Fourier transform, between two gates."""
    a, b, v = m.enter(x).chunk(3, -1)
    kernel = m.filter(m.times) * torch.exp(-m.times.mean(-1, keepdim=True).abs() * m.rates)
    mixed = torch.fft.irfft(torch.fft.rfft(b * v, 2 * TOKENS, 1) * torch.fft.rfft(kernel, 2 * TOKENS, 0), 2 * TOKENS, 1)
    return m.out(a * mixed[:, :TOKENS])


def state_space(m: Any, x: Tensor) -> Tensor:
    """S4D's diagonal state space as a convolution."""
    powers = torch.exp(-m.rates.exp()[..., None] * torch.arange(TOKENS))
    kernel = (m.into[..., None] * powers).sum(1)
    y = torch.fft.irfft(torch.fft.rfft(x.transpose(1, 2), 2 * TOKENS) * torch.fft.rfft(kernel, 2 * TOKENS), 2 * TOKENS)
    return m.out(functional.gelu(y[..., :TOKENS].transpose(1, 2) + m.skip * x))


def positive(x: Tensor) -> Tensor:
    return functional.elu(x) + 1


def linear_attention(m: Any, x: Tensor) -> Tensor:
    q, k, v = qkv(m, x)
    q, k = positive(q), positive(k)
    sums = (k[..., None] * v[..., None, :]).cumsum(2)
    return m.out(joined(torch.einsum("bhnd,bhnde->bhne", q, sums) / (q * k.cumsum(2)).sum(-1, keepdim=True)))


def attention_free(m: Any, x: Tensor) -> Tensor:
    """AFT simple: sums of values with weights exp(k)."""
    q, k, v = m.qkv(x).chunk(3, -1)
    weights = k.exp()
    return m.out(q.sigmoid() * (weights * v).cumsum(1) / weights.cumsum(1))


def spatial_gate(m: Any, x: Tensor) -> Tensor:
    """gMLP's, causal: gates begin at 1."""
    u, v = functional.gelu(m.up(x)).chunk(2, -1)
    return m.down(u * (m.places.tril() @ m.norm(v) + m.bias[:, None]))


def differential(m: Any, x: Tensor) -> Tensor:
    """The Differential Transformer's: two softmaxes, one subtracted."""
    q, k, v = qkv(m, x)
    first, second = (
        (a @ b.transpose(-1, -2) * (WIDTH // HEADS // 2) ** -0.5).masked_fill(~MASK, -1e9).softmax(-1)
        for a, b in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)
    )
    share = torch.exp((m.l1 * m.l2).sum()) - torch.exp((m.l3 * m.l4).sum()) + 0.5
    return m.out(joined(0.5 * functional.rms_norm((first - share * second) @ v, (WIDTH // HEADS,))))


def latent(m: Any, x: Tensor) -> Tensor:
    """DeepSeek's latent keys and values."""
    q, (k, v) = split(m.query(x)), (split(one) for one in m.up(m.norm(m.down(x))).chunk(2, -1))
    return m.out(joined(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))


def routed(m: Any, x: Tensor) -> Tensor:
    """Switch: the best of four experts, times its probability."""
    best, chosen = m.router(x).softmax(-1).max(-1)
    return sum((chosen == k)[..., None] * best[..., None] * of(x) for k, of in enumerate(m.experts))


def ternary(m: Any, x: Tensor) -> Tensor:
    """BitNet's weights of -1, 0 and 1, with a gradient that passes the rounding."""
    w, scale = m.weight, m.weight.abs().mean()
    x = functional.rms_norm(x, x.shape[-1:])
    return functional.linear(x, w + ((w / scale).round().clamp(-1, 1) * scale - w).detach())


def bits(rows: int, columns: int) -> nn.Module:
    return Written(ternary, weight=nn.Parameter(torch.randn(rows, columns) * 0.02))


def waves(count: int = WIDTH) -> Tensor:
    angles = torch.arange(TOKENS)[:, None] * torch.exp(torch.arange(0, count, 2) * -(math.log(10_000) / count))
    return torch.cat([angles.sin(), angles.cos()], -1)


def scores(m: Any, q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5


def by_angle(m: Any, q: Tensor, k: Tensor) -> Tensor:
    """Swin v2's: cosines times a temperature of 10."""
    return (
        functional.normalize(q, dim=-1)
        @ functional.normalize(k, dim=-1).transpose(-1, -2)
        * m.heat.clamp(max=4.6).exp()
    )


MIXERS: dict[str, Callable[[], nn.Module]] = {
    "softmax": lambda: attending(scores),
    "learned distances, as T5": lambda: attending(
        lambda m, q, k: q @ k.transpose(-1, -2) + m.places(BACK.clamp(max=15)).permute(2, 0, 1),
        places=nn.Embedding(16, HEADS),
    ),
    "Transformer-XL": lambda: attending(
        lambda m, q, k: (
            (
                (q + m.u) @ k.transpose(-1, -2)
                + torch.einsum("bhid,ijhd->bhij", q + m.v, m.r(waves()[BACK]).unflatten(-1, (HEADS, -1)))
            )
            * q.shape[-1] ** -0.5
        ),
        u=nn.Parameter(torch.zeros(HEADS, 1, 16)),
        v=nn.Parameter(torch.zeros(HEADS, 1, 16)),
        r=linear(bias=False),
    ),
    "cosines": lambda: attending(by_angle, heat=nn.Parameter(torch.full((HEADS, 1, 1), math.log(10)))),
    "queries and keys normed": lambda: attending(
        lambda m, q, k: scores(m, m.q_norm(q), m.k_norm(k)), q_norm=nn.LayerNorm(16), k_norm=nn.LayerNorm(16)
    ),
    "a softmax that may be 0": lambda: Written(
        lambda m, x: (
            lambda q, k, v: m.out(
                joined((lambda s: (lambda e: e / (1 + e.sum(-1, keepdim=True)))(s.exp() * MASK))(scores(m, q, k)) @ v)
            )
        )(*qkv(m, x)),
        qkv=linear(3 * WIDTH),
        out=linear(),
    ),
    "Synthesizer": lambda: Written(
        lambda m, x: m.out(joined(m.fixed.masked_fill(~MASK, -1e9).softmax(-1) @ split(m.value(x)))),
        fixed=nn.Parameter(torch.randn(HEADS, TOKENS, TOKENS)),
        value=linear(),
        out=linear(),
    ),
    "differential": lambda: Written(
        differential,
        qkv=linear(3 * WIDTH, bias=False),
        out=linear(bias=False),
        **{f"l{k}": nn.Parameter(0.1 * torch.randn(8)) for k in range(1, 5)},
    ),
    "latent": lambda: Written(
        latent,
        query=linear(bias=False),
        down=linear(48, bias=False),
        norm=nn.RMSNorm(48),
        up=linear(2 * WIDTH, 48, bias=False),
        out=linear(bias=False),
    ),
    "linear": lambda: Written(linear_attention, qkv=linear(3 * WIDTH, bias=False), out=linear()),
    "attention-free": lambda: Written(attention_free, qkv=linear(3 * WIDTH), out=linear()),
    "DeltaNet": lambda: recurrent(
        delta, lambda x: x.new_zeros(len(x), HEADS, 16, 16), qkv=linear(3 * WIDTH, bias=False), beta=linear(HEADS)
    ),
    "gated linear": lambda: recurrent(
        gated_sum,
        lambda x: x.new_zeros(len(x), HEADS, 16, 16),
        qkv=linear(3 * WIDTH, bias=False),
        gate=linear(),
        silu=linear(),
    ),
    "Mamba": lambda: recurrent(
        selective,
        lambda x: x.new_zeros(len(x), WIDTH, 8),
        step_size=linear(),
        bc=linear(16, bias=False),
        a_log=nn.Parameter(torch.arange(1.0, 9).log().repeat(WIDTH, 1)),
        skip=nn.Parameter(torch.ones(WIDTH)),
    ),
    "minGRU": lambda: recurrent(minimal, lambda x: x.new_zeros(len(x), WIDTH), gate=linear(), value=linear()),
    "Griffin": lambda: recurrent(
        gated_recurrence,
        lambda x: x.new_zeros(len(x), WIDTH),
        forget=linear(),
        enter=linear(),
        decay=nn.Parameter(torch.linspace(-4.3, -0.5, WIDTH)),
    ),
    "Hyena": lambda: Written(
        long_convolution,
        enter=linear(3 * WIDTH),
        out=linear(),
        times=waves(16),
        rates=torch.linspace(0.1, 1, WIDTH),
        filter=nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, WIDTH)),
    ),
    "S4D": lambda: Written(
        state_space,
        rates=nn.Parameter(torch.arange(1.0, 9).log().repeat(WIDTH, 1) - 2),
        into=nn.Parameter(torch.randn(WIDTH, 8) / 8),
        skip=nn.Parameter(torch.randn(WIDTH)),
        out=linear(),
    ),
    "GRU": lambda: Written(lambda m, x: m.rnn(x)[0], rnn=nn.GRU(WIDTH, WIDTH, batch_first=True)),
}


def mlp(act: Callable[[], nn.Module] = nn.GELU, times: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, times * WIDTH), act(), nn.Linear(times * WIDTH, WIDTH))


def swiglu() -> nn.Module:
    return Written(
        lambda m, x: m.down(functional.silu(m.gate(x)) * m.up(x)),
        gate=linear(432, bias=False),
        up=linear(432, bias=False),
        down=linear(WIDTH, 432, bias=False),
    )


def pre(mixer: str = "softmax", second: Callable[[], nn.Module] = mlp, norm: Any = nn.LayerNorm) -> nn.Module:
    return Written(
        lambda m, x: (lambda y: y + m.ff(m.norm2(y)))(x + m.mix(m.norm1(x))),
        norm1=norm(WIDTH),
        mix=MIXERS[mixer](),
        norm2=norm(WIDTH),
        ff=second(),
    )


def unit(x: Tensor) -> Tensor:
    return functional.normalize(x, dim=-1)


def norm_former() -> nn.Module:
    return Written(
        lambda m, x: (lambda y: y + m.ff2(m.norm4(functional.gelu(m.ff1(m.norm3(y))))))(x + m.norm2(m.mix(m.norm1(x)))),
        mix=MIXERS["softmax"](),
        ff1=linear(4 * WIDTH),
        ff2=linear(WIDTH, 4 * WIDTH),
        norm4=nn.LayerNorm(4 * WIDTH),
        **{f"norm{k}": nn.LayerNorm(WIDTH) for k in (1, 2, 3)},
    )


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "OLMo 2": lambda: Written(
        lambda m, x: (lambda y: y + m.norm2(m.ff(y)))(x + m.norm1(m.mix(x))),
        norm1=nn.RMSNorm(WIDTH),
        norm2=nn.RMSNorm(WIDTH),
        mix=MIXERS["queries and keys normed"](),
        ff=swiglu(),
    ),
    "NormFormer": norm_former,
    "nGPT": lambda: Written(
        lambda m, x: (lambda y: unit(y + 0.1 * (unit(m.ff(y)) - y)))(unit(x + 0.1 * (unit(m.mix(x)) - x))),
        mix=MIXERS["cosines"](),
        ff=swiglu(),
    ),
    "T-Fixup, no norm": lambda: Written(
        lambda m, x: (lambda y: y + 0.4 * m.ff(y))(x + 0.4 * m.mix(x)), mix=MIXERS["softmax"](), ff=mlp(nn.ReLU)
    ),
    "Admin": lambda: Written(
        lambda m, x: (lambda y: m.norm2(m.omega2 * y + m.ff(y)))(m.norm1(m.omega1 * x + m.mix(x))),
        mix=MIXERS["softmax"](),
        ff=mlp(nn.ReLU),
        norm1=nn.LayerNorm(WIDTH),
        norm2=nn.LayerNorm(WIDTH),
        omega1=nn.Parameter(torch.full((WIDTH,), 2.0)),
        omega2=nn.Parameter(torch.full((WIDTH,), 2.0)),
    ),
    "gMLP": lambda: Written(
        lambda m, x: x + spatial_gate(m, m.enter(x)),
        enter=nn.LayerNorm(WIDTH),
        up=linear(2 * WIDTH),
        norm=nn.LayerNorm(WIDTH),
        places=nn.Parameter(1e-3 * torch.randn(TOKENS, TOKENS)),
        bias=nn.Parameter(torch.ones(TOKENS)),
        down=linear(),
    ),
    "Switch": lambda: pre(
        second=lambda: Written(
            routed, router=linear(4, bias=False), experts=nn.ModuleList(mlp(nn.ReLU, 2) for _ in range(4))
        )
    ),
    "BitNet": lambda: pre(second=lambda: nn.Sequential(bits(2 * WIDTH, WIDTH), nn.SiLU(), bits(WIDTH, 2 * WIDTH))),
    "ReLU squared": lambda: pre(
        second=lambda: Written(
            lambda m, x: m.down(m.up(x).relu().square()),
            up=linear(4 * WIDTH, bias=False),
            down=linear(WIDTH, 4 * WIDTH, bias=False),
        )
    ),
    "weights normed": lambda: pre(
        second=lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(linear(2 * WIDTH)), nn.GELU(), linear(WIDTH, 2 * WIDTH)
        )
    ),
    "orthogonal weights": lambda: pre(
        second=lambda: nn.Sequential(*[nn.utils.parametrizations.orthogonal(linear()), nn.GELU(), linear()])
    ),
    "highway": lambda: Written(
        lambda m, x: (lambda gate: gate * m.value(x).relu() + (1 - gate) * x)(m.gate(x).sigmoid()),
        value=linear(),
        gate=linear(),
    ),
    "GLU of a temporal network": lambda: Written(
        lambda m, x: m.norm(x + functional.glu(m.gate(functional.elu(m.second(functional.elu(m.first(x))))), -1)),
        first=linear(),
        second=linear(),
        gate=linear(2 * WIDTH),
        norm=nn.LayerNorm(WIDTH),
    ),
    "causal convolutions, weights normed": lambda: Written(
        lambda m, x: (
            x
            + m.second(functional.pad(m.first(functional.pad(x.transpose(1, 2), (2, 0))).relu(), (2, 0)))
            .relu()
            .transpose(1, 2)
        ).relu(),
        first=nn.utils.parametrizations.weight_norm(nn.Conv1d(WIDTH, WIDTH, 3)),
        second=nn.utils.parametrizations.weight_norm(nn.Conv1d(WIDTH, WIDTH, 3)),
    ),
    "conformer": lambda: Written(
        lambda m, x: (lambda y: m.norm5(y + 0.5 * m.ff2(m.norm4(y))))(
            (
                lambda y: (
                    y
                    + m.conv(functional.pad(functional.glu(m.wide(m.norm3(y)), -1).transpose(1, 2), (4, 0))).transpose(
                        1, 2
                    )
                )
            )((lambda y: y + m.mix(m.norm2(y)))(x + 0.5 * m.ff1(m.norm1(x))))
        ),
        ff1=mlp(nn.SiLU),
        ff2=mlp(nn.SiLU),
        mix=MIXERS["softmax"](),
        wide=linear(2 * WIDTH),
        conv=nn.Conv1d(WIDTH, WIDTH, 5, groups=WIDTH),
        **{f"norm{k}": nn.LayerNorm(WIDTH) for k in range(1, 6)},
    ),
}


def initialized(module: nn.Module, kind: str) -> nn.Module:
    """Weights as GPT-2, JAX's LeCun, truncated, orthogonal or torch draw them."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding) and kind != "torch":
            draw = {
                "gpt": partial(nn.init.normal_, std=0.02),
                "truncated": partial(nn.init.trunc_normal_, std=0.02),
                "lecun": partial(nn.init.normal_, std=part.weight.shape[-1] ** -0.5),
                "orthogonal": nn.init.orthogonal_,
            }
            draw[kind if isinstance(part, nn.Linear) else "gpt"](part.weight)
            nn.init.zeros_(torch.zeros(1) if getattr(part, "bias", None) is None else part.bias)
    return module


def model(
    block: Callable[[], nn.Module], kind: str = "gpt", *, norm: Any = nn.LayerNorm, skips: bool = False
) -> nn.Module:
    """A language model; with skips, layers of the second half get what the first half gave, as in U-nets."""

    def run(m: Any, ids: Tensor) -> Tensor:
        x, kept = m.embed(ids) + m.places, []
        for number, layer in enumerate(m.blocks):
            if skips and number >= (DEPTH + 1) // 2:
                x = x + m.weights[number] * kept.pop()
            x = layer(x)
            kept += [x] if number < DEPTH // 2 else []
        return m.head(m.norm(x))

    places = nn.Parameter(0.02 * torch.randn(TOKENS, WIDTH))
    return initialized(
        Written(
            run,
            embed=nn.Embedding(VOCAB, WIDTH),
            places=places,
            blocks=nn.ModuleList(block() for _ in range(DEPTH)),
            norm=norm(WIDTH),
            head=linear(VOCAB, bias=False),
            weights=nn.Parameter(torch.ones(DEPTH)),
        ),
        kind,
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{f"{name}, pre": partial(model, partial(pre, name)) for name in MIXERS if name != "softmax"},
    **{name: partial(model, block) for name, block in BLOCKS.items()},
    **{f"pre, {kind}": partial(model, pre, kind) for kind in ("torch", "lecun", "truncated", "orthogonal")},
    **{
        f"{name}, torch's weights": partial(model, BLOCKS[name], "torch")
        for name in ("OLMo 2", "NormFormer", "Admin", "conformer")
    },
    "skips": partial(model, pre, skips=True),
    "SwiGLU, RMS": partial(model, partial(pre, second=swiglu, norm=nn.RMSNorm), norm=nn.RMSNorm),
}


def conv(into: int, out: int, size: int = 3, **more: Any) -> nn.Conv2d:
    return nn.Conv2d(into, out, size, padding=size // 2, bias=False, **more)


def branch(make: Callable[[], nn.Module], after: Callable[[Tensor], Tensor] = lambda x: x) -> Callable[[], nn.Module]:
    return lambda: Written(lambda m, x: after(x + m.body(x)), body=make())


def squeezed(m: Any, x: Tensor) -> Tensor:
    return x * m.out(functional.silu(m.enter(x.mean((2, 3))))).sigmoid()[..., None, None]


def shuffled(m: Any, x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    return torch.stack([a, m.body(b)], 2).flatten(1, 2)


C = 48
SQUEEZE = lambda width: Written(squeezed, enter=nn.Linear(width, 12), out=nn.Linear(12, width))  # noqa: E731
UNITS: dict[str, Callable[[], nn.Module]] = {
    "PreAct ResNet": branch(
        lambda: nn.Sequential(nn.BatchNorm2d(C), nn.ReLU(), conv(C, C), nn.BatchNorm2d(C), nn.ReLU(), conv(C, C))
    ),
    "bottlenecks": branch(
        lambda: nn.Sequential(
            conv(C, 24, 1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            conv(24, 24),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            conv(24, C, 1),
            nn.BatchNorm2d(C),
        ),
        torch.relu,
    ),
    "MobileNetV2": branch(
        lambda: nn.Sequential(
            conv(C, 4 * C, 1),
            nn.BatchNorm2d(4 * C),
            nn.ReLU6(),
            conv(4 * C, 4 * C, groups=4 * C),
            nn.BatchNorm2d(4 * C),
            nn.ReLU6(),
            conv(4 * C, C, 1),
            nn.BatchNorm2d(C),
        )
    ),
    "EfficientNet": branch(
        lambda: nn.Sequential(
            conv(C, 4 * C, 1),
            nn.BatchNorm2d(4 * C, 1e-3),
            nn.SiLU(),
            conv(4 * C, 4 * C, 5, groups=4 * C),
            nn.BatchNorm2d(4 * C, 1e-3),
            nn.SiLU(),
            SQUEEZE(4 * C),
            conv(4 * C, C, 1),
            nn.BatchNorm2d(C, 1e-3),
        )
    ),
    "SE-ResNet": branch(
        lambda: nn.Sequential(conv(C, C), nn.BatchNorm2d(C), nn.ReLU(), conv(C, C), nn.BatchNorm2d(C), SQUEEZE(C)),
        torch.relu,
    ),
    "ShuffleNet": lambda: Written(
        shuffled,
        body=nn.Sequential(
            conv(24, 24, 1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            conv(24, 24, groups=24),
            nn.BatchNorm2d(24),
            conv(24, 24, 1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
        ),
    ),
    "diffusion's units": branch(
        lambda: nn.Sequential(
            nn.GroupNorm(8, C), nn.SiLU(), conv(C, C), nn.GroupNorm(8, C), nn.SiLU(), nn.Dropout(0.1), conv(C, C)
        )
    ),
    "Fixup": branch(
        lambda: Written(
            lambda m, x: m.scale * m.second((m.first(x + m.b1) + m.b2).relu() + m.b3) + m.b4,
            first=conv(C, C),
            second=conv(C, C),
            scale=nn.Parameter(torch.ones(1)),
            **{f"b{k}": nn.Parameter(torch.zeros(1)) for k in range(1, 5)},
        ),
        torch.relu,
    ),
    "ConvMixer": lambda: nn.Sequential(
        branch(lambda: nn.Sequential(conv(C, C, 7, groups=C), nn.GELU(), nn.BatchNorm2d(C)))(),
        conv(C, C, 1),
        nn.GELU(),
        nn.BatchNorm2d(C),
    ),
    "RepVGG": lambda: Written(
        lambda m, x: (m.norm(x) + m.wide(x) + m.small(x)).relu(),
        norm=nn.BatchNorm2d(C),
        wide=nn.Sequential(conv(C, C), nn.BatchNorm2d(C)),
        small=nn.Sequential(conv(C, C, 1), nn.BatchNorm2d(C)),
    ),
    "SELU": lambda: nn.Sequential(conv(C, C), nn.SELU()),
    "instance norms": branch(
        lambda: nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(C, C, 3),
            nn.InstanceNorm2d(C),
            nn.ReLU(),
            nn.ReflectionPad2d(1),
            nn.Conv2d(C, C, 3),
            nn.InstanceNorm2d(C),
        )
    ),
}


def of_units(name: str) -> Single:
    parts = (
        nn.Conv2d(3, C, 4, 4),
        nn.Sequential(*(UNITS[name]() for _ in range(DEPTH))),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return small_modules.of_images(lambda: nn.Sequential(*parts, nn.Linear(C, 10)), 64)


def of_table(make: Callable[[], nn.Module]) -> Single:
    """Columns of numbers with a number to predict."""
    x = torch.randn(32, 12, generator=torch.Generator().manual_seed(SEED))
    y = x[:, :1].sin() + x[:, 1:2]
    return make(), x, lambda output: functional.mse_loss(output, y)


def in_a_row(layer: Callable[[], nn.Module], width: int = 64, *, first: int = 12) -> nn.Module:
    return nn.Sequential(nn.Linear(first, width), nn.Sequential(*(layer() for _ in range(DEPTH))), nn.Linear(width, 1))


def sine(m: Any, x: Tensor) -> Tensor:
    return (30 * m.linear(x)).sin()


def siren() -> nn.Module:
    made = Written(sine, linear=nn.Linear(64, 64))
    nn.init.uniform_(made.linear.weight, -((6 / 64) ** 0.5) / 30, (6 / 64) ** 0.5 / 30)
    return made


def by_columns(m: Any, x: Tensor) -> Tensor:
    """FT-Transformer: a token for every column."""
    tokens = x[..., None] * m.weight + m.bias
    return m.head(m.body(torch.cat([m.cls.expand(len(x), -1, -1), tokens], 1))[:, 0])


TABLES: dict[str, Callable[[], nn.Module]] = {
    "tabular ResNet": lambda: in_a_row(
        branch(
            lambda: nn.Sequential(
                nn.BatchNorm1d(64), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 64), nn.Dropout(0.1)
            )
        )
    ),
    "SELU, in a row": lambda: in_a_row(lambda: nn.Sequential(nn.Linear(64, 64), nn.SELU())),
    "tanh, in a row": lambda: in_a_row(lambda: nn.Sequential(nn.Linear(64, 64), nn.Tanh())),
    "batch norm, in a row": lambda: in_a_row(lambda: nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())),
    "SIREN": lambda: in_a_row(siren),
    "residual, SwiGLU": lambda: in_a_row(
        branch(
            lambda: Written(
                lambda m, x: m.down(functional.silu(m.gate(m.norm(x))) * m.up(x)),
                norm=nn.LayerNorm(64),
                up=nn.Linear(64, 128),
                gate=nn.Linear(64, 128),
                down=nn.Linear(128, 64),
            )
        )
    ),
    "FT-Transformer": lambda: Written(
        by_columns,
        weight=nn.Parameter(torch.rand(12, 64) * 0.25 - 0.125),
        bias=nn.Parameter(torch.rand(12, 64) * 0.25 - 0.125),
        cls=nn.Parameter(torch.rand(1, 1, 64) * 0.25 - 0.125),
        head=nn.Linear(64, 1),
        body=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(64, 8, 128, 0.1, "relu", batch_first=True, norm_first=True),
            DEPTH,
            enable_nested_tensor=False,
        ),
    ),
    "mixer of columns": lambda: nn.Sequential(
        nn.Unflatten(1, (12, 1)),
        nn.Linear(1, 64),
        nn.Sequential(
            *(
                Written(
                    lambda m, x: (lambda y: y + m.width(m.n2(y)))(
                        x + m.columns(m.n1(x).transpose(1, 2)).transpose(1, 2)
                    ),
                    n1=nn.LayerNorm(64),
                    n2=nn.LayerNorm(64),
                    columns=nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12)),
                    width=nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)),
                )
                for _ in range(DEPTH)
            )
        ),
        nn.Flatten(),
        nn.Linear(768, 1),
    ),
}


def subjects() -> dict[tuple[str, str], Callable[[], Single]]:
    made: dict[str, tuple[Any, Callable[[Any], Single]]] = {
        "timm": (TIMM.split(), small_modules.of_timm),
        "x-transformers": (OPTIONS.split(), of_options),
        "written": (MODELS, lambda name: of_words(MODELS[name])),
        "written for images": (UNITS, of_units),
        "written for tables": (TABLES, lambda name: of_table(TABLES[name])),
    }
    found = {
        (f"held out: {package}", name): partial(make, name) for package, (names, make) in made.items() for name in names
    }
    for package, settings, make in (("transformers", SETTINGS, of_family), ("vit-pytorch", VISION, of_vision)):
        for number, (name, of) in enumerate(settings):
            found[f"held out: {package}", f"{name} {' '.join(f'{k}={v}' for k, v in of.items())}"] = partial(
                make, number
            )
    return found
