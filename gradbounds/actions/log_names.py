"""The names of numbers in training logs: of losses, gradient norms, steps and parameters.

A name may also state that its number is squared or clipped.
"""

import re
from collections.abc import Iterable, Mapping

PARAMETER = re.compile(
    r"(?:^|[./])(?:(?:layers?|blocks?|h)_?)?\d+[./][a-z]|(?:^|[./_])(?:layers?|blocks?|h)_?\d+_[a-z]"
    r"|\.(?:weight|bias)\b", re.IGNORECASE,
)  # fmt: skip
"""The part of a name that shows a parameter: the number of its layer, or an ending such as ".weight"."""
APART = re.compile(r"(?:(?:\baux\w*|balanc\w*|\brouter|\bz) ?loss|\bloss scale)$")
"""The end of a name, in the form of `plain`, that shows an auxiliary loss or the loss scale."""
# Names of a step's number in the form of `plain`, the most reliable first; W&B's own `_step` counts calls.
_STEP = (
    "train global step", "global step", "step", "iteration", "iter", "current steps", "train step", "num updates",
    "global step max steps", "global steps", "step idx", "_step",
)  # fmt: skip
_STEP_BESIDE_LOSS = ("steps", "it", "s", "up.")

_LOSS = {"loss", "trl", "xent", "ce", "nll"}
# Losses without further terms: of a language model, of masked tokens, or of the main one of several heads.
_CROSS_ENTROPY = {"lm", "mlm", "llm", "gpt", "main", "ce", "nll", "xent", "entropy"}
VALIDATION = set("val valid validation eval evaluation test dev".split())
"""Words that show a validation loss in a name, or in a field such as `split`."""
_MEAN = {"avg", "average", "mean"}
_OF_LOSS = _LOSS | _CROSS_ENTROPY | VALIDATION | _MEAN | set(
    "train training cross language model reduced total batch current step info out global".split()
)  # fmt: skip
# Parts of names for a fast first selection among many names.
_HAS_LOSS, _HAS_NORM, _HAS_STEP = (
    re.compile(part, re.IGNORECASE)
    for part in (r"loss|trl|xent|nll|\bce\b", "norm|^grad$|grad.*l2", r"step|iter|update|^(?:it|s|up\.)$")
)
_GRADIENT = {"grad", "grad.", "gradient", "gnorm"}
_ALONE = {"norm", "total", "global", "train"}
_OF_NORM = _GRADIENT | _ALONE | {"l2", "2", "2.0", "step"}

# The part of a norm's name that shows a squared norm.
_SQUARED = re.compile(
    r"(?:(?<=norm)|(?<=l2))(?:[_ .-]?sq(?:uared?)?(?![a-z0-9])|\^2|\*\*2)"
    r"|(?<![a-z])sq(?:uared?)?[_ -](?=(?:grad(?:ient)?[_ -])?(?:g?norm|l2))", re.IGNORECASE,
)  # fmt: skip
_CLIP = r"((?:pre|before)[_ -]?clip(?:ping|ped)?|unclipped|raw)|(?:(?:post|after)[_ -]?clip(?:ping|ped)?|clipped)"
# The part of a norm's name that shows a norm after clipping or, in a group, before clipping.
_CLIPPED = re.compile(rf"(?:^|[_ .(-]|(?<=/))(?:{_CLIP})(?![a-z0-9])\)?", re.IGNORECASE)
_WRAPPER = re.compile(r"(?<![^./])(?:_checkpoint_wrapped_module|_fsdp_wrapped_module|_orig_mod|module)\.")


def plain(name: str) -> str:
    """Return a name in lower case, with one space between its words.

    >>> plain("train/CrossEntropyLoss"), plain("GradNorm"), plain("gNorm")
    ('train cross entropy loss', 'grad norm', 'gnorm')
    """
    return re.sub(r"[^a-z0-9.]+", " ", re.sub("(?<=[a-z]{2})(?=[A-Z])", " ", name).lower()).strip()


def is_squared(name: str) -> bool:
    """Return whether a logged number's name says that it is a squared norm.

    >>> is_squared("grad_norm^2"), is_squared("layers.3.up.weight/norm_sq"), is_squared("grad_norm")
    (True, True, False)
    """
    return _SQUARED.search(name) is not None


