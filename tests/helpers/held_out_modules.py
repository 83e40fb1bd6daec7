"""Modules that no rule of `probe` was made with: fixed before the first of them was judged.

Lists of names were drawn at random: of every file of timm a second model of at most 20 million parameters, pairs of
options of x-transformers, and families of transformers, here at other sizes and with another head where one exists.
The module classes at the end are written from memory of public repositories.
"""

import importlib
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.helpers import small_classes, small_modules

Single = small_modules.Single
WIDTH, DEPTH, HEADS, TOKENS, VOCAB, SAMPLES, SEED = 96, 6, 4, 32, 300, 3, 20_261_129
_ROWS = (WIDTH, 2 * WIDTH, DEPTH, HEADS, 2, 1, 0, WIDTH // HEADS, WIDTH // HEADS // 2, 3 * WIDTH // HEADS // 2)
TIMM = """
    lambda_resnet50ts regnetz_b16 cait_xxs24_384 coat_tiny convnext_femto_ols cpubone_b0_bfrobust crossvit_9_240
    darknet21 cspnext_s deit_tiny_patch16_224 densenet169 dla60x dpn68 edgenext_small_rw efficientformerv2_s2 mixnet_s
    efficientvim_m3 efficientvit_b1 efficientvit_m4 vit_pe_core_tiny_patch16_384 fasternet_t2 fastvit_t8 gcvit_xtiny
    ghostnet_130 hardcorenas_f hgnetv2_b4 hrnet_w18 iformer_m_distilled lcnetv2_large levit_128s lowformer_e1
    mambaout_kobe maxvit_rmlp_nano_rw_256 poolformer_s12 mixer_s16_224 tf_mobilenetv3_large_075 mobilevitv2_050
    nest_tiny_jx pit_ti_distilled_224 pvt_v2_b1 regnetx_004 repghostnet_130 repvit_m1 resnest14d resnetblur18
    resnetv2_18d rexnet_200 legacy_seresnet18 shvit_s2 starnet_s2 swiftformer_l1 tiny_vit_11m_224 vit_tiny_r_s16_p8_384
    ese_vovnet19b_dw xcit_tiny_12_p8_384
"""
PAIRS = """
    add_value_residual+mv_split_residual alibi_pos_bias+use_derf alibi_pos_bias+use_dynamic_tanh
    attn_causal+attn_orthog_projected_values attn_causal+gate_residual attn_data_dependent_alibi+weight_tie_layers
    attn_data_dependent_alibi_per_row+attn_laser attn_flash_pack_seq+cross_residual_attn
    attn_gate_values+attn_inverted_attention attn_gate_values_headwise+ff_no_bias attn_hard+attn_output_gate
    attn_hard+softclamp_output attn_head_learned_sink+ff_no_bias attn_one_kv_head+ff_no_bias
    attn_onnxable+pre_and_post_norm attn_post_talking_heads+attn_sigmoid attn_pre_scale_post_talking_heads+rel_pos_bias
    attn_qk_norm+attn_qk_norm_dim_scale attn_qk_norm_dim_scale+polar_bias_uniform_init
    attn_qkv_receive_diff_residuals+dynamic_pos_bias_norm attn_selective+ff_zero_init_output
    attn_softclamp_logits+ff_solu attn_softclamp_logits+use_adaptive_layernorm
    attn_use_rel_proj_pos_bias+learned_reinject_input_gate dynamic_pos_bias_log_distance+orthog_residual
    ff_swish+use_derf macaron+reinject_input pre_and_post_norm+weight_tie_layers sandwich_norm+use_adaptive_rmsnorm
    softclamp_output+use_adaptive_layerscale
"""
FAMILIES = """
    axk2 bert camembert chinese_clip_vision_model cohere2_vision convbert data2vec-vision deberta deimv2 detr distilbert
    electra encodec exaone fast_vlm fuyu gemma3n_text glm4v_vision glm_image_vqmodel glm_ocr glmasr_encoder
    granite_speech5_ctc granite_speech_plus idefics3_vision inkling2_loop_text inkling_text internvl_vision
    jina_embeddings_v3 kyutai_speech_to_text lfm3_vl llava_onevision m2m_100 marian mbart megatron-bert mistral mlcd
    moonshine muse_spark_text nemo_speechlm nemotron_h omniasr_audio parakeet_rnnt pegasus_x pixtral plbart
    pp_ocrv5_mobile_rec pp_ocrv5_server_rec qwen2_audio qwen3_5 qwen3_asr qwen3_vl_moe_vision roberta sam3_lite_text
    sam3_tracker sew starcoder2 swin t5 t5gemma2 timm_wrapper udop vibevoice_asr vit_mae vjepa2 wav2vec2
    wavtokenizer_encoder xcodec zamba2
"""
_SIZES = {"dim": WIDTH, "depth": DEPTH, "heads": HEADS, "mlp_dim": 2 * WIDTH, "dim_head": 24, "num_classes": 10}
_IMAGES = _SIZES | {"image_size": 64, "patch_size": 16}
_PYRAMID = {"dim": (32, 64, 96, 128), "depth": (1, 1, 6, 1), "num_classes": 10}
VISION: dict[str, dict[str, Any]] = {
    "cct.CCT": {"img_size": 64, "embedding_dim": 96, "num_layers": 6, "num_heads": 4, "mlp_ratio": 2.0,
                "num_classes": 10},
    "cross_vit.CrossViT": {"image_size": 48, "num_classes": 10, "sm_dim": 48, "lg_dim": 96},
    "crossformer.CrossFormer": _PYRAMID | {"local_window_size": 2},
    "cvt.CvT": {"num_classes": 10}, "mobile_vit.MobileViT": {
        "image_size": (64, 64), "dims": [48, 64, 80], "num_classes": 10,
        "channels": [16, 16, 24, 24, 48, 48, 64, 64, 80, 80, 160]},
    "max_vit.MaxViT": {"num_classes": 10, "dim": 32, "depth": (1, 1, 4, 1), "window_size": 2},
    "nest.NesT": {"image_size": 64, "patch_size": 4, "dim": 32, "heads": 2, "num_hierarchies": 3,
                  "block_repeats": (2, 2, 6), "num_classes": 10},
    "regionvit.RegionViT": _PYRAMID | {"window_size": 2},
    "scalable_vit.ScalableViT": {"num_classes": 10, "dim": 32, "heads": (1, 2, 4, 8), "depth": (1, 1, 6, 1),
                                 "reduction_factor": (8, 4, 2, 1)},
    "sep_vit.SepViT": {"num_classes": 10, "dim": 32, "heads": (1, 2, 4, 8), "depth": (1, 1, 6, 1), "window_size": 2},
    "twins_svt.TwinsSVT": {"num_classes": 10, "s1_local_patch_size": 4, "s2_local_patch_size": 4,
                           "s3_local_patch_size": 2, "s4_local_patch_size": 2},
    "ats_vit.ViT": _IMAGES | {"max_tokens_per_depth": (16, 16, 16, 8, 8, 8)},
    "levit.LeViT": _IMAGES | {"mlp_mult": 2}, "pit.PiT": _IMAGES | {"depth": (2, 6, 2)},
    "wwt.WWT": _IMAGES | {"num_slots": 4}, "simple_vit_with_fft.SimpleViT": _IMAGES | {"freq_patch_size": 8},
    "simple_vit_with_hyper_connections.SimpleViT": _IMAGES | {"num_residual_streams": 4},
    "vit_nd.ViTND": _IMAGES | {"ndim": 2, "input_shape": (64, 64)},
    "vit_nd_rotary.ViTND": _IMAGES | {"ndim": 2, "input_shape": (64, 64)},
    "looped_vit.LoopedViT": _IMAGES | {"pre_loop_depth": 2, "num_looped_blocks": 3, "post_loop_depth": 2},
}  # fmt: skip


def of_family(family: str) -> Single:
    with pytest.MonkeyPatch.context() as patch:
        rows = zip(small_classes.SIZES, (*_ROWS, VOCAB, *(size for size, _ in small_classes.SIZES[11:])), strict=True)
        patch.setattr(small_classes, "TABLE", {name: size for (_, names), size in rows for name in names.split()})
        for name, size in (("DEPTH", DEPTH), ("TOKENS", TOKENS), ("SEQUENCES", SAMPLES)):
            patch.setattr(small_classes, name, size)
        module = small_classes.built(family, seed=SEED, tasks=small_classes.TASKS[::-1])
        return module, *small_classes.batch(module, seed=SEED)


def of_vision(path: str) -> Single:
    part, name = path.split(".")
    owner = getattr(importlib.import_module(f"vit_pytorch.{part}"), name)
    takes, sizes = small_modules._takes(owner), VISION[path]
    sizes = {one: size for one, size in sizes.items() if one in takes or "kwargs" in takes}
    return small_modules.of_images(
        lambda: owner(**sizes).eval(), sizes.get("image_size", 64) if path[:3] == "cro" else 64
    )


def words(seed: int = SEED) -> Tensor:
    return torch.randint(VOCAB, (SAMPLES, TOKENS + 1), generator=torch.Generator().manual_seed(seed))


def of_words(make: Callable[[], nn.Module]) -> Single:
    ids = words()
    return make(), ids[:, :-1], small_modules.next_word(ids)


def of_pair(options: str) -> Single:
    library, switches = small_modules.x_transformers, dict.fromkeys(options.split("+"), True)
    layers = library.Decoder(dim=WIDTH, depth=DEPTH, heads=HEADS, attn_dim_head=WIDTH // HEADS, **switches)
    return of_words(lambda: library.TransformerWrapper(num_tokens=VOCAB, max_seq_len=TOKENS, attn_layers=layers))


class Written(nn.Module):
    def __init__(self, does: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        for name, part in {"does": does, **parts}.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.does(self, *inputs)


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def linear(rows: int = WIDTH, columns: int = WIDTH, *, bias: bool = False) -> nn.Module:
    return nn.Linear(columns, rows, bias=bias)


def mlp(width: int = WIDTH, activation: Any = nn.GELU) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), activation(), nn.Linear(4 * width, width))


def attention(rotate: Callable[[Tensor], Tensor] = lambda x: x) -> nn.Module:
    return Written(attended, qkv=nn.Linear(WIDTH, 3 * WIDTH), proj=nn.Linear(WIDTH, WIDTH), rotate=rotate)


def attended(m: Any, x: Tensor) -> Tensor:
    q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in m.qkv(x).chunk(3, -1))
    scores = m.rotate(q) @ m.rotate(k).transpose(-1, -2) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(torch.ones_like(scores[0, 0]).triu(1).bool(), float("-inf"))
    return m.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def rotated(x: Tensor) -> Tensor:
    (first, second), half = x.chunk(2, -1), x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 10_000 ** (-torch.arange(half) / half)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


