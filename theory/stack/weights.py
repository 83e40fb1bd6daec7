"""The weight matrices of a layer: their shapes, and the distribution of their entries."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from theory.stack.initializations import INITIALIZATIONS, Law
from theory.stack.plan import ROLES, kinds
from theory.stack.stack import BY_LAYER, Stack


@lru_cache(maxsize=256)  # of deep stacks the recursion asks in every layer
def weight_shapes(stack: Stack) -> Mapping[str, tuple[int, int]]:
    """Return the shape (d_in, d_out) of every weight matrix of a layer, by the matrix's role such as "W1".

    The order is that of the forward pass.
    """
    d, hidden, inner = stack.width, stack.ffn_width, stack.heads * stack.key_width
    shared = stack.key_heads * stack.key_width
    # By the letter behind W, or behind X in attention to a source, whose matrices are like the first attention's.
    shapes = {"Q": (d, inner), "K": (d, shared), "V": (d, shared), "O": (inner, d)}
    shapes |= {"G": (d, hidden), "1": (d, hidden), "2": (hidden, d), "R": (d, stack.experts)}
    missing = {
        "Q": not stack.query_key_scale,
        "K": not stack.query_key_scale or stack.query_key == "tied",
        "O": stack.output_projection == "identity",
        "G": stack.ffn == "plain",
        "R": not stack.experts,
    }
    # Of the shared expert, whose router is a gate of one logit.
    shared, s = stack.shared_width, {"SR": (d, 1)}
    s |= {"SG": (d, shared), "S1": (d, shared), "S2": (shared, d)}
    roles = [role for kind in kinds(stack) for role in ROLES[kind] if not missing.get(role[1], False)]
    roles = [role for role in roles if role[0] != "S" or (shared and (role != "SR" or stack.shared_gate != "none"))]
    return MappingProxyType({role: s[role] if role in s else shapes[role[1]] for role in roles})


def copies(stack: Stack, role: str) -> int:
    """Return the number of matrices with a given role in a layer: one, or one for each expert."""
    return max(1, stack.experts) if role in ("WG", "W1", "W2") else 1


def rows_met(stack: Stack) -> dict[str, int]:
    """Return the number of different input rows that each weight matrix of a layer multiplies, by role.

    It is the number of tokens, except for values and W^O if all tokens of a sequence attend to the same mean: then it
    is the number of sequences.
    """
    source = stack.sequences * stack.source_tokens
    met = dict.fromkeys(weight_shapes(stack), stack.rows) | {"XK": source, "XV": source}
    if stack.attention_dropout == 0.0 and not stack.query_key_scale:
        met |= {"XV": stack.sequences, "XO": stack.sequences}
        met |= {"WV": stack.sequences, "WO": stack.sequences} if stack.mask == "none" else {}
    return {role: met[role] for role in weight_shapes(stack)}


def inner_ratio(stack: Stack) -> float:
    """Return the total width of all attention heads' values, divided by the network's width d.

    It is 1 unless `head_width` is set.
    """
    return stack.heads * stack.key_width / stack.width if stack.head_width else 1.0


def transform_gain(stack: Stack) -> float:
    """Return the factor by which the output transform's matrix multiplies the mean squared activation.

    It is d times the variance of an entry of W^H.
    """
    d = stack.width
    return _energy_gain(stack, "WH", d, d) * stack.transform_gain**2


def law(stack: Stack) -> Law:
    """Return the distribution of the entries of all weight matrices except the output matrix."""
    return Law(INITIALIZATIONS[stack.initialization].uniform, stack.truncation)


def _energy_gain(stack: Stack, role: str, d_in: int, d_out: int) -> float:
    """Return d_in times the variance of an entry, from `init_std` if it is set, else from the initialization."""
    if stack.init_std is not None:
        return law(stack).variance * stack.init_std**2 * d_in
    return law(stack).variance * float(INITIALIZATIONS[stack.initialization].gain(role, d_in, d_out))


_GAINS = {
    "WR": "router_gain",
    "WV": "value_gain",
    "WO": "projection_gain",
    "WG": "gate_gain",
    "W1": "up_gain",
    "W2": "down_gain",
}


def gain(stack: Stack, role: str) -> float:
    """Return the factor by which a weight matrix multiplies the mean squared activation, at initialization.

    It is d_in times the variance of an entry.

    The square of the placement's β is included, except for queries, keys and routers. For queries and keys the result
    is s² times the square of their own factor.

    Args:
        stack: the network.
        role: role of the matrix, such as "W1".

    Raises:
        ValueError: gains differ between layers; then use `stack.of_layer(layer)`.
    """
    shape = weight_shapes(stack)[role] if role[0] == "S" else None
    role = role.replace("X", "W").replace("S", "W")
    if role in ("WQ", "WK"):
        factor = stack.query_gain if role == "WQ" else stack.key_gain
        return law(stack).variance * (stack.query_key_scale * factor) ** 2
    d_in, d_out = shape or weight_shapes(stack)[role]
    energy_gain = _energy_gain(stack, role, d_in, d_out) * getattr(stack, _GAINS[role]) ** 2
    if role == "WR":
        return float(energy_gain)
    energy_gain *= stack.composition.gain(stack.depth) ** 2
    if stack.lower_layers:
        raise ValueError("lower_share must be 0 where layers are alike, got another placement below.")
    if stack.depth_scaling in BY_LAYER and _GAINS[role] in BY_LAYER[stack.depth_scaling]:
        raise ValueError(
            f"depth_scaling must be 'none' or 'depth' where layers are alike, got {stack.depth_scaling!r}."
        )
    if stack.depth_scaling != "depth" or role not in ("WO", "W2"):
        return float(energy_gain)
    return float(energy_gain / (2 * stack.depth))
