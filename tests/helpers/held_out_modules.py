"""A fourth list of modules that no rule of `probe` was made with: fixed before the first of them was judged.

Names of timm were drawn at random from what neither the table of classes nor the three lists before (commits 4c455338,
1de0fb00 and e1f59613) have. New are heads of transformers for classes, tokens and answers, models of torchvision,
adapters of peft, and other classes of x-transformers. The modules at the end are written from memory of papers and
public code.
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
WIDTH, DEPTH, HEADS, TOKENS, VOCAB, SAMPLES, SEED = 96, 6, 6, 24, 190, 4, 20_261_129
_ROWS = (WIDTH, 2 * WIDTH, DEPTH, HEADS, 2, 1, 0, WIDTH // HEADS, WIDTH // HEADS // 2, 3 * WIDTH // HEADS // 2)
TIMM = """
    edgenext_xx_small crossvit_tiny_240 eva02_tiny_patch14_336 densenet121 hgnetv2_b1 starnet_s150 repvit_m3 fastvit_t12
    pit_ti_224 vit_pwee_patch16_reg1_gap_256 coat_mini coatnet_nano_cc_224 cpubone_b1_dwnorm efficientvim_m2_dist
    hardcorenas_c dla60x_c efficientvit_m3 ghostnetv2_160 rexnetr_150 levit_conv_128 regnetx_004_tv fasternet_t0
    efficientnet_b3_gn mobilevitv2_175 iformer_t sehalonet33ts xcit_tiny_24_p16_224 convnextv2_atto cs3darknet_m
    repghostnet_111 mobilenetv4_conv_small_050 efficientformer_l1 hrnet_w18_small_v2 regnetz_c16
"""
TORCHVISION = """
    resnet18 resnet34 wide_resnet50_2 resnext50_32x4d mobilenet_v2 mobilenet_v3_small mobilenet_v3_large mnasnet0_5
    mnasnet1_3 shufflenet_v2_x0_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 densenet121 googlenet efficientnet_b0
    efficientnet_b2 efficientnet_v2_s regnet_y_400mf regnet_x_1_6gf
"""
# Families by head, in an order that was drawn at random.
HEADED = {
    "SEQUENCE_CLASSIFICATION": """
        llama gpt2 bert roberta albert electra distilbert xlnet deberta deberta-v2 funnel layoutlm mobilebert
        squeezebert
        bart gpt_neox mistral qwen2 qwen3 gemma3_text opt bloom falcon phi t5 ctrl openai-gpt ibert nystromformer canine
    """,
    "TOKEN_CLASSIFICATION": """
        llama gpt2 bert distilbert electra mpnet flaubert megatron-bert rembert roformer big_bird convbert ernie fnet
        mra
        modernbert xlm-roberta-xl
    """,
    "QUESTION_ANSWERING": """
        bert distilbert albert splinter yoso camembert data2vec-text gptj t5
    """,
}  # fmt: skip
SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gpt2", {"reorder_and_upcast_attn": True, "resid_pdrop": 0.0}),
    ("gpt2", {"activation_function": "silu", "scale_attn_weights": True, "initializer_range": 0.01}),
    ("llama", {"rope_theta": 1e6, "hidden_act": "relu2"}),
    ("llama", {"head_dim": 32, "initializer_range": 0.04}),
    ("mistral", {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
    ("mixtral", {"num_local_experts": 3, "router_jitter_noise": 0.01}),
    ("qwen2", {"hidden_act": "gelu", "initializer_range": 0.01}),
    ("qwen3", {"tie_word_embeddings": True, "head_dim": 24}),
    ("qwen3_moe", {"norm_topk_prob": True, "mlp_only_layers": [0, 2]}),
    ("gemma", {"rms_norm_eps": 1e-5, "head_dim": 32}),
    ("gemma2", {"hidden_activation": "silu", "sliding_window": 4}),
    ("olmo2", {"tie_word_embeddings": True}),
    ("olmoe", {"norm_topk_prob": True, "clip_qkv": 1.0}),
    ("gpt_neox", {"rotary_pct": 1.0, "hidden_act": "relu"}),
    ("gpt_neo", {"attention_types": [[["local"], 6]], "window_size": 6}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 3}),
    ("opt", {"word_embed_proj_dim": 48}),
    ("bert", {"position_embedding_type": "absolute", "type_vocab_size": 4, "hidden_act": "silu"}),
    ("albert", {"embedding_size": 64, "hidden_act": "relu", "inner_group_num": 3}),
    ("t5", {"feed_forward_proj": "gated-silu", "num_decoder_layers": 2}),
    ("bart", {"encoder_layers": 3, "activation_function": "silu"}),
    ("pegasus", {"scale_embedding": False}),
    ("granite", {"residual_multiplier": 1.0, "logits_scaling": 8.0}),
    ("cohere", {"logit_scale": 1.0, "layer_norm_eps": 1e-6}),
    ("starcoder2", {"num_key_value_heads": 1, "hidden_act": "gelu_new"}),
    ("mamba", {"use_bias": True, "hidden_act": "gelu"}),
    ("vit", {"pooler_act": "relu", "hidden_act": "silu", "patch_size": 8}),
    ("deit", {"qkv_bias": False}),
    ("convnextv2", {"hidden_act": "relu"}),
    ("wav2vec2", {"do_stable_layer_norm": True, "feat_extract_norm": "layer"}),
    ("stablelm", {"partial_rotary_factor": 1.0, "hidden_act": "gelu"}),
)  # fmt: skip
OPTIONS = """
    attn_qk_norm=1,attn_qk_norm_scale=10 attn_post_talking_heads=1,use_rmsnorm=1 attn_softclamp_logits=1
    attn_gate_values=1,attn_head_scale=1 ff_glu=1,ff_mult=2,ff_dropout=0.1 ff_no_bias=1,ff_relu_squared=1
    rotary_pos_emb=1,rotary_emb_dim=8 rotary_pos_emb=1,rotary_interpolation_factor=2 alibi_pos_bias=1,alibi_num_heads=3
    rel_pos_bias=1,rel_pos_num_buckets=8,rel_pos_max_distance=12 dynamic_pos_bias=1,dynamic_pos_bias_mlp_depth=3
    shift_tokens=2,ff_glu=1
    sandwich_coef=3 par_ratio=4,ff_glu=1 pre_norm=0,ff_glu=1,ff_swish=1 sandwich_norm=1,use_rmsnorm=1 macaron=1,ff_glu=1
    use_layerscale=1,layerscale_init_value=0.001 zero_init_branch_output=1,ff_glu=1 add_value_residual=1,use_rmsnorm=1
    softclamp_output=1 gate_residual=1,use_rmsnorm=1 unet_skips=1,ff_glu=1
    residual_attn=1,use_rmsnorm=1 cross_residual_attn=1 weight_tie_layers=1,ff_glu=1 attn_one_kv_head=1,ff_swish=1
    ff_glu=1,attn_value_dim_head=32 attn_sigmoid=1,attn_qk_norm=1 attn_dropout=0.2,ff_dropout=0.2,layer_dropout=0.2
