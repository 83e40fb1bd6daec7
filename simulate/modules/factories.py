"""Call a user's factory for modules, batch and loss, and report errors with the name of the failing part."""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from traceback import walk_tb
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from simulate.counts import check_count
from simulate.runs.cell import check_device

T = TypeVar("T")
Loss = Callable[[Any], Tensor]
Batch = Callable[[int], tuple[Any, Loss]]
Factory = Callable[[int, int], tuple[nn.Module, Batch]]

# No module of more layers, or wider, is built within hours.
_LARGEST = 100_000


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Set the seed of torch's global random generators within a `with` block, and restore their state at the end."""
    with torch.random.fork_rng():
        # torch.manual_seed asks every kind of device, which takes a millisecond where there is none.
        (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(seed)
        yield


def module_seed(seed: int, width: int, depth: int, number: int) -> int:
    """Return the random seed of one module, from a root seed and the module's width, depth and number."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{width}:{depth}:{number}".encode()).digest()[:6], "big")


class ProbeError(ValueError):
    """An error in the user's factory, module, loss or optimizer; the original error is its cause."""


@contextmanager
def named_size(width: int, depth: int) -> Iterator[None]:
    """Add the module's width and depth to the message of an error in the user's code.

    Raises:
        ProbeError: the user's code failed.
    """
    try:
        yield
    except ProbeError as error:
        raise ProbeError(f"{str(error).rstrip('.')} at width {width}, depth {depth}.") from error.__cause__


@contextmanager
def stage(what: str) -> Iterator[None]:
    """Turn an error in the user's code into a `ProbeError` that names the failing object.

    Raises:
        ProbeError: the user's code failed.
    """
    try:
        yield
    except BaseException as error:  # somebody else's code, which may end Python too
        if isinstance(error, KeyboardInterrupt | GeneratorExit):
            raise
        raise ProbeError(f"{what} must not fail, but {what_happened(error)}") from error


def what_happened(error: BaseException) -> str:
    """Describe an error in the user's code in one line, such as "raised ValueError: no such layer"."""
    if isinstance(error, SystemExit):
        return f"called sys.exit({error.code!r})"
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"raised {type(error).__name__}: {first}"


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A module that a factory made for one width, depth and seed, with its batch and loss.

    Attributes:
        name: the factory's name.
        module: the module, on its device.
        inputs: the module's only batch, on the same device.
        loss: function of the module's output that returns a scalar.
    """

    name: str
    module: nn.Module
    inputs: Any
    loss: Loss

    def fresh(self) -> "Made":
        """Return the same module with a copy of its inputs, because a module may change its inputs in place."""
        copied = tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, self.inputs)
        return replace(self, inputs=copied)

    def output(self) -> Any:
        """Run the module on its batch and return its output.

        Raises:
            ProbeError: the module fails.
        """
        try:
            with stage(f"module {type(self.module).__name__!r}"):
                return call(self.module, self.inputs)
        except ProbeError as error:
            name = _running(self.module, error.__cause__)
            raise ProbeError(f"{error} (in {name})" if name else str(error)) from error.__cause__

    def forward(self) -> tuple[Any, Tensor]:
        """Run the module on its batch and return its output and its loss.

        Raises:
            ProbeError: module or loss fails, or the loss is not a scalar with a gradient.
        """
        output = self.output()
        with stage(f"loss of {self.name!r}"):
            loss = self.loss(output)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ProbeError(f"loss of {self.name!r} must be a scalar tensor, got {shape}")
        if not loss.requires_grad:
            raise ProbeError(
                f"loss of {self.name!r} must depend on parameters that require gradients, and has no gradient"
            )
        return output, loss

    def backward(self, watcher: AbstractContextManager[Any] | None = None) -> Tensor:
        """Run the module forward and backward on its batch, and return the loss.

        Gradients are then in the parameters.

        Args:
            watcher: a context manager that watches the forward pass.

        Raises:
            ProbeError: module or loss fails, or has no gradient.
        """
        with watcher or nullcontext():
            _, loss = self.forward()
        with stage(f"backward pass of {type(self.module).__name__!r}"):
            loss.backward()
        return loss


def _running(module: nn.Module, error: BaseException | None) -> str:
    """Return the name of the innermost submodule in which an error occurred, or ""."""
    names = {id(part): name for name, part in module.named_modules()}
    frames = [] if error is None else [frame for frame, _ in walk_tb(error.__traceback__)]
    through = [names.get(id(frame.f_locals.get("self")), "") for frame in frames]
    return next((name for name in reversed(through) if name), "")


def name_of(maker: object) -> str:
    """Return the name of a user's function; a name is returned unchanged."""
    return maker if isinstance(maker, str) else getattr(maker, "__qualname__", repr(maker))


def build(factory: Factory, width: int, depth: int, seed: int, device: str) -> Made:
    """Call a user's factory, and return its module with batch and loss on a given device.

    Args:
        factory: the user's factory.
        width: the module's width.
        depth: the module's depth.
        seed: random seed of the batch.
        device: the device of module and batch.

    Raises:
        ProbeError: the factory or its batch fails, or returns something else.
    """
    name = name_of(factory)
    with stage(f"factory {name!r}"):
        pair = factory(width, depth)
    if inspect.iscoroutine(pair):
        pair.close()  # or Python warns that nobody awaited it
    if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], nn.Module) and callable(pair[1])):
        got = f"({', '.join(type(part).__name__ for part in pair)})" if isinstance(pair, tuple) else type(pair).__name__
        raise ProbeError(
            f"factory {name!r} must return (module, batch), where batch(seed) gives inputs and the function that takes "
            f"the loss of an output, got {got}"
        )
    module, batch = pair
    with stage(f"batch of {name!r}"):
        inputs, loss = batch(seed)
    with stage(f"module and batch of {name!r} on {device!r}"):
        # What is there already takes torch longer to move than to look at.
        if any(x.device != torch.device(device) for x in (*module.parameters(), *module.buffers())):
            module = module.to(device)
        return Made(name, module, moved(inputs, device), loss)