def mixed_over_time(m: Any, x: Tensor) -> Tensor:
    before, matrices = functional.pad(x, (0, 0, 1, -1)), (m.key, m.value, m.receptance)
    k, v, r = (of(x * mix + before * (1 - mix)) for of, mix in zip(matrices, m.mix, strict=True))
    back = (torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1]))[..., None]
    factor = torch.where(back > 0, -(back - 1) * m.decay.exp(), m.first).masked_fill(back < 0, float("-inf"))
    return m.output(r.sigmoid() * ((factor + k[:, None]).softmax(2) * v[:, None]).sum(2))


def scanned(m: Any, x: Tensor) -> Tensor:
    x, gate = m.in_proj(x).chunk(2, -1)
    x = functional.silu(m.conv1d(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
    step, into, out = m.x_proj(x).split((6, STATES, STATES), -1)
    step, state, outputs = functional.softplus(m.dt_proj(step))[..., None], 0.0, []
    for k in range(x.shape[1]):
        state = (-step[:, k] * m.A_log.exp()).exp() * state + step[:, k] * x[:, k, :, None] * into[:, k, None]
        outputs.append((state * out[:, k, None]).sum(-1))
    return m.out_proj((torch.stack(outputs, 1) + m.D * x) * functional.silu(gate))


STATES, INNER = 8, 2 * WIDTH
PARTS: dict[str, Callable[..., Any]] = {
    "annotated transformer's norm": lambda width: Written(
        lambda m, x: m.a_2 * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + m.eps) + m.b_2,
        a_2=nn.Parameter(torch.ones(width)), b_2=nn.Parameter(torch.zeros(width)), eps=1e-6),
    "NeoX layer": lambda: Written(
        lambda m, x: x + m.attn(m.norm_1(x)) + m.mlp(m.norm_2(x)), norm_1=nn.LayerNorm(WIDTH),
        attn=attention(rotated), norm_2=nn.LayerNorm(WIDTH), mlp=mlp()),
    "SwiGLU": lambda: Written(lambda m, x: m.proj(functional.silu(m.fc_1(x)) * m.fc_2(x)),
                              fc_1=linear(256), fc_2=linear(256), proj=linear(WIDTH, 256)),
    "RWKV 4's time mixing, as a sum over positions": lambda: Written(
        mixed_over_time, key=linear(), value=linear(), receptance=linear(), output=linear(),
        mix=nn.Parameter(torch.linspace(0, 1, WIDTH).repeat(3, 1)), decay=nn.Parameter(torch.linspace(-5, 3, WIDTH)),
        first=nn.Parameter(torch.full((WIDTH,), 0.3))),
    "Mamba": lambda: Written(
        scanned, in_proj=linear(2 * INNER), out_proj=linear(WIDTH, INNER), x_proj=linear(6 + 2 * STATES, INNER),
        conv1d=nn.Conv1d(INNER, INNER, 4, groups=INNER, padding=3), dt_proj=linear(INNER, 6, bias=True),
        A_log=nn.Parameter(torch.arange(1.0, STATES + 1).log().repeat(INNER, 1)), D=nn.Parameter(torch.ones(INNER))),
    "MLP mixer's feed-forward over positions": lambda: Written(
        lambda m, x: m.mix(x.transpose(1, 2)).transpose(1, 2), mix=mlp(64)),
    "conv mixer": lambda: nn.Sequential(
        Residual(nn.Conv2d(WIDTH, WIDTH, 5, groups=WIDTH, padding=2), nn.GELU(), nn.BatchNorm2d(WIDTH)),
        nn.Conv2d(WIDTH, WIDTH, 1), nn.GELU(), nn.BatchNorm2d(WIDTH)),
    "residual unit": lambda: Residual(*(part for _ in range(2) for part in (
        nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 3, padding=1)))),
    "perceiver's layer": lambda: nn.TransformerDecoderLayer(
        WIDTH, HEADS, 192, 0.0, batch_first=True, norm_first=True),
    "word model of PyTorch's examples": lambda kind: Written(
        lambda m, ids: m.decoder(m.rnn(m.encoder(ids))[0]), encoder=nn.Embedding(VOCAB, WIDTH),
        rnn=kind(WIDTH, WIDTH, DEPTH, batch_first=True), decoder=nn.Linear(WIDTH, VOCAB)),
    "patches": lambda images: functional.unfold(images, 8, stride=8).transpose(1, 2),
}  # fmt: skip
ANNOTATED, NEOX, SWIGLU, TIME_MIX, MAMBA, ACROSS, CONV_MIXER, RESIDUAL, PERCEIVES, RECURRENT, patches = PARTS.values()


