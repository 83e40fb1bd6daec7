"""Exact tests of a module, without statistics: causality, norms, copied weights, attention and activations.

They also test the dependence of outputs on inputs.

The tests need no statistics. They take one forward pass, and a backward pass through each layer.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from simulate.modules.boundaries import boundary_hooks
from simulate.modules.copies import copied_by_torch, copies, repeated_rows
from simulate.modules.factories import Made, ProbeError
from simulate.modules.layers import LayerList, place_of, tensor_of, token_axis
from simulate.modules.mixing import blocks, dependences
from simulate.modules.norms import norm_response, norms_of, says_norm
from simulate.modules.operations import OperationWatcher
from simulate.modules.predictions import document_starts, logits_of, prediction_facts, words_of
from simulate.modules.scalars import ScalarWatcher
from simulate.modules.unregistered import unregistered

Row = tuple[str, int, str, str, float]
# A row this much shorter than a matrix's longest was not drawn like it.
_FAINT = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class ExactTests:
    """The results of the exact tests of a module, such as causality and copied weights.

    Attributes:
        rows: part (the name of a list of layers, or ""), layer (from 1; 0 outside of layers), name (of a norm or
            parameter in the layer), quantity, value. Quantities are those of `dependences` (for layers and the whole
            module), of `norm_response` with norm_says (1 if the class is called a norm), of `OperationWatcher.rows` and
            of `prediction_facts`. Further quantities are kind (equal for layers with attention that have the same
            modules), block_begins and window (`blocks`), document_begins (if an input marks documents), and logit_scale
            and key_size of each attention in a layer: softmax's input is logit_scale times q·k, a sum of key_size
            products. If it is not, logits_unseen is 1. For the drawn entries of a bias, bias_over_matrix is their root
            mean square divided by the matrix's and by the root of the row length. For entries that the code chose,
            bias_constant is the same ratio. repeated_rows is the share of repeated rows.
        copies: groups of matrices with equal entries, each a tuple of places (part, layer, name).
        by_torch: for each of `copies`, whether an encoder of `torch.nn` made them.
        batch_norm: whether there is a batch norm in training mode, which makes samples depend on one another.
        positions_first: whether positions are along the first axis, as `torch.nn` attention declares.
        inside: classes of the innermost modules in layers, the most frequent first.
        unregistered: tensors with a gradient that are not parameters: place (part, layer, name) and shape.
    """

    rows: tuple[Row, ...]
    copies: tuple[tuple[tuple[str, int, str], ...], ...]
    by_torch: tuple[bool, ...]
    batch_norm: bool
    positions_first: bool
    inside: tuple[str, ...]
    unregistered: tuple[tuple[tuple[str, int, str], tuple[int, ...]], ...]


def exact_tests(built: Made, lists: Sequence[LayerList]) -> ExactTests:
    """Run all exact tests of a module on its batch; the module's gradients are not changed.

    Raises:
        ProbeError: module or loss fails.
    """
    module, axis = built.module, token_axis(built.module)
    of_layer = {name: (part.name, number) for part in lists for number, name in enumerate(part.names, 1)}
    batch_norm = any(isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training for part in module.modules())
    observer, caller, caller_inputs = _Observer(module, lists, axis), built, built.inputs
    try:
        built = caller.fresh()
        with observer:
            output, loss = built.forward()
    except ProbeError:
        # Such as of a module that asks for its input's gradient itself: then the input is not asked.
        observer, built = _Observer(module, lists, axis, source=False), caller.fresh()
        with observer:
            output, loss = built.forward()
    given = [value for value in tree_leaves((caller_inputs, built.inputs)) if isinstance(value, Tensor)]
    logits = logits_of(output)
    foreign = unregistered(module, logits, loss, [*given, *observer.asked])
    rows, packed = observer.rows(), observer.packed() | observer.transposed(given)
    rows += _kinds(lists, {row[:2] for row in rows if row[3] == "logit_std"})
    rows = [row for row in rows if row[3] != "sees_samples" or row[:2] not in packed]
    if logits is not None and logits.requires_grad:
        facts = prediction_facts(loss, logits, built.inputs)
        facts |= _whole_sight(observer, logits, facts, built.inputs, axis)
        if packed and observer.source is not None and observer.source.ndim == 2:
            facts.pop("sees_samples", None)
        if facts.get("sees_samples", 1.0) == 0.0:
            # What seems to pass from one sample to another in a layer has another axis first.
            rows = [row for row in rows if row[3] != "sees_samples"]
        if observer.source is not None and axis != 0:
            begins, window = blocks(observer.source, logits)
            rows += [("", 0, str(place), "block_begins", float(place)) for place in begins]
            rows += [("", 0, "", "window", float(window))] if window else []
            documents = document_starts(built.inputs, logits)
            rows += [("", 0, str(place), "document_begins", float(place)) for place in documents if begins]
        rows += [("", 0, "", name, value) for name, value in facts.items()]
    rows += [(*place_of(name, of_layer), quantity, value) for name, quantity, value in _biases(module)]
    rows += [(*place_of(name, of_layer), "repeated_rows", share) for name, share in repeated_rows(module).items()]
    groups, parameters = copies(module), dict(module.named_parameters())
    # At most one of several copies is trainable in a teacher model.
    frozen = [sum(parameters[name].requires_grad for name in names) <= 1 for names in groups]
    return ExactTests(
        tuple(rows),
        tuple(tuple(place_of(name, of_layer) for name in names) for names in groups),
        tuple(copied_by_torch(module, names) or still for names, still in zip(groups, frozen, strict=True)),
        batch_norm,
        axis == 0,
        _innermost(lists),
        tuple((place_of(path, of_layer), shape) for path, shape in foreign),
    )


def _whole_sight(
    observer: "_Observer", logits: Tensor, facts: Mapping[str, float], inputs: Any, axis: int
) -> dict[str, float]:
    """Measure which inputs the outputs depend on; the position axis comes from the labels, or else from attention.

    "sees_label" is like sees_later, for the input whose next token id is the label. "sees_rows" is the dependence
    between entries along the batch's first axis, if attention treats that axis as positions and labels do not decide.
    """
    along, below = (facts.get(name) == 1 for name in ("label_is_next", "label_is_next_below"))
    told = along or below
    # Both hold where each sample is the one before it, shifted; then attention says.
    below = below and (not along or axis == 0)
    axis_told = (0 if below else -2) if told else axis
    sight: dict[str, float] = {}
    if observer.source is not None:
        sight |= dependences(observer.source, logits, axis_told)
        sight |= {"positions": float(logits.shape[axis_told])} if logits.ndim == 3 else {}
        if axis == 0 and not below:
            among = dependences(observer.source, logits, -2).get("sees_samples", 0.0)
            sight["sees_samples" if told or logits.ndim == 2 else "sees_rows"] = among
    if told:
        words = words_of(inputs, logits)[int(facts["next_words"])]
        for ids, embedded in observer.embedded:
            if ids.shape == words.shape and bool((ids == words).all()):
                later = dependences(embedded, logits, axis_told).get("sees_later", 0.0)
                sight["sees_label"] = max(later, sight.get("sees_label", 0.0))
    return sight


def _kinds(lists: Sequence[LayerList], attending: Set[tuple[str, int]]) -> list[Row]:
    """Return a number for the kind of each layer with attention.

    Layers of one kind have modules of the same names, classes, parameter shapes and attention windows.
    """
    numbers: dict[tuple[Any, ...], int] = {}
    rows: list[Row] = []
    for at, layer in (((part.name, k), layer) for part in lists for k, layer in enumerate(part.layers, 1)):
        structure = tuple(
            (name, type(module), *(str(value) for value in vars(module).items() if "window" in value[0]),
             *(weight.shape for weight in module.parameters(recurse=False)))
            for name, module in layer.named_modules()
        )  # fmt: skip
        if at in attending:
            rows.append((*at, "", "kind", float(numbers.setdefault(structure, len(numbers)))))
    return rows


def _innermost(lists: Sequence[LayerList]) -> tuple[str, ...]:
    modules = [part for layers in lists for layer in layers.layers for part in layer.modules()]
    names = Counter(type(part).__name__ for part in modules if next(part.children(), None) is None)
    return tuple(name for name, _ in names.most_common())


class _Observer:
    """Hooks for one forward pass: dependences of every layer, norms, attention and activations."""

    def __init__(self, module: nn.Module, lists: Sequence[LayerList], axis: int, *, source: bool = True) -> None:
        self._module, self._lists, self._axis, self._asks = module, lists, axis, source
        self._watcher, self._scalars = OperationWatcher(), ScalarWatcher()
        self._of_layer = {name: (part.name, number) for part in lists for number, name in enumerate(part.names, 1)}
        self._inputs: dict[tuple[str, int], Tensor] = {}
        self._shapes: dict[tuple[str, int], tuple[int, ...]] = {}
        self._rows: dict[tuple[str, int, str, str], float] = {}
        self._handles: list[Any] = []
        self.source: Tensor | None = None
        self.asked: list[Tensor] = []
        self.embedded: list[tuple[Tensor, Tensor]] = []

    def __enter__(self) -> "_Observer":
        add = self._handles.append
        add(self._module.register_forward_pre_hook(self._begin, with_kwargs=True))
        for part in self._module.modules():
            if isinstance(part, nn.Embedding):
                add(part.register_forward_hook(self._embedded))
        for parts in self._lists:
            if parts.takers:
                self._handles += self._between(parts)
            for number, layer in enumerate(() if parts.takers else parts.layers, 1):
                at = parts.name, number
                add(layer.register_forward_pre_hook(self._enters(at), with_kwargs=True))
                add(layer.register_forward_hook(self._leaves(at)))
        for name, part in norms_of(self._module):
            add(part.register_forward_hook(self._normed(name), with_kwargs=True))
        self._watcher.__enter__()
        self._scalars.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._scalars.__exit__(*error)
        self._watcher.__exit__(*error)
        for handle in self._handles:
            handle.remove()

    def rows(self) -> list[Row]:
        """Return the rows of the exact tests for every layer and norm."""
        watched = [(part, layer, "", name, value) for part, layer, name, value in self._watcher.rows()]
        # A layer may have several attentions, such as one within a decoder and one to an encoder.
        scales = dict.fromkeys((place, scale, size) for place, scale, size in self._scalars.logits)
        for number, (place, scale, size) in enumerate(scales):
            watched += [
                (*place, f"{number}", "logit_scale", scale), (*place, f"{number}", "key_size", float(size)),
            ]  # fmt: skip
        watched += [(*place, "", "logits_unseen", 1.0) for place in dict.fromkeys(self._scalars.unseen)]
        return [*((*key, value) for key, value in self._rows.items()), *watched]

    def packed(self) -> set[tuple[str, int]]:
        """Return the layers that attend among the rows of an input with two axes: positions of all samples together."""
        flat = {at for at, shape in self._shapes.items() if len(shape) == 2}
        attending = {row[0] for row in self._watcher.rows() if row[2] == "attention_entropy" and row[:2] in flat}
        return {at for at in flat if at[0] in attending}

    def transposed(self, given: Sequence[Tensor]) -> set[tuple[str, int]]:
        """Return the layers whose input has positions before samples, compared with a batch of token ids."""
        shapes = {tuple(x.shape) for x in given if x.ndim == 2 and not x.is_floating_point()}
        return {at for at, of in self._shapes.items() if len(of) > 2 and (of[1], of[0]) in shapes - {of[:2]}}

    def _begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = tensor_of([*args, *kwargs.values()])
        if x is None or self.source is not None or not self._asks:
            return None
        # The batch is the test's own copy.
        self.source = x.requires_grad_()
        self.asked.append(x)
        return _with_copy(x, args, kwargs)

    def _embedded(self, _: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor | None:
        if not isinstance(output, Tensor) or output.ndim < 3 or not args or len(args[0]) != len(output):
            return None
        if not output.requires_grad:
            self.asked.append(output.requires_grad_())
        self.embedded.append((args[0], output))
        if self.source is None:
            self.source = output
        return output.clone()

    def _enters(self, at: tuple[str, int]) -> Callable[..., Any]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self._watcher.place = self._scalars.place = at
            x = tensor_of([*args, *kwargs.values()])
            if x is None:
                return None
            if not x.requires_grad:
                self.asked.append(x.requires_grad_())
            self._inputs[at], self._shapes[at] = x, tuple(x.shape)
            return _with_copy(x, args, kwargs)

        return hook

    def _leaves(self, at: tuple[str, int]) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self._watcher.place, self._scalars.place = ("", 0), None
            x, y = self._inputs.pop(at, None), tensor_of(output)
            if x is not None and y is not None and y.requires_grad:
                for name, value in dependences(x, y, self._axis).items():
                    self._rows[*at, "", name] = value
                    if name == "sees_later":
                        self._rows[*at, "", "positions"] = float(y.shape[self._axis])

        return hook

    def _between(self, parts: LayerList) -> list[Any]:
        """Add hooks for layers without a forward of their own; inputs without a gradient are not examined."""

        def begin(number: int, x: Tensor) -> None:
            at = parts.name, number
            self._watcher.place = self._scalars.place = at
            if x.requires_grad:
                self._inputs[at] = x

        return boundary_hooks(parts, begin, lambda number, y: self._leaves((parts.name, number))(self._module, (), y))

    def _normed(self, name: str) -> Callable[..., None]:
        def hook(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
            where = place_of(name, self._of_layer)
            inside, self._watcher.place = self._watcher.place, ("", 0)
            answers = norm_response(part, args, kwargs)
            self._watcher.place = inside
            if answers and answers["norm_response"] >= self._rows.get((*where, "norm_response"), -1.0):
                answers["norm_says"] = float(says_norm(part))
                self._rows |= {(*where, key): value for key, value in answers.items()}

        return hook


def _with_copy(x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a module's arguments with a copy of x instead of x, because operations in place would change x."""
    copy = x.clone()
    return (
        tuple(copy if value is x else value for value in args),
        {name: copy if value is x else value for name, value in kwargs.items()},
    )