def check_sizes(widths: Sequence[int], depths: Sequence[int], seeds: int, seed: int, device: str) -> None:
    """Check the widths, the depths, the number of seeds and the device that a user requests for a probe.

    Raises:
        ValueError: an argument is outside its range.
    """
    for name, values in (("widths", widths), ("depths", depths)):
        if not values:
            raise ValueError(f"{name} must have at least one value, got none.")
        for value in values:
            check_count(name, value, 1)
            if value > _LARGEST:
                raise ValueError(f"{name} must be at most {_LARGEST}, got {value!r}.")
    check_count("seeds", seeds, 1)
    check_count("seed", seed, 0)
    check_device(device)


def of_every_module(
    measure: Callable[[Made, int, tuple[int, int], int], T], factory: Factory, sizes: Iterable[tuple[int, int]],
    seeds: int, *, seed: int, device: str, on_module: Callable[[int, int], None] | None,
) -> Iterator[tuple[tuple[int, int, int], T]]:  # fmt: skip
    """Measure the modules of a factory one after another, and yield each module's size and measurement.

    Only one module is in memory at a time; each result is (width, depth, number) and measurement.

    Args:
        measure: function of the made module, its seed, its (width, depth), and its number.
        factory: the user's factory.
        sizes: pairs of width and depth.
        seeds: number of modules of each size.
        seed: root seed.
        device: the device of module and batch.
        on_module: progress callback, called as on_module(done, total).

    Raises:
        ProbeError: the user's code failed.
    """
    places = [(*size, number) for size in sizes for number in range(seeds)]
    for done, (width, depth, number) in enumerate(places, start=1):
        own_seed = module_seed(seed, width, depth, number)
        with seeded(own_seed), named_size(width, depth):
            measured = measure(build(factory, width, depth, own_seed, device), own_seed, (width, depth), number)
        if on_module is not None:
            on_module(done, len(places))
        yield (width, depth, number), measured


def call(module: nn.Module, inputs: Any) -> Any:
    """Run a module on its inputs: a tensor, a tuple of arguments, or a dictionary of keyword arguments."""
    positional, by_name = arguments_of(module, inputs)
    return module(*positional, **by_name)


def arguments_of(module: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments with which a module is called on its inputs.

    If `forward` does not take a dict's keys as arguments but can take the dict itself, the dict is the only argument,
    as for a batch of a Lightning module.
    """
    if not isinstance(inputs, Mapping):
        return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}
    by_name = dict(inputs)
    if not _binds(module, (), by_name) and _binds(module, (by_name,), {}):
        return (by_name,), {}
    return (), by_name


def _binds(module: nn.Module, positional: tuple[Any, ...], by_name: dict[str, Any]) -> bool:
    try:
        inspect.signature(module.forward).bind(*positional, **by_name)
    except (TypeError, ValueError):  # ValueError of what has no signature
        return False
    return True


def moved(inputs: Any, device: str | torch.device) -> Any:
    """Move the tensors in a module's inputs to a device; mappings become dictionaries."""
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    if isinstance(inputs, Mapping):
        return {name: moved(value, device) for name, value in inputs.items()}
    return type(inputs)(moved(value, device) for value in inputs) if isinstance(inputs, tuple | list) else inputs