def pre(*makes: Callable[[], nn.Module], norm: Any = nn.LayerNorm) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(Residual(norm(WIDTH), make()) for make in makes))


def decoder(layer: Callable[[], nn.Module], *, positions: float = 1.0, norm: Any = nn.LayerNorm, std: float = 0.0,
            tied: bool = False) -> nn.Module:  # fmt: skip
    module = Written(
        lambda m, ids: m.head(m.norm(m.layers(m.wte(ids) + positions * m.wpe[: ids.shape[1]]))),
        wte=nn.Embedding(VOCAB, WIDTH), layers=nn.Sequential(*(layer() for _ in range(DEPTH))), norm=norm(WIDTH),
        wpe=nn.Parameter(0.02 * torch.randn(TOKENS, WIDTH)) if positions else torch.zeros(TOKENS, WIDTH),
        head=linear(VOCAB))  # fmt: skip
    for name, weight in module.named_parameters() if std else ():
        ends = "layers" in name and name.endswith(("proj.weight", "2.weight"))
        if weight.ndim == 2 and name != "wpe":
            nn.init.normal_(weight, std=std / (2 * DEPTH) ** 0.5 if ends else std)
        elif name.endswith("bias"):
            nn.init.zeros_(weight)
    module.head.weight = module.wte.weight if tied else module.head.weight
    return module


