"""A reader of configuration files, which uses every field or notes why the field is not used."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from theory.configurations.classes import ModelClass
from theory.configurations.training_codes import Scales
from theory.stack.registry import nearest

Fields = dict[str, Any]
"""Fields of the Stack that a configuration describes; names with an underscore pass values between rules."""

_REQUIRED: Any = object()

_LIMITS = "it only limits the length of a sequence"

SAID_ELSEWHERE = {
    "it names software and does not describe the network": (
        "_name_or_path", "architectures", "auto_map", "model_type", "torch_dtype", "dtype", "transformers_version",
        "use_cache", "use_return_dict", "return_dict", "output_attentions", "output_hidden_states", "id2label",
        "label2id", "problem_type", "chunk_size_feed_forward", "gradient_checkpointing", "pretraining_tp",
        "tokenizer_class", "task_specific_params", "attn_implementation", "_attn_implementation", "is_decoder",
        "cache_implementation", "position_embedding_type", "cross_attention_hidden_size", "quantization_config", "name",
        "output_past", "_num_labels",
        "num_labels", "finetuning_task", "prefix", "gradient_checkpoint", "tokenizer", "language", "license",
        "_flash_attn_2_enabled", "_attn_implementation_autoset", "unsloth_version", "unsloth_fixed", "_commit_hash",
        "transformers.js_config", "is_llama_config", "model_name", "torchscript", "use_bfloat16",
        "rope_interleaved", "full_attn_mod", "interpolate_factor", "directionality", "classifier_activation",
        "classifier_bias", "classifier_pooling", "save_step", "reorder_and_upcast_attn", "attention_softmax_in_fp32",
        "scale_attention_softmax_in_fp32", "deterministic_flash_attn", "sparse_prediction", "n_special",
        "sparse_pred_ignore_index", "predict_special_tokens", "neuron", "base_model_tp_plan", "kv_cache_dtype",
        "reference_compile", "inference_runner", "pad_key_length", "validate_runner_input", "max_batch_size",
        "pre_allocate_kv_cache", "use_parallel_embedding",
    ),
    "it is about sampling from a trained network": (
        "do_sample", "temperature", "top_k", "top_p", "typical_p", "num_beams", "num_beam_groups", "max_length",
        "min_length", "max_new_tokens", "early_stopping", "repetition_penalty", "length_penalty", "bad_words_ids",
        "diversity_penalty", "encoder_no_repeat_ngram_size", "no_repeat_ngram_size", "num_return_sequences",
        "suppress_tokens", "begin_suppress_tokens", "exponential_decay_length_penalty", "output_scores",
        "return_dict_in_generate", "remove_invalid_values", "renormalize_logits", "force_bos_token_to_be_generated",
    ),
    "it belongs to a head that language models lack": (
        "summary_activation", "summary_first_dropout", "summary_last_dropout", "summary_proj_to_labels",
        "summary_type", "summary_use_proj", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
        "pooler_size_per_head", "pooler_type", "pooler_act", "pooler_hidden_act", "pooler_hidden_size",
    ),
    _LIMITS: (
        "max_position_embeddings", "n_positions", "n_ctx", "block_size", "sequence_len", "seq_length",
        "original_max_position_embeddings", "max_sequence_length", "model_max_length", "max_seq_len", "seq_len",
        "model_max_positions",
    ),
    "the gains of norms are 1 at initialization": (
        "layer_norm_elementwise_affine", "elementwise_affine",
    ),
    "a bias is zero at initialization": (
        "attention_bias", "mlp_bias", "bias", "qkv_bias", "use_bias", "lm_head_bias", "use_qkv_bias",
        "attention_out_bias", "enable_bias", "norm_bias", "decoder_bias", "o_bias", "add_qkv_bias", "attn_bias",
        "layer_norm_bias",
    ),
}  # fmt: skip
"""Fields that change nothing at initialization in any family, grouped by reason."""

# What is true or false in any family; the defaults of a class tell which fields of its own are.
_SWITCHES = frozenset(SAID_ELSEWHERE["a bias is zero at initialization"])

MATTER_WHEN_OFF = {
    "is_causal": "tokens would then attend to later tokens; --ignore is_causal --mask none predicts that network",
    "causal": "tokens would then attend to later tokens; --ignore causal --mask none predicts that network",
    "rotary": "this model's class always uses rotary positions",
    "use_rope": "this model's class always uses rotary positions",
    "norm_topk_prob": "this model's class always divides the chosen experts' scores by their sum",
    "is_gated_act": "feed_forward_proj states whether hidden units are gated",
    "pre_norm": "the norms would then have other positions",
    "normalize_before": "the norms would then have other positions",
}
"""Fields of other people's code that change the network if they are false, with the reason."""

