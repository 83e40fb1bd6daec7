"""The measured quantities: one name each, used by predictor, sampler, table, check and figure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A named scalar of one random network.

    Attributes:
        name: the key in predictions, samples and tables.
        symbol: mathtext for axes.
        meaning: definition in words, with the point of the network where it is read.
        per_layer: one value per layer (index l - 1 is layer l) instead of one per network.
        predicted: whether the large-width recursion gives it.
        needs_matrix: whether it needs W_emb itself, and so the dense engine.
    """

    name: str
    symbol: str
    meaning: str
    per_layer: bool = False
    predicted: bool = True
    needs_matrix: bool = False


def _weight_gradient(matrix: str, symbol: str, role: str) -> Quantity:
    return Quantity(
        name=f"grad_sq_{matrix}",
        symbol=rf"$\|\partial\mathcal{{L}}/\partial {symbol}\|_F^2$",
        meaning=f"squared Frobenius norm of the loss gradient with respect to {role}",
        per_layer=matrix != "Wemb",
    )


QUANTITIES: dict[str, Quantity] = {
    q.name: q
    for q in (
        Quantity(name="loss", symbol=r"$\mathcal{L}$", meaning="cross-entropy in nats, averaged over the positions"),
        Quantity(
            name="hidden_energy",
            symbol=r"$\|x\|^2/d$",
            meaning="||x||^2/d averaged over tokens, after the feed-forward residual sum (Post: x5, Pre: x_{l+1})",
            per_layer=True,
        ),
        Quantity(
            name="attention_energy",
            symbol=r"$\|x\|^2/d$",
            meaning="||x||^2/d averaged over tokens, after the attention residual sum (Post: x2, Pre: x3)",
            per_layer=True,
        ),
        Quantity(
            name="token_correlation",
            symbol=r"$x_i\cdot x_j/d$",
            meaning="x_i.x_j/d averaged over pairs i != j, at the point of hidden_energy; NaN for one token",
            per_layer=True,
        ),
        _weight_gradient("W1", "W^1", "the first feed-forward matrix"),
        _weight_gradient("W2", "W^2", "the second feed-forward matrix"),
        _weight_gradient("WV", "W^V", "the value matrix"),
        _weight_gradient("Wemb", r"W_\mathrm{emb}", "the output matrix"),
        Quantity(
            name="loss_gradient_sq",
            symbol=r"$\|\partial\mathcal{L}_i/\partial x_{\mathrm{out},i}\|^2$",
            meaning="||dL_i/dx_out,i||^2 of the position's own loss L_i, averaged over positions",
        ),
        Quantity(
            name="input_gradient_sq",
            symbol=r"$\|\partial\mathcal{L}/\partial x_0\|_F^2$",
            meaning="squared Frobenius norm of the loss gradient with respect to the n x d input",
        ),
        Quantity(
            name="ffn_hidden_energy",
            symbol=r"$\|h\|^2/d$",
            meaning="||h||^2/d averaged over tokens, h = ReLU(x W1)",
            per_layer=True,
        ),
        Quantity(
            name="ffn_hidden_max_sq",
            symbol=r"$\max h^2$",
            meaning="the largest squared entry of h = ReLU(x W1) over entries and tokens",
            per_layer=True,
            predicted=False,
        ),
        Quantity(
            name="norm_jacobian",
            symbol=r"$\|J_\mathrm{LN}\|_2$",
            meaning="sqrt(d)/||y|| of the last LayerNorm before the output, y its centred input, averaged over tokens",
        ),
        Quantity(
            name="norm_jacobian_uncentred",
            symbol=r"$\sqrt{d}/\|x\|$",
            meaning="sqrt(d)/||x|| at the same place, x its input as it is, averaged over tokens",
        ),
        Quantity(
            name="head_norm",
            symbol=r"$\|W_\mathrm{emb}\|_2$",
            meaning="spectral norm of the output matrix",
            predicted=False,
            needs_matrix=True,
        ),
    )
}