def translated(first: bool) -> Single:
    mask, target = nn.Transformer.generate_square_subsequent_mask(TOKENS), words()
    module = Written(
        lambda m, one, other: m.head(m.body(m.source(one) * WIDTH**0.5, m.target(other) * WIDTH**0.5, tgt_mask=mask)),
        source=nn.Embedding(VOCAB, WIDTH), target=nn.Embedding(VOCAB, WIDTH), head=nn.Linear(WIDTH, VOCAB),
        body=nn.Transformer(WIDTH, HEADS, 4, 4, 192, 0.0, batch_first=True, norm_first=first))  # fmt: skip
    for weight in filter(lambda one: one.ndim > 1, module.parameters()):
        nn.init.xavier_uniform_(weight)
    return module, (words(SEED + 1)[:, :-1], target[:, :-1]), small_modules.next_word(target)


def classified(norm: nn.Module | None = None, **options: Any) -> Single:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 192, 0.0, batch_first=True, **options)
    module = Written(
        lambda m, ids: m.head(m.layers(m.embed(ids) * WIDTH**0.5 + m.places).mean(1)), head=nn.Linear(WIDTH, 4),
        layers=nn.TransformerEncoder(layer, DEPTH, norm, enable_nested_tensor=False),
        embed=nn.Embedding(VOCAB, WIDTH), places=nn.Parameter(torch.randn(TOKENS, WIDTH)))  # fmt: skip
    for one in module.layers.modules():
        getattr(one, "reset_parameters", getattr(one, "_reset_parameters", int))()
    return module, words()[:, :-1], lambda output: functional.cross_entropy(output, torch.arange(SAMPLES))