# What the classes that predict words end with.
_OF_WORDS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "MTModel")
_OTHER_HEADS = {
    "ElectraForPreTraining": "its loss is about which tokens were replaced",
    "ForPreTraining": "its loss has a second part, about whether a sentence follows another",
    "DoubleHeadsModel": "its loss has a second part, about multiple choices",
    "ForSequenceClassification": "its loss is about outputs for a whole sequence",
    "ForTokenClassification": "its loss is about labels of single tokens",
    "ForQuestionAnswering": "its loss is about the start and end of an answer",
    "ForMultipleChoice": "its loss is about multiple choices",
    "RewardModel": "its loss is about one output for a whole sequence",
    "Model": "it has no head and no loss",
}
_OF_TOKENS = ("_token_id", "_token_ids", "_token_index", "_token_indices")
_LONG, _LONG_NAME = 160, 60


@dataclass(frozen=True, slots=True)
class Note:
    """A remark on a field of a configuration file that the network description cannot represent.

    Attributes:
        field: name of the field, escaped, and cut after 60 characters; known names are shorter.
        value: value of the field.
        what: kind of the note. "neutral": the field changes nothing at initialization. "left out": the Stack lacks
            what the field describes. "default": the file does not set the field, and the default of the model's class
            is used. "drawn": how the weights are initialized; the value is `drawn_by`. "older": versions of a library
            that initialize differently.
        reason: the reason in words.
    """

    field: str
    value: Any
    what: Literal["neutral", "left out", "unread", "default", "drawn", "older"]
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "field", _short(self.field, _LONG_NAME).strip("'\""))

    @classmethod
    def neutral(cls, field: str, value: Any, reason: str) -> "Note":
        """Create a note on a configuration field that changes nothing at initialization."""
        return cls(field, value, "neutral", reason)

    def __str__(self) -> str:
        if self.what == "drawn":
            return f"{self.field} are drawn {self.reason}"
        if self.what == "older":
            return f"{self.field} {self.value} {self.reason}"
        value = _short(self.value)
        if self.what == "unread":
            return f"{self.field} = {value}{f' ({self.reason} holds)' * bool(self.reason)}"
        what = "the class's default" if self.what == "default" else self.what
        return f"{self.field} = {value} is {what}: {self.reason}"


def model_type(notes: Sequence[Note]) -> str | None:
    """Return the model family (`model_type`) of a configuration that was read, from the notes on it, or None."""
    return next((note.value for note in notes if (note.field, note.what) == ("model_type", "neutral")), None)


def context(notes: Sequence[Note]) -> int | None:
    """Return the longest sequence length that a model's configuration allows; None if it has no limit."""
    named = {note.field: note.value for note in notes if note.reason == _LIMITS}
    lengths = [named[name] for name in SAID_ELSEWHERE[_LIMITS] if name in named and not name.startswith("original")]
    # RoBERTa's classes count positions from behind that of the padding, which is 1.
    unused = 2 if "roberta" in (model_type(notes) or "") else 0
    return next((each - unused for each in lengths if isinstance(each, int) and each > unused), None)