def _biases(module: nn.Module) -> list[tuple[str, str, float]]:
    """Compare every bias with its matrix, and return rows of name, quantity and value.

    Entries that repeat one number are no draw. If the whole bias repeats one, or their rows of the matrix are faint, as
    for gates that begin at 1, the code chose these outputs; they are compared separately. So are many entries of one
    sign, as in Mamba's time steps.
    """
    rows = []
    known = dict(module.named_parameters(remove_duplicate=False))
    for name, bias in known.items():
        matrix = known.get(name.removesuffix("bias") + "weight") if name.endswith("bias") else None
        if matrix is None or matrix.ndim < 2 or bias.ndim != 1 or not bias.numel() or bias.shape[0] not in matrix.shape:
            continue
        # Of a convolution a row is all that is added up for one output.
        fan_in = matrix.numel() // bias.shape[0]
        _, numbers, counts = bias.detach().double().unique(return_inverse=True, return_counts=True)
        axis = _output_axis(module.get_submodule(name.rpartition(".")[0]), matrix, len(bias))
        lengths = matrix.detach().double().movedim(axis, 0).flatten(1).norm(dim=1)
        chosen = (counts > 1)[numbers] & ((lengths < _FAINT * lengths.max()) | (len(counts) == 1))
        # Sixteen entries of a symmetric law have one sign once in 2^15 draws.
        chosen |= len(bias) >= 16 and len(bias.detach().sign().unique()) == 1
        for quantity, entries in (("bias_over_matrix", bias[~chosen]), ("bias_constant", bias[chosen])):
            size, usual = (float(values.detach().double().square().mean()) ** 0.5 for values in (entries, matrix))
            # A row of one entry, as in a pointwise scale: by default torch draws it like its bias.
            if size > 0 and usual > 0 and fan_in > 1:
                rows.append((name, quantity, size / usual / fan_in**0.5))
    return rows


def _output_axis(part: nn.Module, matrix: Tensor, outputs: int) -> int:
    """Return the axis of a weight that belongs to outputs; of a square matrix, the one whose product the module gives.

    GPT-2's Conv1D multiplies by the matrix itself, `torch.nn.Linear` by its transpose.
    """
    if matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]:
        # Somebody else's module may take other inputs.
        with suppress(Exception), torch.no_grad():
            x = torch.linspace(0.0, 1.0, outputs).to(matrix)
            y = torch.sub(*deepcopy(part).forward(torch.stack([x, 0 * x])))
            return int((y - x @ matrix).norm() < (y - matrix @ x).norm())
    return matrix.shape.index(outputs)