"""
PEFT: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama", "LoraConfig", {"r": 4, "target_modules": ["q_proj", "v_proj"]}),
    ("llama", "LoraConfig", {"r": 4, "use_dora": True, "target_modules": "all-linear"}),
    ("gpt2", "LoraConfig", {"r": 8, "target_modules": ["c_attn"], "fan_in_fan_out": True}),
    ("qwen2", "LoraConfig", {"r": 4, "use_rslora": True, "target_modules": ["gate_proj", "down_proj"]}),
    ("llama", "LoraConfig", {"r": 4, "init_lora_weights": "gaussian", "target_modules": ["o_proj"]}),
    ("llama", "IA3Config", {"target_modules": ["k_proj", "v_proj"], "feedforward_modules": []}),
    ("mistral", "VeraConfig", {"r": 8, "target_modules": ["q_proj"]}),
    ("gpt_neox", "AdaLoraConfig", {"target_modules": ["query_key_value"], "total_step": 10}),
    ("opt", "OFTConfig", {"r": 8, "oft_block_size": 0, "target_modules": ["q_proj", "v_proj"]}),
    ("bert", "LoHaConfig", {"r": 4, "target_modules": ["query", "value"]}),
)


def small(patch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    """Set this list's sizes, and fields that differ from their defaults."""
    fields = small_classes.small_fields
    rows = zip(small_classes.SIZES, (*_ROWS, VOCAB, *(size for size, _ in small_classes.SIZES[11:])), strict=True)
    patch.setattr(small_classes, "TABLE", {name: size for (_, names), size in rows for name in names.split()})
    patch.setattr(small_classes, "small_fields", lambda default: fields(default) | settings)
    sizes = {"DEPTH": DEPTH, "HEADS": HEADS, "TOKENS": TOKENS, "SEQUENCES": SAMPLES, "VOCAB": VOCAB}
    for name, size in sizes.items():
        patch.setattr(small_classes, name, size)


def of_family(number: int) -> Single:
    family, settings = SETTINGS[number]
    with pytest.MonkeyPatch.context() as patch:
        small(patch, settings)
        module = small_classes.built(family, seed=SEED)
        return module, *small_classes.batch(module, seed=SEED)


def of_head(task: str, family: str) -> Single:
    """A family with a head for classes of samples or tokens, or for the ends of an answer."""
    with pytest.MonkeyPatch.context() as patch:
        small(patch, {"pad_token_id": 0})
        module = small_classes.built(family, seed=SEED, tasks=(task,))
        draw = torch.Generator().manual_seed(SEED)
        ids = torch.randint(5, VOCAB - 2, (SAMPLES, TOKENS), generator=draw)
        if task == "QUESTION_ANSWERING":
            ends = torch.randint(1, TOKENS, (2, SAMPLES), generator=draw)
            return module, {"input_ids": ids, "start_positions": ends[0], "end_positions": ends[1]}, None
        if "T5" in type(module).__name__ or "Bart" in type(module).__name__:
            ids[:, -1] = module.config.eos_token_id
        shape = (SAMPLES, TOKENS) if task == "TOKEN_CLASSIFICATION" else (SAMPLES,)
        return module, {"input_ids": ids, "labels": torch.randint(2, shape, generator=draw)}, None


def of_torchvision(name: str) -> Single:
    models = pytest.importorskip("torchvision.models")
    more = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
    return small_modules.of_images(lambda: models.get_model(name, num_classes=10, **more).eval(), 64)


def of_adapter(number: int) -> Single:
    """A family with adapters, in evaluation; the base is frozen."""
    peft = pytest.importorskip("peft")
    family, kind, settings = PEFT[number]
    with pytest.MonkeyPatch.context() as patch:
        small(patch, {})
        module = small_classes.built(family, seed=SEED)
        inputs, loss = small_classes.batch(module, seed=SEED)
    return peft.get_peft_model(module, getattr(peft, kind)(**settings)).eval(), inputs, loss


def words(count: int = TOKENS + 1) -> Tensor:
    return torch.randint(1, VOCAB, (SAMPLES, count), generator=torch.Generator().manual_seed(SEED))


def of_words(make: Callable[[], nn.Module]) -> Single:
    ids = words()
    return make(), ids[:, :-1], small_modules.next_word(ids)