def drawn_by(notes: Sequence[Note]) -> str | None:
    """Return the name of the rule that initializes a model's weights, from the notes on its configuration.

    It is None if no note has it.
    """
    return next((str(note.value) for note in notes if note.what == "drawn"), None)


class Reading:
    """A reader of one configuration file, with the fields that are not read yet and notes on those that are.

    Args:
        config: the fields of the file.
        of: defaults of the model's own class for fields that the file does not set; None if there is no class.
        sizes: requested width and depth that replace those of the file, by "width" and "depth".

    Raises:
        ValueError: a switch is neither true nor false, or `architectures` is not a list of names.
    """

    def __init__(
        self, config: Mapping[str, Any], of: ModelClass | None = None, sizes: Mapping[str, int] | None = None
    ) -> None:
        self.left = dict(config)
        self.in_config = dict(config)
        self.of = of or ModelClass("")
        self.notes: list[Note] = []
        self.scales = Scales(0.0)  # which a family's rules find
        self.sizes = sizes or {}
        self.embeddings: str | None = None  # "tied" or "untied" if requested instead of the file's value
        self.masked = 0.15  # share of masked words if the class has any; 1 if all positions count
        self.in_file: dict[str, int] = {}
        self.held: dict[str, tuple[str, Any]] = {}  # the class's field and its value, by each of its other names
        for name, value in config.items():
            switch = name in _SWITCHES or isinstance(self.of.defaults.get(name), bool)
            if switch and not (value is None or (isinstance(value, int) and value in (0, 1))):
                raise ValueError(f"{name} must be true or false, got {_short(value)}.")
        self.classes = config.get("architectures") or []
        if isinstance(self.classes, str):
            self.classes = [self.classes]
        if not isinstance(self.classes, list) or not all(isinstance(name, str) for name in self.classes):
            raise ValueError(f"architectures must be a list of words, got {_short(self.classes)}.")

    def size(self, name: Literal["width", "depth"], in_file: int) -> int:
        """Return the width or depth that the user requests, or the configuration file's own if none is requested.

        The file's size is kept in `in_file`, for keys of the file that are relative to it.
        """
        self.in_file[name] = in_file
        return self.sizes.get(name, in_file)

    def knows(self, name: str) -> bool:
        """Return whether the model's class knows a configuration field of this name; False without a class."""
        return name in self.of.keys

    def take(self, *names: str, default: Any = _REQUIRED) -> Any:
        """Return the value of a configuration field and mark it as read, under any of the field's names.

        The field is removed; only names that the class knows count.

        For a field that is not in the file, the result is the default of the model's class. For null it is `default`,
        the value that the class derives from other fields.

        Raises:
            ValueError: the field has no value and no default, or two of its names have different values.
        """
        others = [name for name in names if name in self.left]
        names = tuple(name for name in names if self.knows(name)) or names
        given = {name: self.left.pop(name) for name in names if name in self.left}
        values = [value for value in given.values() if value is not None]
        if any(value != values[0] for value in values[1:]):
            raise ValueError(
                f"{' and '.join(given)} must be one number, got {' and '.join(map(repr, given.values()))}."
            )
        defaulted = next((name for name in names if self.of.defaults.get(name) is not None), None)
        holds = next(iter(given), defaulted or names[0])
        self.held |= dict.fromkeys((*others, *names), (holds, values[0] if values else self.of.defaults.get(holds)))
        if values:
            return values[0]
        if defaulted is not None and not given:
            value = self.of.defaults[defaulted]
            self.notes.append(Note(defaulted, value, "default", "the file has none"))
            return value
        if default is _REQUIRED:
            got = f"null, which {defaulted} must not be" if given else "none"
            raise ValueError(f"config must have {' or '.join(names)}, got {got}.")
        return default

    def usual(self, value: Any, *names: str) -> dict[str, Any]:
        """Return the default for a configuration field that may be null, as a keyword argument of `take`.

        It is `{"default": value}`, or {} if the class has a default.

        In a class with a default, null is an error.
        """
        return {} if any(self.of.defaults.get(name) is not None for name in names) else {"default": value}

    def number(self, *names: str, default: Any = _REQUIRED) -> Any:
        """Return a configuration field that must be a finite number, and mark it as read.

        Raises:
            ValueError: the value is not a number, or the field is missing without a default.
        """
        given = next((name for name in names if name in self.left), names[0])
        value = self.take(*names, default=default)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf
        ):
            raise ValueError(f"{given} must be a number, got {value!r}.")
        return value

    def positive(self, name: str) -> Any:
        """Return a configuration field that must be a factor above 0, and mark it as read.

        Raises:
            ValueError: the value is not a number above 0, or the field is missing.
        """
        value = self.number(name)
        if not value > 0:
            raise ValueError(f"{name} must be above 0, got {value!r}.")
        return value

    def count(self, *names: str, default: Any = _REQUIRED, least: int = 1) -> Any:
        """Return a configuration field that must be an integer not below a given one, and mark it as read.

        The smallest allowed value is `least`.

        Raises:
            ValueError: the value is not such an integer, or the field is missing without a default.
        """
        given = next((name for name in names if name in self.left), names[0])
        value = self.number(*names, default=default)
        if value is not None and not (least <= value < math.inf and value == int(value)):
            raise ValueError(f"{given} must be an integer of at least {least}, got {value!r}.")
        return None if value is None else int(value)  # 4096.0 is 4096

    def switch(self, *names: str, default: Any = _REQUIRED) -> bool:
        """Return a configuration field that must be true or false, and mark it as read.

        Raises:
            ValueError: the value is neither, or the field is missing without a default.
        """
        value = self.take(*names, default=default)
        if not isinstance(value, bool):
            raise ValueError(f"{names[0]} must be true or false, got {value!r}.")
        return value

    def refused(self, reason: str, *names: str) -> None:
        """Raise an error if a configuration switches on a feature for which the theory has no rule.

        Args:
            reason: the reason, for the error message.
            names: names of the fields.

        Raises:
            ValueError: one of the fields is on.
        """
        for name in names:
            if self.left.get(name):
                raise ValueError(f"{name} must be false, got {self.left[name]!r}: {reason}.")
            self.neutral("it is switched off", name)

    def neutral(self, reason: str, *names: str) -> None:
        """Note configuration fields that change nothing at initialization, with the reason."""
        self._note("neutral", reason, names)

    def left_out(self, reason: str, *names: str) -> None:
        """Note configuration fields for features that the network description lacks, unless they are off."""
        for name in names:
            if name in self.left and not self.left[name]:
                self._note("neutral", "it is switched off", [name])
            else:
                self._note("left out", reason, [name])

    def say(self, field: str, value: Any, reason: str) -> None:
        """Note a property of the model that the network description lacks and that is not a configuration field."""
        self.notes.append(Note(field, value, "left out", reason))

    def factor(self, what: str, factor: float) -> None:
        """Note that the model stores a matrix times a constant factor, which divides the matrix's gradient.

        The matrix of the class is that of the Stack times the factor.
        """
        times = f"entries are {factor:.4g} and gradients {1 / factor:.4g} times as large as in the Stack"
        self.say(what, factor, f"{times}; only norms and critical rates of step 1 include this factor")

    def _note(self, what: Literal["neutral", "left out", "unread"], reason: str, names: Sequence[str]) -> None:
        for name in list(names):
            if name in self.left:
                value = self.left.pop(name)
                if value is not None:
                    self.notes.append(Note(name, value, what, reason))

    def heads(self) -> None:
        """Note a model class in `architectures` that has no language-model head or belongs to another family."""
        for name in self.classes:
            ending = next((suffix for suffix in _OF_WORDS if name.endswith(suffix)), None)
            usual = next((suffix for suffix in _OF_WORDS if self.of.name.endswith(suffix)), "")
            stem, kind = name.removesuffix(ending or ""), self.of.name.removesuffix(usual)
            if ending is None:
                why = next(
                    (text for suffix, text in _OTHER_HEADS.items() if name.endswith(suffix)), "its loss is not known"
                )
                self.left.pop("architectures", None)
                self.say("architectures", name, f"{why}; here a token id is predicted at every position")
            elif kind and stem.lower() != kind.lower():
                self.left.pop("architectures", None)
                self.say("architectures", name, f"the prediction is for the class {self.of.name}")

    def finish(self) -> None:
        """Note all remaining configuration fields that change nothing, and reject fields that are not known.

        Raises:
            ValueError: a field is not known, or cross-attention is requested.
        """
        if unknown := self.unknown():
            raise ValueError(self._unknown(*unknown))

    def unknown(self) -> list[str]:
        """Return the names of configuration fields that no rule reads and that are not known to be neutral.

        Neutral fields are noted.

        Raises:
            ValueError: cross-attention to an encoder is requested.
        """
        self.refused("attention to an encoder cannot be read from a file", "is_encoder_decoder", "add_cross_attention")
        self.heads()
        for reason, names in SAID_ELSEWHERE.items():
            self.neutral(reason, *names)
        self.neutral("it is a token id", *(name for name in self.left if name.endswith(_OF_TOKENS)))
        for name, value in list(self.left.items()):
            is_off = value is None or (not value and name not in MATTER_WHEN_OFF)
            if name in self.of.defaults and value == self.of.defaults[name]:
                self.neutral("it is the default of the class", name)
            elif (
                is_off
                and not (value == 0 and value is not False and self.knows(name))
                and not self.of.defaults.get(name)
            ):
                self.neutral("it is switched off", name)
            elif value is True and name in MATTER_WHEN_OFF:
                self.neutral("the model's class always does this", name)
            elif self.is_unread(name):
                self.say_unread(name)
        return sorted(self.left)

    def is_unread(self, name: str) -> bool:
        """Return whether the model's class ignores a key, and with it the value that the file states.

        No key counts as unread in a file with its own code or without a `model_type`, because unknown code may read it.
        """
        is_own_code = not self.of.name or "model_type" not in self.in_config or "auto_map" in self.in_config
        # The masks of every class read is_causal, although no configuration class has it.
        return not is_own_code and not self.knows(name) and name != "is_causal"

    def say_unread(self, name: str, always: Any = None) -> None:
        """Note a key that the class does not read, with the field that holds instead, unless both state the same.

        Args:
            name: the key.
            always: the value that the class always has; None if no such value is known.
        """
        # A likeness of 0.8 is that of two misspelled letters in ten.
        near = (
            []
            if always is not None
            else get_close_matches(name, self.of.keys.difference(self.in_config), 1, cutoff=0.8)
        )
        holds, value = self.held.get(name) or next(
            (
                self.held.get(each, (field, self.in_config.get(field, self.of.defaults.get(field))))
                for each in near
                for field in [self.of.names.get(each, each)]
            ),
            ("" if always is None else name, always),
        )
        instead = f"the default of {holds}" if value is None else f"{holds} = {_short(value)}"
        is_same = bool(holds) and self.left[name] == value
        self._note("neutral" if is_same else "unread", instead * bool(holds), [name])

    def _unknown(self, name: str, *others: str) -> str:
        if name in MATTER_WHEN_OFF:
            return f"{name} must be true, got {self.left[name]!r}: {MATTER_WHEN_OFF[name]}."
        given = f"{Note.neutral(name, '', '').field} = {_short(self.left[name])}"
        return (
            f"config must have only fields of its family, got {given}, with an unknown effect at initialization; "
            f"--ignore {' '.join([name, *others])} leaves {'them' if others else 'it'} out."
            f"{' A file for a Hugging Face class requires a model_type.' * ('model_type' not in self.in_config)}"
            f"{nearest(name, sorted(self.of.keys.difference(self.in_config)))}"
        )


def _short(value: Any, most: int = _LONG) -> str:
    words = repr(value)
    return f"{words[:most]}..." if len(words) > most else words
