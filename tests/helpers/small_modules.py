"""Modules of timm, x-transformers and vit-pytorch that can be made small, each with a batch and a loss."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.helpers.small_classes import DEPTH, HEADS, IMAGE, MOST, SEQUENCES, TOKENS, VOCAB, WIDTH

timm, x_transformers, vit_pytorch = (pytest.importorskip(one) for one in ("timm", "x_transformers", "vit_pytorch"))

Single = tuple[nn.Module, Any, Callable[[Any], Tensor]]
_SIZES = ("atto", "femto", "pico", "nano", "_xxs", "_xs", "tiny", "mini", "_s", "small", "lite", "18", "26", "_b0", "")
_SEED = 7


def next_word(ids: Tensor) -> Callable[[Any], Tensor]:
    return lambda output: functional.cross_entropy(output.flatten(0, 1), ids[:, 1:].flatten())


def x_transformer(option: str) -> Single:
    ids = torch.randint(VOCAB, (SEQUENCES, TOKENS + 1), generator=torch.Generator().manual_seed(_SEED))
    layers = x_transformers.Decoder(
        dim=WIDTH, depth=DEPTH, heads=HEADS, attn_dim_head=WIDTH // HEADS, **({option: True} if option else {})
    )
    module = x_transformers.TransformerWrapper(num_tokens=VOCAB, max_seq_len=2 * TOKENS, attn_layers=layers)
    return module, ids[:, :-1], next_word(ids)


def x_options() -> Iterator[str]:
    """None; and every switch of layers, attention and feed-forward that is off by default."""
    of = importlib.import_module("x_transformers.x_transformers")
    yield ""
    for owner, prefix in ((of.AttentionLayers, ""), (of.Attention, "attn_"), (of.FeedForward, "ff_")):
        for name, one in inspect.signature(owner).parameters.items():
            if one.default is False:
                yield prefix + name


def of_images(make: Callable[[], nn.Module], side: int = IMAGE) -> Single:
    draw = torch.Generator().manual_seed(_SEED)
    images, labels = torch.randn(SEQUENCES, 3, side, side, generator=draw), torch.tensor([0, 1])
    return make(), images, lambda output: functional.cross_entropy(output, labels)


def of_timm(name: str) -> Single:
    """A model of timm, at its own sizes, on images of 64 pixels where it takes these.

    Raises:
        ValueError: it is too large.
    """
    sides: dict[str, int] = {"img_size": 2 * IMAGE}
    with torch.device("meta"):
        try:
            count = sum(weight.numel() for weight in timm.create_model(name, num_classes=10, **sides).parameters())
        except TypeError:
            sides = {}
            count = sum(weight.numel() for weight in timm.create_model(name, num_classes=10).parameters())
    if count > MOST // 2:
        raise ValueError(f"has {count / 1e6:.0f} million parameters")
    return of_images(lambda: timm.create_model(name, num_classes=10, **sides).eval(), 2 * IMAGE)


def timm_models() -> list[str]:
    """The test models; and of every file of timm the model whose name says that it is the smallest."""
    chosen = timm.list_models("test_*")
    for part in timm.list_modules():
        names = [name for name in timm.list_models(module=part) if name not in chosen]
        if names:
            chosen.append(min(names, key=lambda name: next(k for k, size in enumerate(_SIZES) if size in name)))
    return chosen


def of_vit_pytorch(path: str) -> Single:
    """A class of vit-pytorch, by the names of its sizes."""
    part, name = path.split(".")
    owner = getattr(importlib.import_module(f"vit_pytorch.{part}"), name)
    sizes = {"image_size": IMAGE, "patch_size": 8, "num_classes": 10, "dim": WIDTH, "depth": DEPTH, "heads": HEADS,
             "mlp_dim": 2 * WIDTH, "dim_head": WIDTH // HEADS, "cls_depth": 2}  # fmt: skip
    return of_images(lambda: owner(**{one: size for one, size in sizes.items() if one in _takes(owner)}).eval())


def vit_classes() -> Iterator[str]:
    """Classes with an image size, a width and a number of classes."""
    for part in pkgutil.iter_modules(vit_pytorch.__path__):
        try:
            module = importlib.import_module(f"vit_pytorch.{part.name}")
        except ImportError:
            continue
        for name, owner in vars(module).items():
            here = inspect.isclass(owner) and owner.__module__ == module.__name__ and issubclass(owner, nn.Module)
            if here and {"image_size", "num_classes", "dim", "depth"} <= {*_takes(owner)}:
                yield f"{part.name}.{name}"


def _takes(owner: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(owner.__init__).parameters)


def subjects() -> dict[tuple[str, str], Callable[[], Single]]:
    return {
        (package, name or "default"): partial(make, name)
        for package, names, make in (
            ("timm", timm_models(), of_timm), ("x-transformers", x_options(), x_transformer),
            ("vit-pytorch", vit_classes(), of_vit_pytorch),
        ) for name in names
    }  # fmt: skip