def convolved(layer: Callable[[], nn.Module], side: int) -> nn.Module:
    begin = nn.Conv2d(3, WIDTH, side, side), nn.GELU(), nn.BatchNorm2d(WIDTH)
    layers = nn.Sequential(*(layer() for _ in range(DEPTH)))
    return nn.Sequential(*begin, layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 10))


DECODERS: dict[str, Callable[[], nn.Module]] = {
    "nanoGPT": lambda: decoder(pre(attention, mlp), tied=True, std=0.02),
    "minGPT": lambda: decoder(pre(attention, mlp), std=0.02), "torch defaults": lambda: decoder(pre(attention, mlp)),
    "NeoX of lit-gpt": lambda: decoder(NEOX, positions=0.0), "Llama of lit-gpt": lambda: decoder(
        pre(partial(attention, rotated), SWIGLU, norm=nn.RMSNorm), positions=0.0, norm=nn.RMSNorm, std=0.02),
    "annotated transformer": lambda: decoder(
        pre(attention, partial(mlp, activation=nn.ReLU), norm=ANNOTATED), norm=ANNOTATED),
    "BERT-pytorch": lambda: decoder(pre(attention, mlp, norm=ANNOTATED), norm=nn.Identity),
    "RWKV": lambda: decoder(pre(TIME_MIX, mlp), positions=0.0),
    "Mamba": lambda: decoder(pre(MAMBA, norm=nn.RMSNorm), positions=0.0, norm=nn.RMSNorm),
    "Mamba and attention": lambda: decoder(pre(MAMBA, partial(attention, rotated)), positions=0.0),
    "LSTM": partial(RECURRENT, nn.LSTM), "GRU": partial(RECURRENT, nn.GRU),
}  # fmt: skip
IMAGES: dict[str, Callable[[], nn.Module]] = {
    "conv mixer": lambda: convolved(CONV_MIXER, 4), "residual net": lambda: convolved(RESIDUAL, 2),
    "MLP mixer": lambda: Written(
        lambda m, x: m.head(m.norm(m.layers(m.embed(patches(x)))).mean(1)), embed=nn.Linear(192, WIDTH),
        layers=nn.Sequential(*(pre(ACROSS, mlp)() for _ in range(DEPTH))), norm=nn.LayerNorm(WIDTH),
        head=nn.Linear(WIDTH, 10)),
    "perceiver": lambda: Written(
        lambda m, x: m.head(reduce(lambda latents, layer: layer(latents, m.embed(patches(x))), m.layers,
                                   m.latents.expand(len(x), -1, -1)).mean(1)),
        latents=nn.Parameter(0.02 * torch.randn(1, 16, WIDTH)), embed=nn.Linear(192, WIDTH),
        head=nn.Linear(WIDTH, 10), layers=nn.ModuleList(PERCEIVES() for _ in range(4))),
}  # fmt: skip
ENCODERS: dict[str, dict[str, Any]] = {
    "post, relu": {}, "post, gelu": {"activation": "gelu"}, "post, no bias": {"bias": False},
    "post, epsilon": {"layer_norm_eps": 1e-12}, "pre, relu": {"norm_first": True},
    "pre, gelu": {"norm_first": True, "activation": "gelu"}, "pre, no bias": {"norm_first": True, "bias": False},
    "pre, norm at the end": {"norm_first": True, "norm": nn.LayerNorm(WIDTH)},
}  # fmt: skip


def subjects() -> dict[tuple[str, str], Callable[[], Single]]:
    made: dict[str, tuple[Any, Callable[[Any], Single]]] = {
        "timm": (TIMM.split(), small_modules.of_timm), "x-transformers": (PAIRS.split(), of_pair),
        "transformers": (FAMILIES.split(), of_family), "vit-pytorch": (VISION, of_vision),
        "written": (DECODERS, lambda name: of_words(DECODERS[name])),
        "written for images": (IMAGES, lambda name: small_modules.of_images(IMAGES[name], 64)),
        "torch.nn encoder": (ENCODERS, lambda name: classified(**ENCODERS[name])),
        "torch.nn transformer": (("pre", "post"), lambda name: translated(name == "pre")),
    }  # fmt: skip
    return {
        (f"held out: {package}", name): partial(make, name) for package, (names, make) in made.items() for name in names
    }