def of_options(text: str) -> Single:
    library = small_modules.x_transformers
    pairs = (one.split("=") for one in text.split(","))
    counts = ("shift_tokens", "ff_mult", "attn_kv_heads", "rotary_interpolation_factor")
    settings = {
        name: float(value) if "." in value or name == "rotary_interpolation_factor"
        else int(value) if name in counts or value not in "01" else bool(int(value))
        for name, value in pairs
    }  # fmt: skip
    made = library.Decoder(dim=WIDTH, depth=DEPTH, heads=HEADS, attn_dim_head=WIDTH // HEADS, **settings)
    return of_words(lambda: library.TransformerWrapper(num_tokens=VOCAB, max_seq_len=TOKENS, attn_layers=made))


class Written(nn.Module):
    def __init__(self, does: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in {"does": does, **parts}.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.does(self, *inputs)


def linear(rows: int = WIDTH, columns: int = WIDTH, *, bias: bool = True) -> nn.Linear:
    return nn.Linear(columns, rows, bias=bias)


def drawn(*shape: int, std: float = 0.02) -> nn.Parameter:
    return nn.Parameter(std * torch.randn(*shape))


def split(x: Tensor, heads: int = HEADS) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


MASK = torch.ones(TOKENS, TOKENS).tril().bool()
BACK = (torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)).clamp(min=0)
HEAD = WIDTH // HEADS


def heads_of(m: Any, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(split(one) for one in m.qkv(x).chunk(3, -1))


def attention(weights: Callable[..., Tensor] | None = None, *, bias: bool = True, **parts: Any) -> nn.Module:
    """Attention with given weights of queries and keys; torch's if none."""

    def mixed(m: Any, x: Tensor) -> Tensor:
        q, k, v = heads_of(m, x)
        if m.weights is None:
            return m.out(joined(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))
        return m.out(joined(m.weights(m, q, k) @ v))

    return Written(mixed, weights=weights, qkv=linear(3 * WIDTH, bias=bias), out=linear(bias=bias), **parts)


def soft(scores: Tensor) -> Tensor:
    return scores.masked_fill(~MASK, float("-inf")).softmax(-1)


def products(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) / math.sqrt(HEAD)


def gated_attention(m: Any, x: Tensor) -> Tensor:
    """Gated attention of 2025: a sigmoid of the stream times every head's output."""
    q, k, v = heads_of(m, x)
    return m.out(joined(soft(products(q, k)) @ v) * m.gate(x).sigmoid())


def convolved_heads(m: Any, x: Tensor) -> Tensor:
    """Primer: depthwise convolutions of three tokens after queries, keys and values."""
    y = m.conv(functional.pad(m.qkv(x).transpose(1, 2), (2, 0))).transpose(1, 2)
    q, k, v = (split(one) for one in y.chunk(3, -1))
    return m.out(joined(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))


def few_keys(m: Any, x: Tensor) -> Tensor:
    """Two key heads for all queries, with rotated pairs."""
    q, (k, v) = split(m.q(x)), (split(one, 2) for one in m.kv(x).chunk(2, -1))
    q, k = rotated(q), rotated(k)
    k, v = (one.repeat_interleave(HEADS // 2, 1) for one in (k, v))
    return m.o(joined(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))


def rotated(x: Tensor) -> Tensor:
    angles = torch.arange(TOKENS)[:, None] * 10_000 ** (-torch.arange(0, HEAD, 2) / HEAD)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def moving_average(m: Any, x: Tensor) -> Tensor:
    """Mega's exponential moving average, one per channel, before attention of one head."""
    rate = m.rate.sigmoid()
    kernel = rate * (1 - rate) ** torch.arange(TOKENS)[:, None]
    size = 2 * TOKENS
    y = torch.fft.irfft(torch.fft.rfft(x, size, 1) * torch.fft.rfft(kernel, size, 0), size, 1)[:, :TOKENS]
    q, k = (functional.silu(m.z(y)) * m.scale + m.shift).unbind(2) if m.scale.ndim == 3 else (y, y)
    weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~MASK, float("-inf")).softmax(-1)
    return m.out(weights @ m.v(y) * m.gate(y).sigmoid())


def random_features(m: Any, x: Tensor) -> Tensor:
    """Performer's positive random features, causal by sums."""
    q, k, v = heads_of(m, x)
    q, k = (
        (one * HEAD**-0.25 @ m.omega - (one.square().sum(-1, keepdim=True) / (2 * HEAD**0.5))).exp() + 1e-4
        for one in (q, k)
    )
    weights = (q @ k.transpose(-1, -2)).tril()
    return m.out(joined(weights @ v / weights.sum(-1, keepdim=True)))


def rwkv(m: Any, x: Tensor) -> Tensor:
    """RWKV-4's time mixing, with shifted tokens."""
    before = functional.pad(x, (0, 0, 1, -1))
    k, v, r = (of(x * m.mix[n] + before * (1 - m.mix[n])) for n, of in enumerate((m.key, m.value, m.receptance)))
    decay, top, below, outputs = -m.decay.exp(), 0.0, 0.0, []
    for t in range(TOKENS):
        now = (m.first + k[:, t]).exp()
        outputs.append((top + now * v[:, t]) / (below + now))
        top, below = decay.exp() * top + k[:, t].exp() * v[:, t], decay.exp() * below + k[:, t].exp()
    return m.out(r.sigmoid() * torch.stack(outputs, 1))


def channel_mixing(m: Any, x: Tensor) -> Tensor:
    before = functional.pad(x, (0, 0, 1, -1))
    k, r = (of(x * m.mix[n] + before * (1 - m.mix[n])) for n, of in enumerate((m.key, m.receptance)))
    return r.sigmoid() * m.value(k.relu().square())


def linear_recurrence(m: Any, x: Tensor) -> Tensor:
    """LRU: complex eigenvalues on a ring, inputs normalized."""
    size = (-m.nu.exp()).exp()
    turn, gain = torch.polar(size, m.theta.exp()), (1 - size.square()).sqrt()
    state, outputs, inputs = (
        torch.zeros(len(x), WIDTH, dtype=turn.dtype),
        [],
        torch.view_as_complex(m.enter(x).unflatten(-1, (WIDTH, 2)).contiguous()),
    )
    for t in range(TOKENS):
        state = turn * state + gain * inputs[:, t]
        outputs.append(state)
    y = torch.stack(outputs, 1)
    return m.out(torch.cat([y.real, y.imag], -1)) + m.skip * x


def matrix_memory(m: Any, x: Tensor) -> Tensor:
    """XLSTM's matrix memory in its parallel form: gates as decays of scores, without a softmax."""
    q, k, v = heads_of(m, x)
    forget, enter = m.gates(x).transpose(1, 2).chunk(2, 1)
    sums = functional.logsigmoid(forget).cumsum(-1)
    logs = (sums[..., None] - sums[..., None, :] + enter[..., None, :]).masked_fill(~MASK, float("-inf"))
    top = logs.amax(-1, keepdim=True)
    weights = products(q, k) * (logs - top).exp()
    weights = weights / torch.maximum(weights.sum(-1, keepdim=True).abs(), (-top).exp())
    return m.out(m.norm((weights @ v).transpose(1, 2)).flatten(2) * m.gate(x).sigmoid())


def depth_mixed(m: Any, x: Tensor) -> Tensor:
    """Mixture of depths: a router lets an eighth of the weight pass by; here all tokens enter, weighted."""
    return x + 2 * m.router(x).sigmoid() * (m.body(x) - x)


def shared_experts(m: Any, x: Tensor) -> Tensor:
    """DeepSeek's: one expert for all tokens, and the best two of six, by sigmoids."""
    scores = m.router(x).sigmoid()
    best, chosen = scores.topk(2)
    shares = torch.zeros_like(scores).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
    return m.shared(x) + sum(shares[..., n, None] * of(x) for n, of in enumerate(m.experts))


def causal_mixer(m: Any, x: Tensor) -> Tensor:
    """MLP-Mixer on words: triangular matrices mix positions."""
    y = m.norm1(x)
    x = x + (m.second.tril() @ functional.gelu(m.first.tril() @ y + m.bias))
    return x + m.ff(m.norm2(x))


def streams(m: Any, x: Tensor) -> Tensor:
    """Static hyper-connections with two streams, side by side in the width."""
    both = x.unflatten(-1, (2, -1))
    y = m.body((both * m.into[:, None]).sum(-2))
    return (torch.einsum("btsd,su->btud", both, m.across) + y[..., None, :] * m.back[:, None]).flatten(-2)


def mlp(act: Callable[[], nn.Module] = nn.GELU, times: int = 4, *, bias: bool = True) -> nn.Module:
    return nn.Sequential(linear(times * WIDTH, bias=bias), act(), linear(WIDTH, times * WIDTH, bias=bias))


def gated(act: Any = functional.silu, size: int = 256, width: int = WIDTH) -> nn.Module:
    return Written(
        lambda m, x: m.down(act(m.gate(x)) * m.up(x)),
        gate=linear(size, width, bias=False), up=linear(size, width, bias=False),
        down=linear(width, size, bias=False))  # fmt: skip


FEW = lambda: Written(few_keys, q=linear(bias=False), kv=linear(4 * HEAD, bias=False), o=linear(bias=False))  # noqa: E731
TIME = lambda: Written(  # noqa: E731
    rwkv, key=linear(bias=False), value=linear(bias=False), receptance=linear(bias=False), out=linear(bias=False),
    mix=nn.Parameter(torch.linspace(0, 1, WIDTH).repeat(3, 1)), first=nn.Parameter(torch.full((WIDTH,), math.log(0.3))),
    decay=nn.Parameter(torch.linspace(-5, 3, WIDTH)))  # fmt: skip
CHANNELS = lambda: Written(  # noqa: E731
    channel_mixing, key=linear(4 * WIDTH, bias=False), value=linear(WIDTH, 4 * WIDTH, bias=False),
    receptance=linear(bias=False), mix=nn.Parameter(torch.linspace(0, 1, WIDTH).repeat(2, 1)))  # fmt: skip
MIXERS: dict[str, Callable[[], nn.Module]] = {
    "torch's": attention,
    "gated attention": lambda: Written(gated_attention, qkv=linear(3 * WIDTH), out=linear(), gate=linear()),
    "Primer": lambda: Written(
        convolved_heads, qkv=linear(3 * WIDTH, bias=False), out=linear(bias=False),
        conv=nn.Conv1d(3 * WIDTH, 3 * WIDTH, 3, groups=3 * WIDTH)),
    "two key heads, rotated": FEW,
    "a sink per head": lambda: attention(
        lambda m, q, k: torch.cat(
            [products(q, k).masked_fill(~MASK, float("-inf")), m.sink.expand(len(q), -1, TOKENS, 1)], -1
        ).softmax(-1)[..., :-1], sink=drawn(HEADS, 1, 1)),
    "sigmoids": lambda: attention(
        lambda m, q, k: (products(q, k) - math.log(TOKENS)).sigmoid().masked_fill(~MASK, 0.0)),
    "capped logits": lambda: attention(lambda m, q, k: soft(30 * (products(q, k) / 30).tanh())),
    "temperature per head, unit vectors": lambda: attention(
        lambda m, q, k: soft(functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).mT * m.heat),
        heat=nn.Parameter(torch.full((HEADS, 1, 1), math.sqrt(HEAD)))),
    "KERPLE": lambda: attention(
        lambda m, q, k: soft(products(q, k) - m.r1.exp() * torch.log1p(m.r2.exp() * BACK)),
        r1=nn.Parameter(torch.rand(HEADS, 1, 1)), r2=nn.Parameter(torch.rand(HEADS, 1, 1))),
    "a bias per distance": lambda: attention(
        lambda m, q, k: soft(products(q, k) + m.steps(BACK).permute(2, 0, 1)), steps=nn.Embedding(TOKENS, HEADS)),
    "forgetting": lambda: Written(
        lambda m, x: (lambda q, k, v, f: m.out(joined(soft(products(q, k) + f[..., None] - f[..., None, :]) @ v)))(
            *heads_of(m, x), functional.logsigmoid(m.forget(x)).transpose(1, 2).cumsum(-1)),
        qkv=linear(3 * WIDTH), out=linear(), forget=linear(HEADS)),
    "talking heads": lambda: attention(
        lambda m, q, k: torch.einsum("bhij,hg->bgij", soft(torch.einsum("bhij,hg->bgij", products(q, k), m.before)),
                                     m.after),
        before=nn.Parameter(torch.eye(HEADS) + 0.02 * torch.randn(HEADS, HEADS)),
        after=nn.Parameter(torch.eye(HEADS) + 0.02 * torch.randn(HEADS, HEADS))),
    "Mega": lambda: Written(
        moving_average, rate=drawn(WIDTH, std=0.2), z=Written(lambda m, y: m.of(y)[:, :, None], of=linear(48)),
        scale=nn.Parameter(torch.ones(1, 2, 48) + 0.02 * torch.randn(1, 2, 48)), shift=drawn(1, 2, 48),
        v=linear(), gate=linear(), out=linear()),
    "Performer": lambda: Written(
        random_features, qkv=linear(3 * WIDTH), out=linear(), omega=nn.Buffer(torch.randn(HEAD, 32))),
    "RWKV": TIME,
    "LRU": lambda: Written(
        linear_recurrence, enter=linear(2 * WIDTH), out=linear(WIDTH, 2 * WIDTH), skip=drawn(WIDTH, std=1.0),
        nu=nn.Parameter(torch.log(-0.5 * torch.log(torch.rand(WIDTH) * 0.5 + 0.4))),
        theta=nn.Parameter(torch.log(6.28 * torch.rand(WIDTH)))),
    "xLSTM": lambda: Written(
        matrix_memory, qkv=linear(3 * WIDTH), gates=linear(2 * HEADS), norm=nn.LayerNorm(HEAD), gate=linear(),
        out=linear()),
    "Linformer of chunks": lambda: Written(
        lambda m, x: m.out(joined(functional.scaled_dot_product_attention(*(
            split(one).unflatten(2, (3, -1)) for one in m.qkv(x).chunk(3, -1)), is_causal=True).flatten(2, 3))),
        qkv=linear(3 * WIDTH), out=linear()),
    "LSTM": lambda: Written(lambda m, x: m.rnn(x)[0], rnn=nn.LSTM(WIDTH, WIDTH, batch_first=True)),
    "quasi-recurrent": lambda: Written(
        lambda m, x: (lambda z, f, o: o.sigmoid() * torch.stack(list(_pooled(z.tanh(), f.sigmoid())), 1))(
            *m.conv(functional.pad(x.transpose(1, 2), (1, 0))).transpose(1, 2).chunk(3, -1)),
        conv=nn.Conv1d(WIDTH, 3 * WIDTH, 2)),
    "light convolution": lambda: Written(
        lambda m, x: m.out((functional.pad(functional.glu(m.enter(x), -1), (0, 0, 4, 0)).unfold(1, 5, 1).unflatten(
            2, (HEADS, -1)) * m.kernel.softmax(-1)[:, None]).sum(-1).flatten(2)),
        enter=linear(2 * WIDTH), kernel=drawn(HEADS, 5, std=0.3), out=linear()),
}  # fmt: skip


def _pooled(z: Tensor, f: Tensor) -> Any:
    state = torch.zeros_like(z[:, 0])
    for t in range(z.shape[1]):
        state = f[:, t] * state + (1 - f[:, t]) * z[:, t]
        yield state


def pre(mixer: str = "torch's", second: Callable[[], nn.Module] = mlp, norm: Any = nn.LayerNorm) -> nn.Module:
    return Written(
        lambda m, x: (lambda y: y + m.ff(m.norm2(y)))(x + m.mix(m.norm1(x))),
        norm1=norm(WIDTH), mix=MIXERS[mixer](), norm2=norm(WIDTH), ff=second())  # fmt: skip


def post(mixer: str = "torch's", second: Callable[[], nn.Module] = mlp, alpha: float = 1.0) -> nn.Module:
    return Written(
        lambda m, x: (lambda y: m.norm2(alpha * y + m.ff(y)))(m.norm1(alpha * x + m.mix(x))),
        norm1=nn.LayerNorm(WIDTH), mix=MIXERS[mixer](), norm2=nn.LayerNorm(WIDTH), ff=second())  # fmt: skip


class Tanh(nn.Module):
    """Dynamic tanh in place of a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha, self.gain, self.shift = (nn.Parameter(of) for of in (
            torch.full((1,), 0.5), torch.ones(width), torch.zeros(width)))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * (self.alpha * x).tanh() + self.shift


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "shared experts": lambda: pre("two key heads, rotated", lambda: Written(
        shared_experts, router=linear(6, bias=False), shared=gated(size=96),
        experts=nn.ModuleList(gated(size=96) for _ in range(6))), nn.RMSNorm),
    "mixture of depths": lambda: Written(depth_mixed, body=pre(), router=linear(1)),
    "mixer of words": lambda: Written(
        causal_mixer, norm1=nn.LayerNorm(WIDTH), norm2=nn.LayerNorm(WIDTH), first=drawn(TOKENS, TOKENS),
        second=drawn(TOKENS, TOKENS), bias=nn.Parameter(torch.zeros(TOKENS, 1)), ff=mlp()),
    "dynamic tanh": lambda: pre(norm=Tanh),
    "GEGLU": lambda: pre(second=lambda: gated(functional.gelu)),
    "ReGLU": lambda: pre(second=lambda: gated(torch.relu)),
    "squared ReLU, no biases": lambda: pre(second=lambda: Written(
        lambda m, x: m.down(m.up(x).relu().square()), up=linear(384, bias=False), down=linear(WIDTH, 384, bias=False))),
    "RWKV-4": lambda: Written(
        lambda m, x: (lambda y: y + m.channels(m.norm2(y)))(x + m.time(m.norm1(x))), norm1=nn.LayerNorm(WIDTH),
        norm2=nn.LayerNorm(WIDTH), time=TIME(), channels=CHANNELS()),
    "residuals with gains of 1/sqrt(2)": lambda: Written(
        lambda m, x: (lambda y: 0.5**0.5 * (y + m.ff(m.norm2(y))))(0.5**0.5 * (x + m.mix(m.norm1(x)))),
        norm1=nn.LayerNorm(WIDTH), mix=attention(), norm2=nn.LayerNorm(WIDTH), ff=mlp()),
    "gated residuals": lambda: Written(
        lambda m, x: (lambda g, y: g * x + (1 - g) * y)(m.gate(x).sigmoid(), m.body(x)), gate=linear(), body=pre()),
    "Peri-LN": lambda: Written(
        lambda m, x: (lambda y: y + m.norm4(m.ff(m.norm3(y))))(x + m.norm2(m.mix(m.norm1(x)))), mix=FEW(), ff=gated(),
        **{f"norm{k}": nn.RMSNorm(WIDTH) for k in range(1, 5)}),
    "post, ReLU": lambda: post(second=lambda: mlp(nn.ReLU)),
    "post, alpha 2": lambda: post(alpha=2.0),
    "two norms, one residual": lambda: Written(
        lambda m, x: x + m.ff(m.norm2(m.mix(m.norm1(x)))), norm1=nn.LayerNorm(WIDTH), mix=attention(),
        norm2=nn.LayerNorm(WIDTH), ff=mlp()),
    "dropout on the stream": lambda: nn.Sequential(pre(), nn.Dropout(0.1)),
    "adapters": lambda: Written(
        lambda m, x: (lambda y: y + m.up(functional.gelu(m.down(y))))(m.body(x)), body=pre(), down=linear(8),
        up=linear(WIDTH, 8)),
    "a low rank in the feed-forward": lambda: pre(second=lambda: nn.Sequential(
        linear(24, bias=False), linear(384, 24), nn.GELU(), linear(24, 4 * WIDTH, bias=False), linear(WIDTH, 24))),
    "maxout": lambda: pre(second=lambda: Written(
        lambda m, x: m.down(m.up(x).unflatten(-1, (-1, 2)).amax(-1)), up=linear(4 * WIDTH), down=linear(WIDTH, 192))),
}  # fmt: skip


def initialized(module: nn.Module, kind: str) -> nn.Module:
    """Weights as GPT-2, Glorot, He, Megatron with smaller ends, or torch draw them."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear | nn.Embedding) and kind != "torch":
            ends = name.endswith((".out", ".down", ".o", "ff.2"))
            std = 0.02 / (2 * DEPTH) ** 0.5 if ends and kind == "megatron" else 0.02
            draw = {"glorot": nn.init.xavier_normal_, "he": partial(nn.init.kaiming_normal_, nonlinearity="relu")}
            small_draw = partial(nn.init.normal_, std=std)
            (draw.get(kind, small_draw) if isinstance(part, nn.Linear) else small_draw)(part.weight)
            nn.init.zeros_(torch.zeros(1) if getattr(part, "bias", None) is None else part.bias)
    return module


def model(
    block: Callable[[], nn.Module], kind: str = "gpt", *, norm: Any = nn.LayerNorm, run: Any = None, tied: bool = False,
    width: int = WIDTH,
) -> nn.Module:  # fmt: skip
    """A language model; run maps the embedded tokens to the stream after the blocks."""

    def plain(m: Any, x: Tensor) -> Tensor:
        for layer in m.blocks:
            x = layer(x)
        return x

    made = initialized(Written(
        lambda m, ids: m.head(m.norm((run or plain)(m, m.embed(ids) + m.places))), embed=nn.Embedding(VOCAB, width),
        places=drawn(TOKENS, width), blocks=nn.ModuleList(block() for _ in range(DEPTH)), norm=norm(width),
        head=linear(VOCAB, width, bias=False), dense=nn.Parameter(torch.eye(DEPTH + 1)[1:] if run is dense else
                                                                  torch.zeros(0))), kind)  # fmt: skip
    if run is not dense:
        del made.dense
    if tied:
        made.head.weight = made.embed.weight
    return made


def dense(m: Any, x: Tensor) -> Tensor:
    """DenseFormer: a weighted sum of all earlier outputs after every layer."""
    outputs = [x]
    for number, layer in enumerate(m.blocks):
        outputs.append(layer(outputs[-1]))
        weights = m.dense[number][: len(outputs)]
        outputs[-1] = sum(w * y for w, y in zip(weights, outputs, strict=True))
    return outputs[-1]


def again(m: Any, x: Tensor) -> Tensor:
    """Looped: three layers run twice, with the input added."""
    first = x
    for _ in range(2):
        for layer in m.blocks:
            x = layer(x)
        x = x + first
    return x


def random_depth(m: Any, x: Tensor) -> Tensor:
    """Stochastic depth of evaluation: branches times the chance that they stay."""
    for number, layer in enumerate(m.blocks):
        x = x + (1 - 0.2 * number / DEPTH) * (layer(x) - x)
    return x


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{f"{name}, pre": partial(model, partial(pre, name)) for name in MIXERS if name != "torch's"},
    **{name: partial(model, block) for name, block in BLOCKS.items()},
    **{f"pre, {kind}": partial(model, pre, kind) for kind in ("glorot", "he", "megatron")},
    **{f"{name}, torch's weights": partial(model, BLOCKS[name], "torch")
       for name in ("Peri-LN", "shared experts", "RWKV-4", "post, ReLU", "gated residuals")},
    "DenseFormer": partial(model, pre, run=dense), "looped": partial(model, pre, run=again),
    "random depth": partial(model, pre, run=random_depth), "tied, megatron": partial(model, pre, "megatron", tied=True),
    "hyper-connections": partial(model, lambda: Written(
        streams, body=Written(lambda m, x: m.ff(m.norm2(x + m.mix(m.norm1(x)))), norm1=nn.LayerNorm(WIDTH),
                              mix=attention(), norm2=nn.LayerNorm(WIDTH), ff=mlp()),
        into=nn.Parameter(torch.tensor([1.0, 0.0])), across=nn.Parameter(torch.eye(2)),
        back=nn.Parameter(torch.ones(2))), width=2 * WIDTH),
}  # fmt: skip


def conv(into: int, out: int, size: int = 3, **more: Any) -> nn.Conv2d:
    return nn.Conv2d(into, out, size, padding=size // 2, **{"bias": False} | more)


def residual(make: Callable[[], nn.Module], after: Callable[[Tensor], Tensor] = lambda x: x) -> Callable[[], nn.Module]:
    return lambda: Written(lambda m, x: after(x + m.body(x)), body=make())


C = 40
NORMED = lambda into, out, size=3, **more: nn.Sequential(conv(into, out, size, **more), nn.BatchNorm2d(out))  # noqa: E731
UNITS: dict[str, Callable[[], nn.Module]] = {
    "Xception": residual(lambda: nn.Sequential(
        nn.ReLU(), conv(C, C, groups=C), NORMED(C, C, 1), nn.ReLU(), conv(C, C, groups=C), NORMED(C, C, 1))),
    "ResNeXt": residual(lambda: nn.Sequential(
        NORMED(C, C, 1), nn.ReLU(), NORMED(C, C, groups=8), nn.ReLU(), NORMED(C, C, 1)), torch.relu),
    "Res2Net": residual(lambda: Written(
        lambda m, x: m.out(torch.cat((lambda a, b: [a, (y := m.first(b).relu()), m.second(y).relu()])(
            *m.enter(x).relu().chunk(2, 1)), 1)),
        enter=NORMED(C, C, 1), first=NORMED(20, 20), second=NORMED(20, 20), out=NORMED(60, C, 1)), torch.relu),
    "CBAM": residual(lambda: nn.Sequential(NORMED(C, C), nn.ReLU(), NORMED(C, C), Written(
        lambda m, x: (lambda y: y * m.place(torch.stack([y.mean(1), y.amax(1)], 1)).sigmoid())(
            x * (m.heads(x.mean((2, 3))) + m.heads(x.amax((2, 3)))).sigmoid()[..., None, None]),
        heads=nn.Sequential(nn.Linear(C, 8), nn.ReLU(), nn.Linear(8, C)), place=conv(2, 1, 7))), torch.relu),
    "ECA": residual(lambda: nn.Sequential(NORMED(C, C), nn.ReLU(), NORMED(C, C), Written(
        lambda m, x: x * m.along(x.mean((2, 3))[:, None]).sigmoid().transpose(1, 2)[..., None],
        along=nn.Conv1d(1, 1, 3, padding=1, bias=False))), torch.relu),
    "wide, dropout": residual(lambda: nn.Sequential(
        nn.BatchNorm2d(C), nn.ReLU(), conv(C, 2 * C), nn.Dropout(0.3), nn.BatchNorm2d(2 * C), nn.ReLU(),
        conv(2 * C, C))),
    "group norm, weights standardized": residual(lambda: nn.Sequential(
        nn.GroupNorm(8, C), nn.ReLU(), Written(lambda m, x: functional.conv2d(
            x, (lambda w: (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5))(m.weight)
            * (9 * C) ** -0.5, padding=1), weight=drawn(C, C, 3, 3, std=0.05)))),
    "layer norm over channels": residual(lambda: Written(
        lambda m, x: m.out(functional.gelu(m.up(m.norm(m.along(x).permute(0, 2, 3, 1))))).permute(0, 3, 1, 2),
        along=conv(C, C, 7, groups=C), norm=nn.LayerNorm(C), up=nn.Linear(C, 4 * C), out=nn.Linear(4 * C, C))),
    "global response": residual(lambda: Written(
        lambda m, x: m.out((lambda y: m.gain * y * (lambda n: n / (n.mean(-1, keepdim=True) + 1e-6))(
            y.norm(dim=(1, 2), keepdim=True)) + m.shift + y)(functional.gelu(m.up(m.norm(m.along(x).permute(
                0, 2, 3, 1)))))).permute(0, 3, 1, 2),
        along=conv(C, C, 7, groups=C), norm=nn.LayerNorm(C), up=nn.Linear(C, 4 * C), out=nn.Linear(4 * C, C),
        gain=nn.Parameter(torch.zeros(4 * C)), shift=nn.Parameter(torch.zeros(4 * C)))),
    "leaky ReLU, batch norm": lambda: nn.Sequential(NORMED(C, C), nn.LeakyReLU(0.1)),
    "He's weights, PReLU": lambda: nn.Sequential(conv(C, C, bias=True), nn.PReLU()),
    "gated convolutions": residual(lambda: Written(
        lambda m, x: m.out(functional.glu(m.both(m.norm(x)), 1)), norm=nn.BatchNorm2d(C), both=conv(C, 2 * C),
        out=conv(C, C, 1))),
    "GhostNet": residual(lambda: Written(
        lambda m, x: m.norm(torch.cat((lambda y: [y, m.cheap(y)])(m.first(x).relu()), 1)), first=NORMED(C, 20, 1),
        cheap=NORMED(20, 20, 3, groups=20), norm=NORMED(C, C, 1))),
    "attention over places": residual(lambda: Written(
        lambda m, x: m.out(functional.scaled_dot_product_attention(*(
            m.qkv(m.norm(x)).flatten(2).unflatten(1, (3, 4, -1)).transpose(-1, -2).unbind(1))).transpose(
                -1, -2).flatten(1, 2).unflatten(-1, x.shape[-2:])),
        norm=nn.GroupNorm(8, C), qkv=nn.Conv2d(C, 3 * C, 1), out=nn.Conv2d(C, C, 1))),
}  # fmt: skip


def of_units(name: str) -> Single:
    body = nn.Sequential(*(UNITS[name]() for _ in range(DEPTH)))
    ends = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(C, 10))
    return small_modules.of_images(lambda: nn.Sequential(nn.Conv2d(3, C, 4, 4), body, *ends), 64)


def of_images_with(make: Callable[[], nn.Module]) -> Single:
    return small_modules.of_images(make, 64)


PATCHED: dict[str, Callable[[], nn.Module]] = {
    "DiT with a fixed time": lambda: Written(
        lambda m, x: (lambda c, y: m.head(_through(m.blocks, y, c).mean(1)))(
            m.time(torch.ones(len(x), 1)), m.embed(x).flatten(2).transpose(1, 2) + m.places),
        time=nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)), embed=nn.Conv2d(3, WIDTH, 16, 16),
        places=drawn(16, WIDTH), head=nn.Linear(WIDTH, 10), blocks=nn.ModuleList(Written(
            lambda m, y, c: (lambda s, t, g: y + g[:, None] * m.ff(m.norm(y) * (1 + s[:, None]) + t[:, None]))(
                *m.modulate(functional.silu(c)).chunk(3, -1)),
            norm=nn.LayerNorm(WIDTH, elementwise_affine=False), ff=mlp(), modulate=_zero(linear(3 * WIDTH)))
            for _ in range(DEPTH))),
    "encoder of torch, registers": lambda: Written(
        lambda m, x: m.head(m.body(torch.cat(
            [m.registers.expand(len(x), -1, -1), m.embed(x).flatten(2).transpose(1, 2) + m.places], 1))[:, 0]),
        registers=drawn(1, 5, WIDTH), places=drawn(16, WIDTH), embed=nn.Conv2d(3, WIDTH, 16, 16),
        head=nn.Linear(WIDTH, 10), body=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 192, 0.0, "gelu", batch_first=True), DEPTH,
            enable_nested_tensor=False)),
    "Perceiver": lambda: Written(
        lambda m, x: m.head(_through(m.blocks, m.latents.expand(len(x), -1, -1), m.embed(x).flatten(2).mT).mean(1)),
        latents=drawn(8, WIDTH), embed=nn.Conv2d(3, WIDTH, 8, 8), head=nn.Linear(WIDTH, 10),
        blocks=nn.ModuleList(Written(
            lambda m, y, c: (lambda z: z + m.ff(m.norm2(z)))(y + m.across(m.norm1(y), m.of(c), m.of(c))[0]),
            norm1=nn.LayerNorm(WIDTH), norm2=nn.LayerNorm(WIDTH), of=nn.LayerNorm(WIDTH), ff=mlp(),
            across=nn.MultiheadAttention(WIDTH, 4, batch_first=True)) for _ in range(DEPTH))),
    "ResMLP": lambda: Written(
        lambda m, x: m.head(m.body(m.embed(x).flatten(2).mT).mean(1)), embed=nn.Conv2d(3, WIDTH, 8, 8),
        head=nn.Linear(WIDTH, 10), body=nn.Sequential(*(Written(
            lambda m, x: (lambda y: y + m.gain2 * m.ff(m.scale2 * y))(x + m.gain1 * m.along((m.scale1 * x).mT).mT),
            scale1=nn.Parameter(torch.ones(WIDTH)), scale2=nn.Parameter(torch.ones(WIDTH)), along=nn.Linear(64, 64),
            ff=mlp(), gain1=nn.Parameter(torch.full((WIDTH,), 0.1)), gain2=nn.Parameter(torch.full((WIDTH,), 0.1)))
            for _ in range(DEPTH)))),
}  # fmt: skip


