"""A second list of modules that no rule of `probe` was made with: fixed before the first of them was judged.

Lists of names were drawn at random from what neither the table of classes nor the first list (commit 4c455338) has:
families of transformers and classes of vit-pytorch in training mode with dropout, at another width and depth, models of
timm, and pairs of options of x-transformers. The modules at the end are written from memory of public code.
"""

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
WIDTH, DEPTH, HEADS, TOKENS, VOCAB, SAMPLES, SEED = 128, 9, 8, 20, 250, 2, 20_261_131
_ROWS = (WIDTH, 4 * WIDTH, DEPTH, HEADS, 2, 1, 0, WIDTH // HEADS, WIDTH // HEADS // 2, 3 * WIDTH // HEADS // 2)
TIMM = """
    eca_botnext26ts_256 seresnext26ts cait_xxs36_384 coat_lite_mini convnextv2_femto cpubone_b1_bfrobust
    cs3sedarknet_xdw cspnext_m densenetblur121d dla60_res2next dpn68b edgenext_base efficientformerv2_s1
    tf_efficientnet_lite2 efficientvim_m4_dist efficientvit_m1 fasternet_t1 fastvit_sa12 gcvit_xxtiny ghostnetv3_100
    hardcorenas_e hgnetv2_b2 hrnet_w18_ssld iformer_l_distilled lcnetv2_base levit_conv_128s lowformer_b1 gmixer_12_224
    mobilenetv3_small_075 mobilevit_xs nf_resnet26 pit_xs_distilled_224 regnety_006 repghostnet_080 repvit_m1_1
    rexnet_130 legacy_seresnext26_32x4d shvit_s3 starnet_s050 swiftformer_s ese_vovnet19b_slim_dw xcit_tiny_12_p16_224
"""
PAIRS = """
    adaptive_condition_mlp+zero_init_branch_output add_value_residual+reinject_input alibi_pos_bias+causal
    attn_aggregated_residuals+ff_swish attn_cope_talking_heads+attn_laser
    attn_data_dependent_alibi_per_row+attn_orthog_projected_values attn_flash+attn_pre_talking_heads
    attn_flash+residual_attn attn_flash_pack_seq+polar_bias_uniform_init attn_gate_values+use_scalenorm
    attn_gate_values_headwise+attn_qk_rmsnorm attn_gate_values_headwise+use_derf attn_gumbel_softmax+ff_no_bias
    attn_hybrid_learned_mix+attn_orthog_projected_values attn_k_rmsnorm+attn_selective attn_laser+rel_pos_bias
    attn_one_kv_head+attn_use_latent_kv attn_orthog_projected_values+attn_pre_scale_post_talking_heads
    attn_orthog_projected_values_per_head+polar_pos_emb attn_output_gate+weight_tie_layers
    attn_output_gate_headwise+ff_glu_softclamp attn_post_talking_heads+rotary_pos_emb
    attn_pre_scale_post_talking_heads+dynamic_pos_bias_norm attn_qk_norm_dim_scale+integrate_layers
    attn_selective+use_adaptive_rmsnorm attn_sigmoid+polar_bias_uniform_init
    attn_softclamp_logits+dynamic_pos_bias_log_distance attn_use_latent_kv+use_rmsnorm
    depth_scale_residual+rotary_pos_emb dynamic_pos_bias_log_distance+weight_tie_layers ff_glu_softclamp+ff_swish
    ff_solu+rotary_pos_emb gate_residual+scale_residual integrate_layers+use_adaptive_rmsnorm
    only_cross+use_simple_rmsnorm orthog_residual+use_adaptive_layerscale polar_bias_uniform_init+polar_pos_emb
    pre_and_post_norm+use_derf rotary_pos_emb+scale_residual use_simple_rmsnorm+zero_init_branch_output
"""
FAMILIES = """
    apertus bailing_hybrid bart beit bigbird_pegasus biogpt bit clip_text_model clip_vision_model cohere cohere2 cwm
    data2vec-text deepseek_v4 dinat dinov3_vit doge dory efficientloftr embedding_gemma2_text ernie4_5_moe esm falcon_h1
    fastspeech2_conformer gemma2 gemma4_text glm glm4_moe glm5_next_vision glm_moe_dsa gpt_neo higgs_audio_v2
    inkling2_text jais2 lasr_encoder longcat_flash longt5 luke minicpm_ocr_vision minimax_m3_vl_text mistral4
    mistral_large4_text mixtral modernbert modernbert-decoder muse_glimmer_vision muse_spark_vision nanochat
    nemotron3_5_transcribe_asr_audio opt patchtst phi phimoe pocket_tts_audio_tokenizer_decoder pp_lcnet qwen3_5_text
    qwen3_vl_moe_text recurrent_gemma resnet roberta-prelayernorm rwkv sarvam_mla seamless_m4t_v2 seed_oss swin2sr
    timm_backbone vits voxtral_encoder voxtral_realtime_encoder voxtral_realtime_text wav2vec2-bert wavlm xglm xlstm
    yoso
"""
VISION = """
    attn_residual_with_dca_simple_vit.SimpleViT cait.CaiT jet_vit.JetViT jumbo_vit.JumboViT learnable_memory_vit.ViT
    local_vit.LocalViT look_vit.LookViT mp3.ViT na_vit.NaViT parallel_vit.ViT simple_flash_attn_vit.SimpleViT
    simple_vit_3d.SimpleViT simple_vit_attn_residual.SimpleViTAttnResidual
    simple_vit_orthog_residual_update.SimpleViT simple_vit_with_patch_dropout.SimpleViT
    simple_vit_with_qk_norm.SimpleViT simple_vit_with_register_tokens.SimpleViT
    simple_vit_with_sparse_gating.SimpleViTWithSparseGating simple_vit_with_value_residual.SimpleViT vat.ViT
    vit_5.ViT vit_detpool.ViTDetPool vit_for_small_dataset.ViT vit_with_patch_dropout.ViT
    vit_with_patch_merger.ViT xcit.XCiT
"""


def of_family(family: str) -> Single:
    """A family of transformers in training mode, with the dropout of its own configuration."""
    with pytest.MonkeyPatch.context() as patch:
        rows = zip(small_classes.SIZES, (*_ROWS, VOCAB, *(size for size, _ in small_classes.SIZES[11:])), strict=True)
        patch.setattr(small_classes, "TABLE", {name: size for (_, names), size in rows for name in names.split()})
        for name, size in (("DEPTH", DEPTH), ("TOKENS", TOKENS), ("SEQUENCES", SAMPLES)):
            patch.setattr(small_classes, name, size)
        module = small_classes.built(family, seed=SEED)
        inputs, loss = small_classes.batch(module, seed=SEED)
        return module.train(), inputs, loss


def of_vision(path: str) -> Single:
    sizes = {"DEPTH": DEPTH, "WIDTH": WIDTH, "HEADS": HEADS}
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            patch.setattr(small_modules, name, size)
        module, images, loss = small_modules.of_vit_pytorch(path)
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.1
    return module.train(), images, loss


def words(seed: int = SEED) -> Tensor:
    return torch.randint(VOCAB, (SAMPLES, TOKENS + 1), generator=torch.Generator().manual_seed(seed))


def of_words(make: Callable[[], nn.Module]) -> Single:
    ids = words()
    return make(), ids[:, :-1], small_modules.next_word(ids)


def of_pair(options: str) -> Single:
    library, switches = small_modules.x_transformers, dict.fromkeys(options.split("+"), True)
    owner = library.Encoder if "causal" in switches else library.Decoder
    layers = owner(dim=WIDTH, depth=DEPTH, heads=HEADS, attn_dim_head=WIDTH // HEADS, attn_dropout=0.1, **switches)
    return of_words(
        lambda: library.TransformerWrapper(num_tokens=VOCAB, max_seq_len=TOKENS, attn_layers=layers, tie_embedding=True)
    )


class Written(nn.Module):
    def __init__(self, does: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        for name, part in {"does": does, **parts}.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.does(self, *inputs)


def attended(m: Any, x: Tensor) -> Tensor:
    q, k, v = (of(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for of in (m.query, m.key, m.value))
    k, v = (one.repeat_interleave(HEADS // one.shape[1], 1) for one in (k, v))
    q, k = (rotated(q), rotated(k)) if m.rotary else (q, k)
    back = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    hidden = ((back < 0) & m.causal) | (back >= m.window)
    scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS) - m.slopes * back
    weights = (scores.masked_fill(hidden, float("-inf")).softmax(-1), (scores * m.decay**back).tril())[m.decays]
    mixed = functional.dropout(weights, 0.1 * (not m.decays)) @ v
    return m.proj((functional.layer_norm(mixed, mixed.shape[-1:]) if m.decays else mixed).transpose(1, 2).flatten(2))


def attention(keys: int = HEADS, *, bias: bool = True, **options: Any) -> nn.Module:
    """Attention with rotated keys, ALiBi's slopes, a window or RetNet's decay."""
    known = {"rotary": False, "slopes": 0.0, "window": 10**6, "causal": True, "decays": False,
             "decay": 1 - 2.0 ** -torch.arange(5, 5 + HEADS)[:, None, None]}  # fmt: skip
    sizes = {"query": HEADS, "key": keys, "value": keys, "proj": HEADS}
    parts = {name: linear(WIDTH // HEADS * size, bias=bias) for name, size in sizes.items()}
    return Written(attended, **parts, **(known | options))


def rotated(x: Tensor) -> Tensor:
    """Pairs of neighbours turn, as complex numbers in llama2.c."""
    angles = torch.arange(x.shape[-2])[:, None] * 10_000 ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2)


def linear(rows: int = WIDTH, columns: int = WIDTH, *, bias: bool = False) -> nn.Module:
    return nn.Linear(columns, rows, bias=bias)


def mixed_experts(m: Any, x: Tensor) -> Tensor:
    """Mixtral's: the two best of four, with weights that add up to 1."""
    best, chosen = m.router(x).softmax(-1).topk(2)
    shares = torch.zeros(*x.shape[:2], 4).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
    return torch.stack([shares[..., k, None] * of(x) for k, of in enumerate(m.experts)]).sum(0)


PARTS: dict[str, Callable[..., Any]] = {
    "Llama's norm, or with weights around 0 Gemma's": lambda width, one=0.0: Written(
        lambda m, x: (one + m.weight) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + m.eps),
        weight=nn.Parameter(torch.full((width,), 1.0 - one)), eps=1e-6),
    "feed-forward": lambda act=nn.GELU, bias=True: nn.Sequential(
        nn.Linear(WIDTH, 4 * WIDTH, bias=bias), act(), nn.Linear(4 * WIDTH, WIDTH, bias=bias), nn.Dropout(0.1)),
    "gated": lambda act=functional.silu: Written(
        lambda m, x: m.down(act(m.gate(x)) * m.up(x)), up=linear(344), gate=linear(344), down=linear(WIDTH, 344)),
    "experts": lambda: Written(mixed_experts, router=linear(4), experts=nn.ModuleList(GATED() for _ in range(4))),
    "pre": lambda attn, second, norm=nn.LayerNorm: Written(
        lambda m, x: (lambda y: y + m.mlp(m.ln_2(y)))(x + m.attn(m.ln_1(x))), ln_1=norm(WIDTH), attn=attn(),
        ln_2=norm(WIDTH), mlp=second()),
    "post": lambda attn, second, alpha=1.0, eps=1e-5: Written(
        lambda m, x: (lambda y: m.ln_2(alpha * y + m.mlp(y)))(m.ln_1(alpha * x + m.attn(x))),
        ln_1=nn.LayerNorm(WIDTH, eps), attn=attn(), ln_2=nn.LayerNorm(WIDTH, eps), mlp=second()),
    "parallel": lambda attn, second: Written(
        lambda m, x: (lambda y: x + m.attn(y) + m.mlp(y))(m.ln(x)), ln=nn.LayerNorm(WIDTH), attn=attn(), mlp=second()),
    "norms around branches": lambda attn, second, norm: Written(
        lambda m, x: (lambda y: y + m.n_4(m.mlp(m.n_3(y))))(x + m.n_2(m.attn(m.n_1(x)))), n_1=norm(WIDTH),
        attn=attn(), n_2=norm(WIDTH), n_3=norm(WIDTH), mlp=second(), n_4=norm(WIDTH)),
    "ReZero with 0, LayerScale with little": lambda begin, attn, second: Written(
        lambda m, x: (lambda y: y + m.gain_2 * m.mlp(m.n_2(y)))(x + m.gain_1 * m.attn(m.n_1(x))),
        n_1=nn.LayerNorm(WIDTH) if begin else nn.Identity(), n_2=nn.LayerNorm(WIDTH) if begin else nn.Identity(),
        attn=attn(), mlp=second(), gain_1=nn.Parameter(torch.full((WIDTH if begin else 1,), begin)),
        gain_2=nn.Parameter(torch.full((WIDTH if begin else 1,), begin))),
    "recurrent": lambda kind: Written(
        lambda m, x: x + m.rnn(m.norm(x))[0], norm=nn.LayerNorm(WIDTH), rnn=kind(WIDTH, WIDTH, batch_first=True)),
    "WaveNet's": lambda: Written(
        lambda m, x: x + m.out((lambda a, b: a.tanh() * b.sigmoid())(
            *m.conv(x.transpose(1, 2))[..., :TOKENS].chunk(2, 1))).transpose(1, 2),
        conv=nn.Conv1d(WIDTH, 2 * WIDTH, 3, padding=2), out=nn.Conv1d(WIDTH, WIDTH, 1)),
    "residual unit": lambda act=nn.ReLU, last=1.0: Written(
        lambda m, x: (x + m.last_gain * m.body(x)).relu(), last_gain=nn.Parameter(torch.full((64, 1, 1), last)),
        body=nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), act(),
                           nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64))),
    "ConvNeXt's": lambda: Written(
        lambda m, x: x + (m.gamma * m.out(functional.gelu(m.up(m.norm(m.conv(x).permute(0, 2, 3, 1)))))).permute(
            0, 3, 1, 2),
        conv=nn.Conv2d(64, 64, 7, padding=3, groups=64), norm=nn.LayerNorm(64), up=nn.Linear(64, 256),
        out=nn.Linear(256, 64), gamma=nn.Parameter(1e-6 * torch.ones(64))),
    "waves": lambda: (lambda angles: torch.stack([angles.sin(), angles.cos()], -1).flatten(1))(
        torch.arange(TOKENS)[:, None] * torch.exp(torch.arange(0, WIDTH, 2) * -(math.log(10_000) / WIDTH))),
    "one module for all layers": lambda module: lambda _: module,
}  # fmt: skip
RMS, MLP, GATED, EXPERTS, pre, post, parallel, around, scaled, recurrent, WAVE_NET, UNIT, CONV_NEXT, waves, same = (
    PARTS.values()
)


def decoder(
    layer: Callable[[int], nn.Module], init: Callable[[str, nn.Module], None] = lambda *_: None, *,
    norm: Any = nn.LayerNorm, factor: float = 1.0, positions: Any = None, tied: bool = False,
) -> nn.Module:  # fmt: skip
    """A language model of given layers; init is called with every module and its name."""
    module = Written(
        lambda m, ids: m.head(m.norm(m.layers(m.drop(factor * m.wte(ids) + m.wpe)))), wte=nn.Embedding(VOCAB, WIDTH),
        drop=nn.Dropout(0.1), layers=nn.Sequential(*map(layer, range(DEPTH))), norm=norm(WIDTH), head=linear(VOCAB),
        wpe=nn.Parameter(0.02 * torch.randn(TOKENS, WIDTH)) if positions is None else positions)  # fmt: skip
    for name, part in module.named_modules():
        init(name, part)
    module.head.weight = module.wte.weight if tied else module.head.weight
    return module


def normal(name: str, part: nn.Module, *, std: float = 0.02, ends: float = 1.0) -> None:
    """GPT-2's initialization, with smaller ends of branches if these are given."""
    if isinstance(part, nn.Linear | nn.Embedding):
        nn.init.normal_(part.weight, std=std * ends if name.endswith(("proj", "mlp.2", "down")) else std)
        nn.init.zeros_(torch.zeros(1) if getattr(part, "bias", None) is None else part.bias)


def xavier(name: str, part: nn.Module, *, draw: Any = None, gain: float = 1.0) -> None:
    """Fairseq's, with embeddings of deviation d^-1/2; or Keras's, with other embeddings."""
    if isinstance(part, nn.Linear):
        nn.init.xavier_uniform_(part.weight, gain=gain if name.endswith(("value", "proj", "mlp.0", "mlp.2")) else 1.0)
        nn.init.zeros_(part.bias if part.bias is not None else torch.zeros(1))
    elif isinstance(part, nn.Embedding):
        (draw or partial(nn.init.normal_, std=WIDTH**-0.5))(part.weight)


GPT, KERAS = partial(normal, ends=(2 * DEPTH) ** -0.5), partial(xavier, draw=partial(nn.init.uniform_, a=-0.05, b=0.05))
ROTARY, PLAIN = partial(attention, bias=False, rotary=True), partial(attention, bias=False)
GEMMA, RELU, SEEING = partial(RMS, one=1.0), partial(MLP, nn.ReLU), partial(attention, causal=False)
_PLACED: dict[str, Any] = {"factor": WIDTH**0.5, "positions": PARTS["waves"]()}
_NONE: dict[str, Any] = {"positions": 0.0}
DECODERS: dict[str, Callable[[], nn.Module]] = {
    "nanoGPT without biases": lambda: decoder(lambda _: pre(PLAIN, partial(MLP, bias=False)), GPT, tied=True),
    "minGPT": lambda: decoder(lambda _: pre(attention, MLP), GPT),
    "llama2.c": lambda: decoder(lambda _: pre(ROTARY, GATED, RMS), GPT, norm=RMS, **_NONE, tied=True),
    "lit-gpt with two key heads": lambda: decoder(
        lambda _: pre(partial(ROTARY, 2), GATED, RMS), normal, norm=RMS, **_NONE),
    "fairseq, post": lambda: decoder(lambda _: post(attention, RELU), xavier, norm=nn.Identity, **_PLACED, tied=True),
    "fairseq, pre": lambda: decoder(lambda _: pre(attention, RELU), xavier, **_PLACED, tied=True),
    "annotated transformer": lambda: decoder(
        lambda _: pre(attention, RELU), partial(xavier, draw=nn.init.xavier_uniform_), **_PLACED),
    "Keras, post": lambda: decoder(lambda _: post(attention, RELU, eps=1e-6), KERAS, norm=nn.Identity),
    "GPT-J": lambda: decoder(lambda _: parallel(ROTARY, MLP), normal, **_NONE),
    "PaLM": lambda: decoder(lambda _: parallel(partial(ROTARY, 1), GATED), **_NONE),
    "Gemma 2": lambda: decoder(
        lambda k: around(partial(ROTARY, 4, window=10**6 if k % 2 else 8), partial(GATED, functional.gelu), GEMMA),
        normal, norm=GEMMA, factor=WIDTH**0.5, **_NONE, tied=True),
    "BLOOM": lambda: decoder(
        lambda _: pre(partial(attention, slopes=2.0 ** -torch.arange(1, HEADS + 1)[:, None, None]), MLP), normal,
        **_NONE, tied=True),
    "Mistral's windows": lambda: decoder(
        lambda _: pre(partial(ROTARY, 2, window=8), GATED, RMS), normal, norm=RMS, **_NONE),
    "Mixtral": lambda: decoder(lambda _: pre(ROTARY, EXPERTS, RMS), normal, norm=RMS, **_NONE),
    "RetNet": lambda: decoder(
        lambda _: pre(partial(ROTARY, decays=True), MLP), partial(xavier, gain=2**-2.5), **_NONE),
    "DeepNet": lambda: decoder(
        lambda _: post(attention, MLP, (2 * DEPTH) ** 0.25), partial(xavier, gain=(8 * DEPTH) ** -0.25),
        norm=nn.Identity),
    "ReZero": lambda: decoder(lambda _: scaled(0.0, attention, MLP), norm=nn.Identity),
    "LayerScale": lambda: decoder(lambda _: scaled(1e-4, attention, MLP), normal),
    "sandwich": lambda: decoder(lambda _: around(attention, MLP, nn.LayerNorm), GPT),
    "ALBERT": lambda: decoder(same(pre(attention, MLP)), normal),
    "one feed-forward for all layers": lambda: (
        lambda one: decoder(lambda _: pre(attention, lambda: one), normal))(MLP()),
    "squared ReLU, as modded-nanogpt": lambda: decoder(
        lambda _: pre(ROTARY, partial(MLP, lambda: Written(lambda _, x: x.relu().square()), bias=False), RMS),
        partial(normal, std=0.5 * WIDTH**-0.5), norm=RMS, **_NONE),
    "residual GRUs": lambda: decoder(lambda _: recurrent(nn.GRU)),
    "residual LSTMs": lambda: decoder(lambda _: recurrent(nn.LSTM), normal),
    "causal convolutions": lambda: decoder(lambda _: WAVE_NET()),
    "tanh, no norm": lambda: decoder(
        lambda _: Written(lambda m, x: x + m.attn(x) + m.mlp(x).tanh(), attn=attention(), mlp=MLP())),
}  # fmt: skip


def convolved(layer: Callable[[], nn.Module], act: Any = nn.ReLU) -> nn.Module:
    layers, ends = nn.Sequential(*(layer() for _ in range(DEPTH))), (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    module = nn.Sequential(nn.Conv2d(3, 64, 4, 4), act(), layers, *ends, nn.Linear(64, 10))
    for part in filter(lambda one: isinstance(one, nn.Conv2d), module.modules()):
        nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    return module


def of_patches(layer: Callable[[], nn.Module], *, token: bool = True) -> nn.Module:
    """A vision transformer of its own, with timm's initialization."""
    module = Written(
        lambda m, x: m.head((lambda y: y[:, 0] if token else y.mean(1))(m.norm(m.layers(m.drop(m.pos + torch.cat(
            [*[m.cls.expand(len(x), -1, -1)] * token, m.embed(functional.unfold(x, 16, stride=16).transpose(1, 2))], 1
        )))))),
        embed=nn.Linear(768, WIDTH), cls=nn.Parameter(torch.zeros(1, 1, WIDTH)), drop=nn.Dropout(0.1),
        pos=nn.Parameter(0.02 * torch.randn(1, 16 + token, WIDTH)), norm=nn.LayerNorm(WIDTH),
        layers=nn.Sequential(*(layer() for _ in range(DEPTH))), head=nn.Linear(WIDTH, 10))  # fmt: skip
    for name, part in module.named_modules():
        normal(name, part)
    return module


def conv(*after: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), *(one() for one in after))


IMAGES: dict[str, Callable[[], nn.Module]] = {
    "ResNet": lambda: convolved(UNIT), "ResNet, last gain 0": lambda: convolved(partial(UNIT, last=0.0)),
    "ResNet, SiLU": lambda: convolved(partial(UNIT, nn.SiLU)), "ConvNeXt": lambda: convolved(CONV_NEXT, nn.GELU),
    "VGG": lambda: convolved(conv(nn.ReLU)),
    "VGG with batch norm": lambda: convolved(conv(partial(nn.BatchNorm2d, 64), nn.ReLU)),
    "ViT": lambda: of_patches(lambda: pre(SEEING, MLP)),
    "ViT, mean": lambda: of_patches(lambda: pre(SEEING, MLP), token=False),
    "DeiT III": lambda: of_patches(lambda: scaled(1e-4, SEEING, MLP)),
    "FNet": lambda: of_patches(
        lambda: pre(lambda: Written(lambda _, x: torch.fft.fft2(x).real), MLP), token=False),
}  # fmt: skip


def stacked(part: str, first: bool, activation: str = "relu") -> Single:
    """torch.nn's encoder or decoder, causal, as PyTorch's tutorial on language models uses it."""
    owner, layer = (getattr(nn, f"Transformer{part}{end}") for end in ("", "Layer"))
    one = layer(WIDTH, HEADS, 4 * WIDTH, 0.2, batch_first=True, norm_first=first, activation=activation)
    mask, ids = nn.Transformer.generate_square_subsequent_mask(TOKENS), words()
    module = Written(
        lambda m, given: m.head(m.body(m.embed(given) * math.sqrt(WIDTH) + waves(), *(
            (mask,) if part == "Encoder" else (m.memory.expand(len(given), -1, -1), mask)))),
        embed=nn.Embedding(VOCAB, WIDTH), body=owner(one, DEPTH), head=linear(VOCAB))  # fmt: skip
    for weight in (module.embed.weight, module.head.weight):
        nn.init.uniform_(weight, -0.1, 0.1)
    if part == "Decoder":
        module.memory = nn.Parameter(torch.randn(1, 7, WIDTH))
    return module, ids[:, :-1], small_modules.next_word(ids)


STACKS = {
    f"{part}, {'pre' if first else 'post'}, {activation}": (part, first, activation)
    for part in ("Encoder", "Decoder") for first in (True, False) for activation in ("relu", "gelu")
}  # fmt: skip


def subjects() -> dict[tuple[str, str], Callable[[], Single]]:
    made: dict[str, tuple[Any, Callable[[Any], Single]]] = {
        "timm": (TIMM.split(), small_modules.of_timm), "x-transformers": (PAIRS.split(), of_pair),
        "transformers": (FAMILIES.split(), of_family), "vit-pytorch": (VISION.split(), of_vision),
        "written": (DECODERS, lambda name: of_words(DECODERS[name])),
        "written for images": (IMAGES, lambda name: small_modules.of_images(IMAGES[name], 64)),
        "torch.nn": (STACKS, lambda name: stacked(*STACKS[name])),
    }  # fmt: skip
    return {
        (f"held out: {package}", name): partial(make, name) for package, (names, make) in made.items() for name in names
    }
