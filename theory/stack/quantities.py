"""The names and definitions of all quantities that are predicted, sampled, listed in tables and drawn in figures."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from theory.stack.registry import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """The definition of a named number of one random network, such as a gradient norm in every layer.

    Attributes:
        name: the key in predictions, samples and tables.
        meaning: the definition in words, with the place in the network.
        per_layer: whether there is one value per layer (index l - 1 is layer l) instead of one per network.
        predicted: whether the large-width recursion predicts it.
        in_paper: whether the network of the paper has it; otherwise only networks with other fields have it.
    """

    name: str
    meaning: str
    per_layer: bool = False
    predicted: bool = True
    in_paper: bool = True

    @property
    def of_encoder(self) -> bool:
        """Return whether a quantity belongs to the layers of the encoder."""
        return self.per_layer and self.name.startswith(_ENCODER)


_ENCODER = "encoder_"
STREAM = "stream_gradient_sq"


def _weight_gradient(matrix: str, role: str) -> Quantity:
    return Quantity(
        name=f"grad_sq_{matrix}",
        meaning=f"squared Frobenius norm of the loss gradient with respect to {role}",
        per_layer=matrix not in ("WH", "Wemb"),
        in_paper=matrix in ("W1", "W2", "WV", "Wemb"),
    )


def _with_encoder(quantities: dict[str, Quantity]) -> dict[str, Quantity]:
    """Return all quantities, followed by those of the encoder's layers, which have the prefix `encoder_`.

    Args:
        quantities: the quantities of a network without an encoder, by name.
    """
    # Neither has an encoder experts.
    absent = {name for name in quantities if name.startswith(("grad_sq_X", "grad_sq_S", "grad_sq_WR", "expert_"))}
    absent |= {"cross_energy", "grad_sq_scalar"}
    encoder_quantities = [
        replace(q, name=_ENCODER + name, meaning=f"{q.meaning}, in the encoder", in_paper=False)
        for name, q in quantities.items()
        if q.per_layer and name not in absent
    ]
    return quantities | {q.name: q for q in encoder_quantities}


_OF_STACK: dict[str, Quantity] = {
    q.name: q
    for q in (
        Quantity(name="loss", meaning="cross-entropy in nats, averaged over the positions"),
        Quantity(
            name="hidden_energy",
            meaning="||x||^2/d averaged over tokens, after the feed-forward residual sum (Post: x5, Pre: x_{l+1})",
            per_layer=True,
        ),
        Quantity(
            name="attention_energy",
            meaning="||x||^2/d averaged over tokens, after the attention residual sum (Post: x2, Pre: x3)",
            per_layer=True,
        ),
        Quantity(
            name="token_correlation",
            meaning="x_i.x_j/d averaged over pairs i != j, at the point of hidden_energy; NaN for one token",
            per_layer=True,
        ),
        Quantity(
            name="cross_energy",
            meaning="||x||^2/d averaged over tokens, after the residual sum of cross-attention",
            per_layer=True,
            in_paper=False,
        ),
        _weight_gradient("W1", "the first feed-forward matrix"),
        _weight_gradient("W2", "the second feed-forward matrix"),
        _weight_gradient("WV", "the value matrix"),
        _weight_gradient("WQ", "the query matrix, or one matrix for queries and keys"),
        _weight_gradient("WK", "the key matrix"),
        _weight_gradient("WO", "the output projection of attention, if there is one"),
        _weight_gradient("XQ", "the query matrix of cross-attention"),
        _weight_gradient("XK", "the key matrix of cross-attention"),
        _weight_gradient("XV", "the value matrix of cross-attention"),
        _weight_gradient("XO", "the output projection of cross-attention"),
        _weight_gradient("WG", "the gate's matrix of a gated MLP"),
        _weight_gradient("WR", "the router's matrix; with experts, W1, W2 and WG are sums over all experts"),
        _weight_gradient("S1", "the shared expert's first matrix"),
        _weight_gradient("S2", "the shared expert's second matrix"),
        _weight_gradient("SG", "the gate's matrix of the shared expert's MLP"),
        _weight_gradient("SR", "the gate of the shared expert, one logit"),
        Quantity(
            name="expert_load_max",
            meaning="share of all tokens that the fullest expert receives",
            per_layer=True,
            in_paper=False,
        ),
        Quantity(
            name="expert_load_deviation",
            meaning="standard deviation of the experts' token counts, divided by their mean",
            per_layer=True,
            in_paper=False,
        ),
        Quantity(
            name="expert_balance",
            meaning="number of experts times the sum over experts of their share of tokens times mean softmax score",
            per_layer=True,
            in_paper=False,
        ),
        Quantity(
            name="grad_sq_scalar",
            meaning="squared loss gradient with respect to a layer's scalar, which multiplies its branches (ReZero)",
            per_layer=True,
            in_paper=False,
        ),
        _weight_gradient("WH", "the matrix W^H of the transform before the output matrix, if there is one"),
        _weight_gradient("Wemb", "the output matrix"),
        Quantity(
            name="loss_gradient_sq",
            meaning="||dL_i/dx_out,i||^2 of the position's own loss L_i, averaged over positions",
        ),
        Quantity(
            name="input_gradient_sq",
            meaning="squared Frobenius norm of the loss gradient with respect to the n x d input",
        ),
        Quantity(
            name=STREAM,
            meaning="squared Frobenius norm of the loss gradient with respect to the residual stream after a layer, "
            "the norm of Post-LN included",
            per_layer=True,
        ),
        Quantity(
            name="memory_gradient_sq",
            meaning="squared Frobenius norm of the loss gradient with respect to the encoder's output",
            in_paper=False,
        ),
        Quantity(
            name="encoder_input_gradient_sq",
            meaning="squared Frobenius norm of the loss gradient with respect to the encoder's input",
            in_paper=False,
        ),
        Quantity(
            name="ffn_hidden_energy",
            meaning="mean square of the hidden units, ReLU(x W1) in the paper, averaged over tokens",
            per_layer=True,
        ),
        Quantity(
            name="ffn_hidden_max_sq",
            meaning="largest squared hidden unit, over units and tokens",
            per_layer=True,
            predicted=False,
        ),
        Quantity(
            name="attention_entropy",
            meaning="entropy in nats of a token's attention weights, averaged over tokens and heads",
            per_layer=True,
            in_paper=False,
        ),
        Quantity(
            name="attention_squares",
            meaning="sum of a token's squared attention weights, averaged over tokens and heads",
            per_layer=True,
            in_paper=False,
        ),
        Quantity(
            name="norm_jacobian",
            meaning="sqrt(d)/||y|| of the last LayerNorm before the output, y its centred input, averaged over tokens; "
            "1 where there is no norm",
        ),
        Quantity(
            name="norm_jacobian_uncentred",
            meaning="sqrt(d)/||x|| of the last LayerNorm before the output, with x its input, averaged over tokens",
        ),
        Quantity(
            name="loss_through_norm_sq",
            meaning="||J_i||_2^2 ||dL_i/dx_out,i||^2 of the last LayerNorm before the output, averaged over positions",
        ),
        Quantity(
            name="chain_positions_sq",
            meaning="||h_i||^2 ||J_i^T dL_i/dx_out,i||^2 in the last layer, averaged over positions",
        ),
        Quantity(
            name="chain_jacobian_sq",
            meaning="||h_i||^2 ||J_i||_2^2 ||dL_i/dx_out,i||^2 in the last layer, averaged over positions",
        ),
        Quantity(
            name="head_norm",
            meaning="spectral norm of the output matrix; only for engines that have the matrix",
            predicted=False,
        ),
    )
}

QUANTITIES: dict[str, Quantity] = _with_encoder(_OF_STACK)
"""All quantities by name."""


class NamedArrays(Mapping[str, NDArray[Any]]):
    """A read-only mapping from names of quantities to arrays.

    Attributes:
        arrays: the arrays by name.
    """

    __slots__ = ()
    arrays: Mapping[str, NDArray[Any]]

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return the array of one quantity.

        Raises:
            KeyError: there is no quantity of this name; the message suggests the nearest name.
        """
        try:
            return self.arrays[name]
        except KeyError:
            near = nearest(str(name), self.arrays).strip() or f"There are {', '.join(self.arrays)}."
            raise KeyError(f"no quantity {name!r} here. {near}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)