def _through(blocks: Any, y: Tensor, c: Tensor) -> Tensor:
    for block in blocks:
        y = block(y, c)
    return y


def _zero(part: nn.Linear) -> nn.Linear:
    nn.init.zeros_(part.weight)
    nn.init.zeros_(part.bias)
    return part


def of_table(make: Callable[[], nn.Module]) -> Single:
    """Columns of numbers with a number to predict."""
    x = torch.randn(48, 16, generator=torch.Generator().manual_seed(SEED))
    y = x[:, :1] * x[:, 1:2] + x[:, 2:3].abs()
    return make(), x, lambda output: functional.mse_loss(output, y)


def in_a_row(layer: Callable[[], nn.Module], width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(16, width), nn.Sequential(*(layer() for _ in range(DEPTH))), nn.Linear(width, 1))


GRAPH = (lambda a: a / a.sum(1, keepdim=True))((torch.rand(48, 48, generator=torch.Generator().manual_seed(3)) < 0.1)
                                               .float() + torch.eye(48))  # fmt: skip
TABLES: dict[str, Callable[[], nn.Module]] = {
    "crosses": lambda: nn.Sequential(Written(
        lambda m, x: _through(m.blocks, x, x), blocks=nn.ModuleList(
            Written(lambda m, y, c: c * m.of(y) + y, of=nn.Linear(16, 16)) for _ in range(DEPTH))), nn.Linear(16, 1)),
    "graph convolutions": lambda: in_a_row(lambda: Written(lambda m, x: m.of(GRAPH @ x).relu(), of=nn.Linear(64, 64))),
    "graph convolutions, residual": lambda: in_a_row(residual(lambda: Written(
        lambda m, x: m.of(GRAPH @ m.norm(x)).relu(), of=nn.Linear(64, 64), norm=nn.LayerNorm(64)))),
    "GIN": lambda: in_a_row(lambda: Written(
        lambda m, x: m.body((1 + m.own) * x + (GRAPH > 0).float() @ x), own=nn.Parameter(torch.zeros(1)),
        body=nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()))),
    "graph attention": lambda: in_a_row(lambda: Written(
        lambda m, x: (lambda h: functional.elu((functional.leaky_relu(m.a(h) + m.b(h).T, 0.2).masked_fill(
            GRAPH == 0, -1e9).softmax(-1)) @ h))(m.of(x)),
        of=nn.Linear(64, 64, bias=False), a=nn.Linear(64, 1), b=nn.Linear(64, 1, bias=False))),
    "ELU, in a row": lambda: in_a_row(lambda: nn.Sequential(nn.Linear(64, 64), nn.ELU())),
    "GELU and layer norm, in a row": lambda: in_a_row(
        lambda: nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())),
    "softplus, in a row": lambda: in_a_row(lambda: nn.Sequential(nn.Linear(64, 64), nn.Softplus())),
    "gated linear units": lambda: in_a_row(residual(lambda: nn.Sequential(
        nn.LayerNorm(64), nn.Linear(64, 128), nn.GLU(), nn.Linear(64, 64)))),
    "temporal fusion's gates": lambda: in_a_row(lambda: Written(
        lambda m, x: m.norm(x + functional.glu(m.gate(m.drop(m.two(functional.elu(m.one(x))))), -1)),
        one=nn.Linear(64, 64), two=nn.Linear(64, 64), gate=nn.Linear(64, 128), drop=nn.Dropout(0.1),
        norm=nn.LayerNorm(64))),
    "N-BEATS": lambda: Written(
        lambda m, x: sum(_forecasts(m.blocks, x)), blocks=nn.ModuleList(Written(
            lambda m, x: (lambda h: (m.back(h), m.ahead(h)))(m.body(x)), back=nn.Linear(64, 16),
            ahead=nn.Linear(64, 1), body=nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()))
            for _ in range(DEPTH))),
    "periodic features": lambda: nn.Sequential(Written(
        lambda m, x: (lambda a: torch.cat([a.sin(), a.cos()], -1).flatten(1))(2 * math.pi * m.waves * x[..., None]),
        waves=drawn(16, 4, std=0.1)), nn.Linear(128, 64), nn.Sequential(*(residual(lambda: nn.Sequential(
            nn.LayerNorm(64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)))() for _ in range(DEPTH))),
        nn.Linear(64, 1)),
    "a quadratic form's layers": lambda: in_a_row(residual(lambda: Written(
        lambda m, x: m.out(m.a(m.norm(x)) * m.b(m.norm(x))), norm=nn.LayerNorm(64), a=nn.Linear(64, 64),
        b=nn.Linear(64, 64), out=nn.Linear(64, 64)))),
}  # fmt: skip


