"""Read the configuration files of encoder-decoders: the families of T5 and BART.

Both have one width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from theory.configurations.family import (
    ACTIVATION,
    EPSILON,
    activation_of,
    one_std,
    small_positions,
    tied,
    without_dropout,
)
from theory.configurations.reading import Fields, Note, Reading

_VANISHING = "biases of logits are N(0, 1/d) at initialization, which is negligible in wide networks"
_OTHER = "here, the output matrix is not tied to the input embeddings"

# The field of the note on a class that ties both ends, where theory does not.
_SHARED_ENDS = "input embeddings and output matrix are one matrix"


@dataclass(frozen=True)
class T5:
    """The reader of configuration files of the T5 family, which has Pre-LN and RMSNorm.

    Matrix entries have the variance 1/(number of inputs).

    The encoder input has as many tokens as the target. Attention logits are not divided by sqrt(d_kv); the standard
    deviation of W^Q is smaller by that factor instead.

    Attributes:
        scaled: whether outputs are divided by sqrt(d), unless the file says that the embeddings are not tied.
    """

    scaled: bool

    def __call__(self, r: Reading, tokens: int) -> Fields:
        """Return the network fields that a T5 configuration describes.

        Target and encoder input have `tokens` tokens each.

        Raises:
            ValueError: there is no decoder, the initialization is scaled, or two fields disagree on the units.
        """
        if not r.switch("is_encoder_decoder"):
            raise ValueError("is_encoder_decoder must be true: T5's encoder without its decoder is not supported.")
        _both(r)
        factor = r.number("initializer_factor")
        if factor != 1.0:
            raise ValueError(f"initializer_factor must be 1, as in all published models, got {factor!r}.")
        in_file, heads, head_width = r.count("d_model", "hidden_size"), r.count("num_heads"), r.count("d_kv")
        width = r.size("width", in_file)
        encoder_depth, hidden = r.count("num_layers", "num_hidden_layers"), r.count("d_ff")
        depth = r.count("num_decoder_layers", default=encoder_depth)
        unit = r.take("feed_forward_proj")
        gated = isinstance(unit, str) and unit.startswith("gated-")
        r.left["feed_forward_proj"] = "gelu_new" if unit == "gated-gelu" else unit[6:] if gated else unit
        activation = activation_of(r, "feed_forward_proj")
        if r.left.get("is_gated_act") not in (None, gated):
            raise ValueError(
                f"is_gated_act must be {gated} with feed_forward_proj = {unit!r}, got {r.left['is_gated_act']!r}."
            )
        if r.left.get("dense_act_fn") is not None and activation_of(r, "dense_act_fn") != activation:
            raise ValueError(f"dense_act_fn must be that of feed_forward_proj = {unit!r}, got another.")
        r.neutral("feed_forward_proj says it", "dense_act_fn", "is_gated_act")
        without_dropout(r)
        r.neutral(_VANISHING, "relative_attention_num_buckets", "relative_attention_max_distance")
        # The file's word for it scales outputs, or not, in classes that tie both ends whatever it says.
        scaled = self.scaled and r.left.get("tie_word_embeddings") is not False
        scaled = r.switch("scale_decoder_outputs", default=scaled) if self.scaled else scaled
        _tied(r, "" if scaled else "without scaled outputs, an input token's large logit makes its loss larger still")
        root = (width / heads if head_width * heads == in_file else head_width) ** 0.5
        return {
            "width": width,
            "depth": r.size("depth", depth),
            "encoder_depth": 0 if encoder_depth == depth else encoder_depth,
            "vocab": r.count("vocab_size"),
            "source_tokens": tokens,
            "heads": heads,
            "head_width": 0 if head_width * heads == in_file else head_width,
            "query_key_scale": 1.0,
            "query_gain": root**-1.0,
            "logit_factor": root,
            "output_projection": "random",
            "ffn": "gated" if gated else "plain",
            "ffn_ratio": hidden / in_file,
            "activation": activation,
            "initialization": "fan_in",
            "placement": "pre",
            "normalization": "rms",
            "norm_epsilon": r.number("layer_norm_epsilon"),
            "mask": "causal",
            "embeddings": "untied",
            # Embeddings and output matrix are N(0, 1), the latter behind a factor d^(-1/2) where outputs are scaled.
            "output_scale": 1.0 if scaled else width**0.5,
        }


@dataclass(frozen=True)
class Bart:
    """The reader of configuration files of the BART family, which has one standard deviation for all matrices.

    Positions are added to the embeddings.

    The encoder input has as many tokens as the target.

    Attributes:
        placement: placement of the norms.
        positions: "learned", or "sinusoidal" for fixed waves.
        normed: whether the input embeddings have a norm.
    """

    placement: str
    positions: str = "learned"
    normed: bool = True

    def __call__(self, r: Reading, tokens: int) -> Fields:
        """Return the network fields that a BART configuration describes.

        Args:
            r: reader of the configuration.
            tokens: number of tokens of the target, and of the encoder input.

        Raises:
            ValueError: there is no encoder, or the heads or MLP widths of encoder and decoder differ.
        """
        if not r.take("is_encoder_decoder", default=True):
            raise ValueError("is_encoder_decoder must be true: the decoder without its encoder is not supported.")
        _both(r)
        in_file = r.count("d_model", "hidden_size")
        width = r.size("width", in_file)
        encoder_depth = r.count("encoder_layers", "num_hidden_layers")
        depth = r.count("decoder_layers", default=encoder_depth)
        heads = r.count("encoder_attention_heads", "num_attention_heads")
        hidden = r.count("encoder_ffn_dim")
        for name, here in (("decoder_attention_heads", heads), ("decoder_ffn_dim", hidden)):
            other = r.count(name)
            if other != here:
                raise ValueError(f"{name} must be the encoder's, {here}, got {other}: both must agree here.")
        without_dropout(r)
        vocab = r.count("vocab_size")
        words = r.count("decoder_vocab_size", default=vocab)
        if words != vocab:
            r.say("vocab_size", vocab, f"the encoder has the decoder's vocabulary, {words}, here")
        r.neutral("one shared embedding matrix has entries as large as two", "share_encoder_decoder_embeddings")
        fields: Fields = {
            "width": width,
            "depth": r.size("depth", depth),
            "encoder_depth": 0 if encoder_depth == depth else encoder_depth,
            "vocab": words,
            "source_tokens": tokens,
            "heads": heads,
            "output_projection": "random",
            "ffn_ratio": hidden / in_file,
            "activation": activation_of(r, *ACTIVATION),
            "placement": self.placement,
            "positions": self.positions,
            "embedding_norm": "added" if self.normed else "none",
            "norm_epsilon": r.number(*EPSILON, **r.usual(1e-5, *EPSILON)),
            "mask": "causal",
            "embeddings": "untied",
        }
        if r.switch("scale_embedding"):
            fields["_inputs"] = width**0.5
            small_positions(r, fields)
        one_std(r, fields)
        _tied(r)
        r.neutral(
            "of older code, whose class has them as they are here", "normalize_before", "normalize_embedding",
            "add_final_layer_norm", "add_bias_logits", "static_position_embeddings", "extra_pos_embeddings",
            "layernorm_variant", "do_blenderbot_90_layernorm", "extra_layer_norm",
        )  # fmt: skip
        return {name: value for name, value in fields.items() if not name.startswith("_")}


def _both(r: Reading) -> None:
    # Raise an error for a class that has only an encoder or only a decoder.
    # ValueError: the file names such a class.
    for name in r.classes:
        if name.endswith(("EncoderModel", "ForCausalLM", "T5ForTokenClassification")):
            raise ValueError(
                f"architectures must be a class of encoder and decoder, got {name!r}: one without the other is not "
                "supported."
            )


def _tied(r: Reading, consequence: str = "") -> None:
    # Note that embeddings and output matrix are tied, which no rule covers in a network with an encoder.
    if tied(r) == "tied":
        r.say(_SHARED_ENDS, True, f"{_OTHER}; {consequence}" if consequence else _OTHER)


def shares_ends(notes: Sequence[Note]) -> bool:
    """Return whether a model's class ties both ends, by its notes, where the Stack does not: its loss is unknown."""
    return any(note.field == _SHARED_ENDS for note in notes)


ENCODER_DECODERS: dict[str, T5 | Bart] = {
    "t5": T5(scaled=True),
    "umt5": T5(scaled=True),
    "mt5": T5(scaled=False),
    "bart": Bart("post"),
    "plbart": Bart("post"),
    "mbart": Bart("pre"),
    "blenderbot-small": Bart("post"),
    "blenderbot": Bart("pre", normed=False),
    "marian": Bart("post", "sinusoidal", normed=False),
    "pegasus": Bart("pre", "sinusoidal", normed=False),
    "m2m_100": Bart("pre", "sinusoidal", normed=False),
}
"""The readers for encoder-decoders, by `model_type`."""
