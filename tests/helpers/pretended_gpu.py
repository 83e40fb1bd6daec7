"""A pretended GPU on any CPU: tensors that say they are on cuda:0, and are treated as if they were.

Inside `with PretendedGpu() as gpu:` torch says that there is one CUDA device. What is made or moved there holds its
numbers in memory of the CPU, so that results are real, but

- an operation that mixes such tensors with those of the CPU, other than single numbers and indices, raises;
- so does a random operation with a generator of the other device, and NumPy that is given such a tensor;
- what lets the host wait is counted by its line in `gpu.waits`: `.item()`, `float()`, `bool()`, `.tolist()`, `.cpu()`,
  copies from the host that are not said to be non_blocking, nonzero, boolean indices, and factorizations that check
  themselves;
- what a GPU would launch is counted in `gpu.launches`, and of those the ones in float64 in `gpu.doubles`.

It cannot see which kernels CUDA lacks or limits, rounding, races, memory, or speed. Inside torch.func buffers are made
in C++, where a pretended tensor is one of the CPU: mixing is counted there, in `gpu.unchecked`, and not refused.

How: a subclass of tensors whose device is told in Python, while C++ sees the CPU, so that autograd works; a mode for
what makes tensors; a mode for what is answered before anything is dispatched. It patches torch.cuda, and belongs into a
process of its own.
"""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")

# What launches nothing: views, memory without numbers, questions about sizes.
_NOT_LAUNCHED = set(
    "view _unsafe_view reshape _reshape_alias expand slice select split split_with_sizes unbind t transpose permute "
    "squeeze unsqueeze detach alias as_strided diagonal unfold view_as lift_fresh chunk narrow movedim mT real empty "
    "empty_like new_empty empty_strided new_empty_strided is_same_size sym_size sym_stride sym_numel".split()
)
# What lets the host wait: sizes that depend on numbers, and factorizations that look whether they succeeded.
_WAITING = set(
    "nonzero masked_select unique_dim _unique2 linalg_eigh _linalg_eigh linalg_eig _linalg_svd linalg_qr "
    "_linalg_check_errors repeat_interleave bincount equal is_nonzero _local_scalar_dense".split()
)
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
_BY_INDEX = {"index", "index_put", "index_put_"}
# Frames of these are not the place of an operation.
_LIBRARIES = ("/torch/", "/jaxtyping/", "/beartype/")

_active: "PretendedGpu | None" = None


class PretendedTensor(Tensor):
    """A tensor that says it is on cuda:0; `held` has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "PretendedTensor":
        made = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=held.device,
        )
        made.held = held
        return made

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    # Methods of the class rather than of a mode: these hold inside a backward pass too.
    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert a tensor of cuda:0 to numpy; use Tensor.cpu() first (pretended)")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        return _to_host(self.detach()).tolist()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def cpu(self, **_: Any) -> Tensor:
        return _to_host(self)

    def cuda(self, *_: Any, **__: Any) -> Tensor:
        return self

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        where, dtype = _asked(args, kwargs)
        moved = _to_host(self) if where == "cpu" else self
        return moved if dtype is None else Tensor.to(moved, dtype)

    def __repr__(self, **_: Any) -> str:
        return f"PretendedTensor({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatched(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl


class PretendedGenerator(torch.Generator):
    """A generator of the CPU that says it is on cuda, if it was asked to be."""

    told: torch.device

    def __new__(cls, device: Any = "cpu") -> "PretendedGenerator":
        made = super().__new__(cls, "cpu")
        made.told = CUDA if torch.device(device).type == "cuda" else CPU
        return made

    @property
    def device(self) -> torch.device:
        return self.told


def _place() -> str:
    """The nearest line that belongs to no library, nor to this file."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and not name.startswith("<") and not any(part in name for part in _LIBRARIES):
            return f"{'/'.join(name.split('/')[-3:])}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "?"


def _transformed() -> bool:
    """Whether torch.func or forward-mode derivatives are at work."""
    frame = sys._getframe(1)
    while frame is not None:
        if "/_functorch/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return torch.autograd.forward_ad._current_level >= 0


