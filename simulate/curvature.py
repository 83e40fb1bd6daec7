"""The Hessian and the Gauss-Newton matrix of a loss at initialization, as operators; of which models, and of what part.

Products are curvlinops'; losses are sums over labels divided by the number of all labels, so that how data are cut into
pieces changes nothing.
"""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor, nn

from simulate.engines import EncoderEngine, GivenMatrices
from simulate.lanczos import Quadrature, quadrature
from simulate.network import layers
from simulate.parallel_text import PADDING, ParallelText
from simulate.record import Record
from simulate.streams import Streams
from simulate.translation import padded
from simulate.translator import Translation, Translator
from theory.stack import Stack
from theory.weights import gain, weight_shapes

Matrix = Literal["hessian", "gauss-newton"]
# Of Arnoldi's method: vectors between restarts, and restarts before it gives up.
_VECTORS = 20
_RESTARTS = 200
MATRICES: tuple[Matrix, ...] = ("hessian", "gauss-newton")


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A model, a loss and data.

    Attributes:
        model: from the inputs of a piece, a dict, to predictions of its labels.
        loss: from predictions and labels to a sum, over all data divided by the number of labels.
        data: pieces of inputs and labels.
    """

    model: nn.Module
    loss: nn.Module
    data: Sequence[tuple[dict[str, Any], Tensor]]

    def parameters(self, patterns: Sequence[str] = ("*",)) -> list[nn.Parameter]:
        """Those whose names match one of some globs, in the order of the model.

        Raises:
            ValueError: none does.
        """
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        found = [p for name, p in named if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
        if not found:
            known = ", ".join(name for name, _ in named)
            raise ValueError(f"patterns must match a parameter of {known[:200]}, got {', '.join(patterns)}.")
        return found


class _TokenLoss(nn.Module):
    """Cross-entropy summed over labels, divided by how many all pieces have together."""

    reduction = "sum"  # what curvlinops divides by the number of data where it is not

    def __init__(self, labels: int, smoothing: float) -> None:
        super().__init__()
        self.labels, self.smoothing = labels, smoothing

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=self.smoothing) / self.labels


class _OfWords(nn.Module):
    """Logits of the labels that are words, (labels, V)."""

    def __init__(self, translator: Translator) -> None:
        super().__init__()
        self.translator = translator

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return self.translator(inputs["source"], inputs["target"]).flatten(0, 1)[inputs["places"]]


def translation_problem(
    translation: Translation, text: ParallelText, *, seed: int, piece: int = 48, dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Problem:  # fmt: skip
    """A translation model on all pairs of a text, in pieces of pairs of like lengths; without dropout.

    Raises:
        ValueError: vocab is not the text's.
    """
    if translation.vocab != text.vocab:
        raise ValueError(f"vocab must be the text's {text.vocab}, got {translation.vocab}.")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _OfWords(Translator(replace(translation, dropout=0.0))).to(device, dtype)
    lengths = np.array([len(ids) - 1 for ids in text.targets])
    order = np.argsort(lengths, kind="stable")
    data = []
    for some in np.array_split(order, -(-len(text) // piece)):
        source, target = (padded([ids[k] for k in some]).to(device) for ids in (text.sources, text.targets))
        labels = target[:, 1:]
        inputs = target[:, :-1].masked_fill(labels == PADDING, PADDING)
        places = (labels != PADDING).flatten().nonzero()[:, 0]
        data.append(({"source": source, "target": inputs, "places": places}, labels.flatten()[places]))
    return Problem(model, _TokenLoss(int(lengths.sum()), translation.smoothing), data)


class StackModule(nn.Module):
    """A Stack as a module: the network of `simulate.network` with its matrices as parameters, ROLE_LAYER by name.

    Args:
        stack: without dropout and with embeddings of its own.
        seed: of the matrices.
        dtype: of everything.

    Raises:
        ValueError: something is dropped, or embeddings are tied.
    """

    def __init__(self, stack: Stack, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        if stack.dropout or stack.attention_dropout or stack.embeddings == "tied":
            raise ValueError("dropout, attention_dropout must be 0 and embeddings untied for a Hessian of a stack.")
        self.stack, self._streams = stack, Streams([seed], 1)
        self._names: dict[str, list[str]] = {}
        for prefix, part in (("encoder_", stack.encoder), ("", stack)):
            if part is not None:
                for layer in range(1, part.depth + 1):
                    for role, (d_in, d_out) in weight_shapes(part).items():
                        self._add(prefix + role, f"_{layer}", d_in, d_out, (gain(part, role) / d_in) ** 0.5, dtype)
        self._add("Wemb", "", stack.width, stack.vocab, stack.output_scale * stack.width**-0.5, dtype)

    def _add(self, role: str, end: str, d_in: int, d_out: int, std: float, dtype: torch.dtype) -> None:
        self.register_parameter(role + end, nn.Parameter(self._streams.normal(d_in, d_out, dtype=dtype)[0] * std))
        self._names.setdefault(role, []).append(role + end)

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Logits of the positions that count, (positions, V)."""
        matrices = {role: [getattr(self, name) for name in names] for role, names in self._names.items()}
        engine = GivenMatrices(self._streams, matrices)
        memory = None
        if self.stack.encoder is not None:
            memory, _ = layers(self.stack.encoder, EncoderEngine(engine), Record(), inputs["source"])
        output, _ = layers(self.stack, engine, Record(), inputs["x"], memory)
        counted = output[0, self.stack.tokens - 1 :: self.stack.tokens] if self.stack.loss_on == "last" else output[0]
        return counted @ matrices["Wemb"][0]