def is_clipped(name: str) -> bool | None:
    """Return whether a logged norm's name says "after clipping" (True), "before clipping" (False), or neither (None).

    >>> is_clipped("grad_norm_clipped"), is_clipped("grad_norm/before_clipping"), is_clipped("grad_norm")
    (True, False, None)
    """
    word = _CLIPPED.search(name)
    return None if word is None else word[1] is None


def bare(name: str) -> str:
    """Return the name of a logged norm without the words for "squared" and "clipped".

    >>> bare("clipped_grad_norm"), bare("layers.3.up.weight/norm_sq")
    ('grad_norm', 'layers.3.up.weight/norm')
    """
    return _CLIPPED.sub("", _SQUARED.sub("", name)).lstrip("_ -")


def unwrapped(name: str) -> str:
    """Return a parameter's name without the prefixes that compiling, checkpointing and sharding add.

    >>> unwrapped("_orig_mod.h.0._checkpoint_wrapped_module.fc.weight")
    'h.0.fc.weight'
    """
    return _WRAPPER.sub("", name)


def losses(names: Iterable[str], *, of_validation: bool = False) -> list[str]:
    """Return the names of training or validation losses, with a cross-entropy before sums that contain other terms.

    A mean comes last, but for a loss that is reduced over devices, which comes before the loss of one device.

    >>> losses(["train/Z loss", "loss/train/total", "val/loss", "train/CE loss", "avg_loss"])
    ['train/CE loss', 'loss/train/total', 'avg_loss']
    """
    matches: list[tuple[tuple[bool, bool, bool], str]] = []
    for name in filter(_HAS_LOSS.search, names):
        whole, tail = set(plain(name).split()), set(plain(name.rpartition("/")[2]).split())
        if bool(whole & VALIDATION) == of_validation and any(
            words & _LOSS and words <= _OF_LOSS for words in (whole, tail)
        ):
            matches.append(((not whole & _CROSS_ENTROPY, bool(whole & _MEAN), "reduced" not in whole), name))
    return [name for _, name in sorted(matches, key=lambda pair: pair[0])]


def norms(names: Iterable[str]) -> list[str]:
    """Return the names of the total gradient norm in a log: norms before clipping first, norms before their squares.

    >>> norms(["param_norm", "clipped_grad_norm", "grad_norm_sq", "layers.3.up.weight/grad_norm"])
    ['grad_norm_sq', 'clipped_grad_norm']
    """
    after = {False: 0, None: 1, True: 2}
    matches: list[tuple[tuple[int, bool, bool], str]] = []
    for name in filter(_HAS_NORM.search, names):
        of = bare(name)
        whole, tail = set(plain(of).split()), set(plain(of.rpartition("/")[2]).split())
        is_gradient = whole <= _ALONE or any(words & _GRADIENT and words <= _OF_NORM for words in (whole, tail))
        if (whole & {"norm", "gnorm", "l2"} and is_gradient or whole == {"grad"}) and not PARAMETER.search(name):
            matches.append(
                ((after[is_clipped(name)], is_squared(name), not whole & _GRADIENT or whole == {"grad"}), name)
            )
    return [name for _, name in sorted(matches, key=lambda pair: pair[0])]


def step_of(record: Mapping[str, float], *, has_loss: bool) -> float | None:
    """Return the training step of a log's record: an integer, NaN if marked as unknown, or None if not stated.

    >>> step_of({"_step": 0, "train/global_step": 10, "train/loss": 9.9}, has_loss=True)
    10
    """
    named = {name: value for name, value in record.items() if _HAS_STEP.search(name) and not value % 1 > 0}
    tails = {plain(name.rpartition("/")[2]): value for name, value in named.items() if "/" in name}
    steps = {name: value for name, value in tails.items() if name in _STEP}
    steps |= {name if name == "_step" else plain(name): value for name, value in named.items()}
    beside = (*_STEP_BESIDE_LOSS, *(name for name in steps if name.endswith((" step", " iteration")))) * has_loss
    return next((steps[name] for name in _STEP + beside if name in steps), None)