def _forecasts(blocks: Any, x: Tensor) -> Any:
    for block in blocks:
        back, ahead = block(x)
        x = x - back
        yield ahead


def subjects() -> dict[tuple[str, str], Callable[[], Single]]:
    made: dict[str, tuple[Any, Callable[[Any], Single]]] = {
        "timm": (TIMM.split(), small_modules.of_timm), "torchvision": (TORCHVISION.split(), of_torchvision),
        "x-transformers": (OPTIONS.split(), of_options),
        "written": (MODELS, lambda name: of_words(MODELS[name])),
        "written for images": (UNITS, of_units),
        "written for patches": (PATCHED, lambda name: of_images_with(PATCHED[name])),
        "written for tables": (TABLES, lambda name: of_table(TABLES[name])),
        **{task.replace("_", " ").lower(): (names.split(), partial(of_head, task)) for task, names in HEADED.items()},
    }  # fmt: skip
    found = {
        (f"held out: {package}", name): partial(make, name) for package, (names, make) in made.items() for name in names
    }
    for number, (name, of) in enumerate(SETTINGS):
        found["held out: transformers", f"{name} {' '.join(f'{k}={v}' for k, v in of.items())}"] = partial(
            of_family, number
        )
    for number, (name, kind, of) in enumerate(PEFT):
        words_of = " ".join(f"{k}={v}" for k, v in of.items())
        found["held out: peft", f"{name} {kind} {words_of}"] = partial(of_adapter, number)
    return found