def _dispatched(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation on the numbers that are held, if all of its tensors are where they should be."""
    name = func._schema.name.split("::")[1]
    tensors: list[Tensor] = []
    plain_args = tuple(_held(one, tensors) for one in args)
    plain_kwargs = {key: _held(one, tensors) for key, one in kwargs.items()}
    there = [one for one in tensors if isinstance(one, PretendedTensor)]
    asked = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    moves = name in ("_to_copy", "copy_", "copy")
    if there and not moves:
        _refuse_mixing(name, args, tensors)
    target = CUDA if there and name not in ("copy_", "copy") else CPU
    if name == "copy_":
        target = CUDA if isinstance(args[0], PretendedTensor) else CPU
    if asked is not None:
        target = CUDA if asked.type == "cuda" else asked
    if _active is not None and (there or target == CUDA):
        _active._count(name, args, tensors, target, _blocks(args[2:], kwargs))
    plain_kwargs |= {"device": CPU} if asked is not None and asked.type == "cuda" else {}
    plain_kwargs |= {"pin_memory": False} if plain_kwargs.get("pin_memory") else {}
    out = func(*plain_args, **plain_kwargs)
    if _active is not None and _active.captured is not None and name not in _NOT_LAUNCHED:
        _active.captured.append((func, plain_args, plain_kwargs, out))
    return _returned(func, args, kwargs, out, target)


def _held(value: Any, tensors: list[Tensor]) -> Any:
    """An argument with the tensors that hold its numbers; those that were given are added to a list."""
    if isinstance(value, list | tuple):
        return type(value)([_held(one, tensors) for one in value])
    if not isinstance(value, Tensor):
        return value
    tensors.append(value)
    return value.held if isinstance(value, PretendedTensor) else value


def _refuse_mixing(name: str, args: Any, tensors: Sequence[Tensor]) -> None:
    others = [one for one in tensors if not isinstance(one, PretendedTensor) and one.dim() > 0]
    if name in _INDEXED:
        others = [one for one in others if one is args[0]]
    if not others:
        return
    if _active is not None and _transformed():
        _active.unchecked[f"{_place()} ({name})"] += 1
        return
    raise RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
        f"(pretended, {name}, on the cpu one of shape {tuple(others[0].shape)})"
    )


def _returned(func: Any, args: Any, kwargs: dict[str, Any], out: Any, target: torch.device) -> Any:
    """What an operation gives back: the tensors that it was given to write into, or fresh ones of the target."""
    returns, given = func._schema.returns, {}
    if not returns:
        return out
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = kwargs.get(argument.name, args[position] if position < len(args) else None)
            given |= dict.fromkeys(argument.alias_info.before_set, value)

    def wrapped(value: Any, kind: Any = None) -> Any:
        if kind is not None and kind.alias_info is not None and kind.alias_info.is_write:
            for written in kind.alias_info.before_set:
                if written in given:
                    return given[written]
        if isinstance(value, Tensor) and not isinstance(value, PretendedTensor) and target == CUDA:
            return PretendedTensor(value)
        return type(value)(wrapped(one) for one in value) if isinstance(value, list | tuple) else value

    if len(returns) == 1:
        return wrapped(out, returns[0])
    return tuple(wrapped(value, kind) for value, kind in zip(out, returns, strict=True))


class _ToHost(torch.autograd.Function):
    """A copy for the host, where C++ believes the numbers to be already."""

    @staticmethod
    def forward(ctx: Any, there: PretendedTensor) -> Tensor:
        if _active is not None:
            _active.waits[f"{_place()} (to the host)"] += 1
        return there.held.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return PretendedTensor(gradient.clone())


class _ToDevice(torch.autograd.Function):
    """A copy for the device."""

    @staticmethod
    def forward(ctx: Any, here: Tensor) -> Tensor:
        return PretendedTensor(here.detach().clone())

    @staticmethod
    def backward(ctx: Any, gradient: PretendedTensor) -> Tensor:
        return gradient.held.clone()


def _differentiable(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled() and not torch._C._functorch.get_interpreter_stack()


def _to_host(there: PretendedTensor) -> Tensor:
    return _ToHost.apply(there) if _differentiable(there) else _ToHost.forward(None, there)


def _to_device(here: Tensor, blocking: bool) -> Tensor:
    if _active is not None and blocking:
        _active.waits[f"{_place()} (from the host)"] += 1
    return _ToDevice.apply(here) if _differentiable(here) else _ToDevice.forward(None, here)


def _asked(args: Any, kwargs: dict[str, Any]) -> tuple[str | None, torch.dtype | None]:
    """The kind of device and the dtype that `.to(...)` asks for; None where it does not."""
    where, dtype = None, None
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            where, dtype = value.device.type, value.dtype
        elif isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, torch.device | str):
            where = torch.device(value).type
    return where, dtype


def _blocks(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a copy does not say that it is non_blocking."""
    return not (kwargs.get("non_blocking") or any(one is True for one in args))


class _Functions(TorchFunctionMode):
    """What C++ would answer for the tensor of the CPU that is behind."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, first = getattr(func, "__name__", ""), args[0] if args else None
        if (generator := kwargs.get("generator")) is not None:
            of_tensor = first.device if isinstance(first, Tensor) else torch.device(kwargs.get("device") or "cpu")
            if generator.device.type != of_tensor.type:
                raise RuntimeError(
                    f"Expected a '{of_tensor.type}' device type for generator but found '{generator.device.type}'"
                )
        if isinstance(first, Tensor) and not isinstance(first, PretendedTensor):
            where, dtype = _asked(args[1:], kwargs) if name in ("to", "type_as") else (None, None)
            if name == "cuda" or where == "cuda":
                moved = _to_device(first, _blocks(args[1:], kwargs))
                return moved if dtype is None else moved.to(dtype)
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            kwargs = kwargs | {"device": CUDA}  # without an index C++ would ask the driver for one
        return func(*args, **kwargs)


class _Factories(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it torch would load it, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatched(func, args, kwargs or {})


class PretendedGraph:
    """Operations that were captured, done again with the numbers that their tensors hold then: one launch."""

    def __init__(self) -> None:
        self.operations: list[Any] = []

    @contextlib.contextmanager
    def capture(self, stream: None = None) -> Iterator[None]:
        """What torch.cuda.graph does.

        Raises:
            RuntimeError: the host waited.
        """
        assert _active is not None
        before = _active.launches, _active.doubles, Counter(_active.waits), Counter(_active.kernels)
        _active.captured = self.operations
        try:
            yield
        finally:
            _active.captured = None
        if _active.waits != before[2]:
            _active.waits = before[2]
            raise RuntimeError("operation not permitted when stream is capturing (pretended)")
        _active.launches, _active.doubles, _active.waits, _active.kernels = before
        for *_, out in self.operations:  # a capture computes nothing
            for value in out if isinstance(out, list | tuple) else (out,):
                value.fill_(torch.nan if value.is_floating_point() else 0)

    def replay(self) -> None:
        """All again, in order."""
        assert _active is not None
        _active.launches += 1
        _active.kernels["graph"] += 1
        for func, args, kwargs, out in self.operations:
            again = func(*args, **kwargs)
            for old, new in zip(*(v if isinstance(v, list | tuple) else (v,) for v in (out, again)), strict=True):
                if old is not new:
                    old.copy_(new)


class PretendedGpu(contextlib.ExitStack):
    """A pretended GPU, for as long as the context lasts.

    Attributes:
        memory: bytes that it says are free, and all.
        launches: operations that are no views.
        doubles: those of them with tensors in float64.
        kernels: launches by name.
        waits: what the host waited for, by line.
        unchecked: tensors of both devices inside torch.func, by line.
        captured: operations of the graph that is being captured; None if none is.
    """

    def __init__(self, memory: int = 8 * 2**30) -> None:
        super().__init__()
        self.memory = memory
        self.launches = self.doubles = 0
        self.captured: list[Any] | None = None
        self.kernels, self.waits, self.unchecked = Counter[str](), Counter[str](), Counter[str]()

    def _count(self, name: str, args: Any, tensors: Sequence[Tensor], target: torch.device, blocking: bool) -> None:
        there = any(isinstance(one, PretendedTensor) for one in tensors)
        if name in ("_to_copy", "copy_"):
            if there and target != CUDA:
                where = self.unchecked if _transformed() else self.waits
                where[f"{_place()} (to the host)"] += 1
                return
            if target == CUDA and not isinstance(tensors[-1], PretendedTensor):
                if blocking and tensors[-1].numel() > 1:  # a number is an argument of its kernel
                    self.waits[f"{_place()} (from the host)"] += 1
                return
        if name in _WAITING:
            self.waits[f"{_place()} ({name})"] += 1
            if name == "_local_scalar_dense":
                return
        indices = args[1] or () if name in _BY_INDEX else ()
        if any(isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in indices):
            self.waits[f"{_place()} (boolean index)"] += 1
        if name in _NOT_LAUNCHED:
            return
        self.launches += 1
        self.kernels[name] += 1
        self.doubles += any(one.dtype == torch.float64 for one in tensors)

    def __enter__(self) -> "PretendedGpu":
        global _active
        super().__enter__()
        answers: dict[str, Callable[..., Any]] = {
            "cuda.is_available": lambda: True,
            "cuda.device_count": lambda: 1,
            "cuda._lazy_init": lambda: None,
            "cuda.is_initialized": lambda: True,
            "cuda.current_device": lambda: 0,
            "cuda.set_device": lambda device: None,
            "cuda.synchronize": lambda device=None: None,
            "cuda.get_device_name": lambda device=None: "pretended",
            "cuda.mem_get_info": lambda device=None: (self.memory, self.memory),
            "cuda.get_rng_state": lambda device=0: torch.get_rng_state(),
            "cuda.set_rng_state": lambda state, device=0: None,
            "cuda.manual_seed_all": lambda seed: None,
            "cuda.manual_seed": lambda seed: None,
            "cuda.device": contextlib.nullcontext,
            "cuda.Stream": lambda device=None: None,
            "cuda.CUDAGraph": PretendedGraph,
            "cuda.graph": PretendedGraph.capture,
            "__future__.get_overwrite_module_params_on_conversion": lambda: True,
            "Generator": PretendedGenerator,
        }
        for name, answer in answers.items():
            self.enter_context(mock.patch(f"torch.{name}", answer))
        # Modules that have imported the class by its name.
        for module in list(sys.modules.values()):
            known = vars(module).get("Generator")  # getattr would let modules that are loaded when asked load
            if known is torch._C.Generator and not module.__name__.startswith("torch"):
                self.enter_context(mock.patch.object(module, "Generator", PretendedGenerator))
        self.enter_context(_Functions())
        self.enter_context(_Factories())
        _active = self
        return self

    def __exit__(self, *error: Any) -> Any:
        global _active
        _active = None
        return super().__exit__(*error)
