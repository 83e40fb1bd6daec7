"""The configuration of networks to sample: the network description with engine, device, data type and text.

It is a `Cell`, and the description is a Stack.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch

from simulate.network.conditioned import NORMAL_ONLY
from simulate.network.gram import drawn_rows, without_gram
from simulate.text import TextWindows
from theory.stack import Stack, check_stack
from theory.stack.initializations import NORMAL
from theory.stack.weights import copies, law, rows_met, weight_shapes

EngineName = Literal["auto", "conditioned", "dense", "gram"]
DtypeName = Literal["float32", "float64"]

# Sized so that a block's weights take about 128 MiB in float32, and so that small networks still share a tensor.
_BLOCK_NORMALS = 2**25
MOST_DRAWS = 64

_CONDITIONED_FROM = 6


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """A configuration of networks to sample: the network description with engine, device, data type and text.

    Attributes:
        stack: the network.
        engine: "dense", "conditioned" or "gram"; "auto" becomes the cheaper of the first two.
        device: "cpu", "cuda" or "cuda:N"; a `torch.device` is stored by its name.
        dtype: the type of weights and activations.
        text: windows of a real text as inputs; None for inputs and labels as the Stack describes them.
        key: canonical JSON of the fields that differ from their defaults, the versions of registered names, and the
            sampling options; with a root seed it determines every random number.
        name: sixteen hexadecimal digits that identify the key in files and tables.

    Raises:
        ValueError: an unknown engine, dtype or device, or windows of another length than the stack's.
    """

    stack: Stack
    engine: EngineName = "auto"
    device: str = "cpu"
    dtype: DtypeName = "float32"
    text: TextWindows | None = None
    key: str = field(init=False, repr=False)
    name: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_stack(self.stack)
        for name, allowed in (("engine", get_args(EngineName)), ("dtype", get_args(DtypeName))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}, got {getattr(self, name)!r}.")
        object.__setattr__(self, "device", device_name(self.device))
        if self.engine == "conditioned" and law(self.stack) != NORMAL:
            raise ValueError(NORMAL_ONLY)
        if self.engine == "gram" and (reason := without_gram(self.stack)):
            raise ValueError(reason)
        if self.text is not None:
            _check_text(self.stack, self.text)
        if self.engine == "auto":
            object.__setattr__(self, "engine", cheaper_engine(self.stack))
        sampling: dict[str, Any] = {"engine": self.engine, "device": self.device_kind, "dtype": self.dtype}
        if self.text is not None:
            sampling["text"] = self.text.digest
        if self.stack.versions:
            sampling["registered"] = self.stack.versions
        # A field of Stack added later does not change it, as long as it keeps its default.
        content = {"stack": self.stack.non_default()} | sampling
        object.__setattr__(self, "key", json.dumps(content, sort_keys=True, separators=(",", ":")))
        object.__setattr__(self, "name", hashlib.sha256(self.key.encode()).hexdigest()[:16])

    @property
    def device_kind(self) -> str:
        """The device without its index, "cpu" or "cuda"; numbers are the same on all GPUs of one model."""
        return self.device.partition(":")[0]

    @property
    def draws_per_block(self) -> int:
        """The number of random networks in a block, a power of two that depends only on network and engine."""
        s, parts = self.stack, self.stack.parts
        if self.engine == "dense":
            each = sum(
                part.depth * copies(part, role) * a * b
                for part in parts
                for role, (a, b) in weight_shapes(part).items()
            )
            normals = each + s.vocab * s.width + sum(part.rows for part in parts) * s.width
        elif self.engine == "gram":
            normals = 2 * sum(rows * width for rows, width in drawn_rows(s))
        else:
            # Rows of every matrix, forward and back; about as many more numbers are kept for the backward pass.
            each = sum(
                part.depth * copies(part, role) * rows_met(part)[role] * (a + b)
                for part in parts
                for role, (a, b) in weight_shapes(part).items()
            )
            normals = each + s.rows * (2 * s.width + s.vocab)
        return max(1, min(MOST_DRAWS, 1 << max(0, (_BLOCK_NORMALS // normals).bit_length() - 1)))

    def blocks(self, draws: int) -> int:
        """Return the number of blocks that contain at least the given number of random networks."""
        return -(-draws // self.draws_per_block)

    def block_seed(self, seed: int, block: int) -> int:
        """Return the seed of a block's random generator, from the root seed and the block's index.

        CPU generators read only the lower 32 bits of a seed (mt19937). A separate hash for every block would therefore
        repeat streams after about 10^4 blocks; counting up from one hash per cell never repeats within a cell.
        """
        return (int.from_bytes(hashlib.sha256(f"{seed}:{self.key}".encode()).digest()[:7], "big") + block) % 2**56


def cheaper_engine(stack: Stack) -> EngineName:
    """Return the engine, "dense" or "conditioned", that samples a network faster, by a fixed rule.

    The rule counts operations.

    The choice determines the numbers, so it must not depend on measured times. Both engines are exact for normal
    matrices; other laws need "dense". The conditioned engine samples 4 n d numbers per layer instead of 3 d², with more
    work for each number: it is faster from about d = 6 n, as `python -m bench engines` measures.
    """
    if law(stack) != NORMAL:
        return "dense"
    rows = max(stack.rows, stack.sequences * stack.source_tokens)
    return "conditioned" if stack.width >= _CONDITIONED_FROM * rows else "dense"


def _check_text(stack: Stack, text: TextWindows) -> None:
    """Check that the windows of a text fit a Stack: their length and number, and fields that a text replaces.

    Raises:
        ValueError: the text is not `TextWindows`, is too short, has another window length, or cannot be combined with a
            field.
    """
    if not isinstance(text, TextWindows):
        raise ValueError(f"text must be the path of a text, or gb.TextWindows, got {text!r}.")
    if text.ids.shape[1] != stack.tokens + 1:
        raise ValueError(f"text must have windows of tokens + 1 = {stack.tokens + 1} ids, got {text.ids.shape[1]}.")
    for name in ("input_correlation", "input_gram", "labels"):
        if name in stack.relaxed:
            raise ValueError(f"{name} cannot be combined with a text, got {getattr(stack, name)!r}.")
    if stack.source_tokens:
        raise ValueError(
            f"source_tokens must be 0 with a text, which has no source, got {stack.source_tokens}; the study fig3 "
            "takes two texts."
        )
    if len(text.ids) < stack.sequences:
        raise ValueError(f"sequences must be at most the {len(text.ids)} windows of the text, got {stack.sequences}.")


def device_name(device: object) -> str:
    """Return the name of a device that is given by its name or as a `torch.device`.

    Raises:
        ValueError: the device is unknown.
    """
    name = str(device) if isinstance(device, torch.device) else device
    kind, colon, index = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not isinstance(name, str) or kind not in ("cpu", "cuda") or (colon and (kind == "cpu" or not index.isdigit())):
        raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {device!r}.")
    return name


def check_device(device: str) -> None:
    """Raise an error if this machine does not have a device on which networks are to be sampled.

    A cell may name another device, because its draws can be read anywhere.

    Raises:
        ValueError: the device is unknown, or this machine does not have this CUDA device.
    """
    device = device_name(device)
    kind, _, index = device.partition(":")
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(index or 0) >= count:
            raise ValueError(
                f"device must be one that this machine has ({count} CUDA devices found), got {device!r}; try 'cpu'."
            )
