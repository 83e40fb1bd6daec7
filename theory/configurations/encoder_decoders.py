"""What the fields of T5's configuration mean: an encoder and a decoder of one size."""

from theory.configurations.families import Fields, activation_of, without_dropout
from theory.configurations.reading import Reading

_VANISHING = "biases of logits are N(0, 1/d) at initialization, and vanish in wide networks"


def t5(r: Reading, tokens: int) -> Fields:
    """T5, mT5, FLAN-T5: Pre-LN with RMSNorm, each matrix N(0, 1/its inputs), a source of as many tokens as the target.

    Logits of attention are not divided by sqrt(d_kv); instead W^Q is smaller by that, so that they are the same.

    Raises:
        ValueError: there is no decoder, or the initialization is scaled.
    """
    if not r.take("is_encoder_decoder", default=True):
        raise ValueError("is_encoder_decoder must be true: T5's encoder alone is not read.")
    factor = r.number("initializer_factor", default=1.0)
    if factor != 1.0:
        raise ValueError(f"initializer_factor must be 1, which all published models have, got {factor!r}.")
    width, heads, head_width = r.count("d_model"), r.count("num_heads"), r.count("d_kv", default=64)
    depth, hidden = r.count("num_layers"), r.count("d_ff")
    other = r.count("num_decoder_layers", default=depth)
    if other != depth:
        r.say("num_decoder_layers", other, f"the decoder has as many layers as the encoder, {depth}, here")
    unit = r.take("feed_forward_proj", default="relu")
    gated = isinstance(unit, str) and unit.startswith("gated-")
    r.left["feed_forward_proj"] = "gelu_new" if unit == "gated-gelu" else unit[6:] if gated else unit
    activation = activation_of(r, "feed_forward_proj")
    r.neutral("feed_forward_proj says it", "dense_act_fn", "is_gated_act")
    without_dropout(r)
    r.left_out("gradients are those without dropout, as in evaluation", "dropout_rate")
    r.neutral(_VANISHING, "relative_attention_num_buckets", "relative_attention_max_distance")
    tied = r.take("tie_word_embeddings", default=True)
    scaled = r.take("scale_decoder_outputs", default=tied)
    if tied:
        r.say("tie_word_embeddings", True, "the output matrix is another than the inputs' here")
    r.say(
        "W^Q",
        f"N(0, 1/(d d_kv)), d_kv = {head_width}",
        f"its gradient's norm is sqrt({head_width}) times what stands here",
    )
    return {
        "width": width,
        "depth": depth,
        "vocab": r.count("vocab_size"),
        "source_tokens": tokens,
        "heads": heads,
        "head_width": 0 if head_width * heads == width else head_width,
        "query_key_scale": 1.0,
        "output_projection": "random",
        "ffn": "gated" if gated else "plain",
        "ffn_ratio": hidden / width,
        "activation": activation,
        "initialization": "fan_in",
        "placement": "pre",
        "normalization": "rms",
        "norm_epsilon": r.number("layer_norm_epsilon", default=1e-6),
        "mask": "causal",
        "embeddings": "untied",
        # Embeddings and output matrix are N(0, 1), the latter behind a factor d^(-1/2) where outputs are scaled.
        "output_scale": 1.0 if scaled else width**0.5,
    }


ENCODER_DECODERS = {"t5": t5, "mt5": t5}
"""By `model_type`."""