def stack_problem(stack: Stack, *, seed: int, dtype: torch.dtype = torch.float64) -> Problem:
    """One draw of a Stack, its Gaussian inputs and independent labels.

    Raises:
        ValueError: as `StackModule`.
    """
    model = StackModule(stack, seed, dtype)
    generator = torch.Generator().manual_seed(2**32 + seed)
    x = torch.randn(1, stack.rows, stack.width, generator=generator, dtype=dtype)
    inputs = {"x": x}
    if stack.encoder is not None:
        inputs["source"] = torch.randn(1, stack.encoder.rows, stack.width, generator=generator, dtype=dtype)
    count = stack.sequences if stack.loss_on == "last" else stack.rows
    labels = torch.randint(stack.vocab, (count,), generator=generator)
    return Problem(model, _TokenLoss(count, stack.label_smoothing), [(inputs, labels)])


class _FromFactory(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Mapping[str, Any]) -> Any:
        given = inputs["inputs"]
        if isinstance(given, Mapping):
            return self.module(**given)
        return self.module(*given) if isinstance(given, tuple | list) else self.module(given)


class _OwnLoss(nn.Module):
    reduction = "sum"

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, output: Any, _: Tensor) -> Tensor:
        value: Tensor = self.loss(output)
        return value


def module_problem(factory: Any, width: int, depth: int, *, seed: int, device: str = "cpu") -> Problem:
    """A module of a factory, as `simulate.probe` takes them, on its one batch."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module, batch = factory(width, depth)
        inputs, loss = batch(seed)
    return Problem(
        _FromFactory(module.to(device)), _OwnLoss(loss), [({"inputs": inputs}, torch.zeros(1, device=device))]
    )


def operator(problem: Problem, matrix: Matrix, patterns: Sequence[str] = ("*",)) -> Any:
    """The operator of the parameters that match one of some globs: the whole matrix, or a block on its diagonal.

    Raises:
        ValueError: curvlinops is not installed, or no parameter matches.
    """
    try:
        import curvlinops
    except ImportError as error:
        raise ValueError("curvlinops must be installed: pip install 'gradbounds[hessian]'") from error
    kind = {"hessian": curvlinops.HessianLinearOperator, "gauss-newton": curvlinops.GGNLinearOperator}[matrix]
    return kind(
        problem.model, problem.loss, problem.parameters(patterns), list(problem.data), check_deterministic=False,
        batch_size_fn=lambda inputs: 1,
    )  # fmt: skip


@contextmanager
def plain_operations() -> Iterator[None]:
    """Attention and LayerNorm as plain operations.

    Fused attention has no second derivative. Fused LayerNorm has a wrong one: the forward-mode derivative of its
    backward pass, which products with a Hessian ask for, is off for its weight (torch 2.13; the suite shows it).
    """
    fused = F.layer_norm
    F.layer_norm = _layer_norm  # type: ignore[assignment]
    try:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            yield
    finally:
        F.layer_norm = fused


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """`torch.nn.functional.layer_norm`."""
    over = tuple(range(-len(shape), 0))
    centred = x - x.mean(over, keepdim=True)
    normed = centred * (centred.square().mean(over, keepdim=True) + eps).rsqrt()
    scaled = normed if weight is None else normed * weight
    return scaled if bias is None else scaled + bias


def asymmetry(problem: Problem, matrix: Matrix) -> float:
    """|uᵀ A v − vᵀ A u| over |A u| |v| of two random vectors: rounding, or an operation with a wrong derivative."""
    found = operator(problem, matrix)
    generator = torch.Generator().manual_seed(0)
    u, v = torch.randn(2, found.shape[1], generator=generator).to(found.device, found.dtype)
    first, second = _product(found, u), _product(found, v)
    return float((u @ second - v @ first).abs() / (first.norm() * v.norm()))


def _product(found: Any, vector: Tensor) -> Tensor:
    """Operator times vector.

    Raises:
        ValueError: the model has no second derivative.
    """
    try:
        with plain_operations():
            image: Tensor = found @ vector
    except (RuntimeError, NotImplementedError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"model must have second derivatives (plain operations, no dropout): {first}") from error
    return image


def probe_spectrum(
    problem: Problem,
    matrix: Matrix,
    *,
    steps: int,
    seed: int,
    patterns: Sequence[str] = ("*",),
    reorthogonalize: bool = True,
) -> Quadrature:
    """Lanczos quadrature of one probe of independent signs."""
    found = operator(problem, matrix, patterns)
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(2, (found.shape[1],), generator=generator).to(found.device, found.dtype) * 2 - 1
    return quadrature(lambda v: _product(found, v), signs, steps, reorthogonalize=reorthogonalize)


def extreme_eigenvalues(
    problem: Problem, matrix: Matrix, *, seed: int, patterns: Sequence[str] = ("*",), tolerance: float = 1e-4
) -> tuple[float, float]:
    """The smallest and the largest eigenvalue, by Arnoldi's method as scipy has it.

    A Gauss-Newton matrix has no negative eigenvalue, and many that are 0, which no such method tells apart: its
    smallest is NaN here.

    Args:
        problem: of the model.
        matrix: which.
        seed: of the first vector.
        patterns: globs of the parameters.
        tolerance: relative, of eigenvalues; 0 is machine precision.

    Raises:
        ValueError: it does not converge.
    """
    found = operator(problem, matrix, patterns)
    size = found.shape[1]
    dtype = np.float64 if found.dtype == torch.float64 else np.float32
    start = np.random.default_rng(seed).standard_normal(size).astype(dtype)

    def product(vector: Any) -> Any:
        return _product(found, torch.as_tensor(vector.ravel()).to(found.device, found.dtype)).cpu().numpy()

    def end(which: str) -> float:
        exported = LinearOperator((size, size), matvec=product, dtype=dtype)
        how = {"v0": start, "tol": tolerance, "ncv": min(size, _VECTORS), "maxiter": _RESTARTS}
        return float(eigsh(exported, k=1, which=which, return_eigenvectors=False, **how)[0])

    try:
        return float("nan") if matrix == "gauss-newton" else end("SA"), end("LA")
    except ArpackNoConvergence as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"tolerance must be one that is reached, got {tolerance:g}: {first}") from error
