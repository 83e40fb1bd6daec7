"""The paper's statements as data: what is claimed, where, and in what words."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One statement of Xiong et al. (2020), arXiv:2002.04745v2.

    Attributes:
        id: short name used in tables and on the command line.
        source: lemma, theorem, section or appendix.
        statement: the claim in plain text.
    """

    id: str
    source: str
    statement: str


CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for claim in (
        Claim(
            id="L1",
            source="Lemma 1, App. B",
            statement="E||ReLU(X)||^2 = s^2 d/2 for X ~ N(0, s^2 I_d)",
        ),
        Claim(
            id="L2a",
            source="Lemma 2, App. C",
            statement="Post-LN: E||x5_l||^2 = 3d/2 for all l > 0",
        ),
        Claim(
            id="L2b",
            source="Lemma 2, App. C",
            statement="Pre-LN: (1 + l/2) d <= E||x_l||^2 <= (1 + 3l/2) d for all l > 0, x_l the input of layer l",
        ),
        Claim(
            id="L2c",
            source="App. C",
            statement="Post-LN: d <= E||x2_l||^2 <= 2d",
        ),
        Claim(
            id="L3",
            source="Lemma 3, App. D",
            statement="||J_LN(x)||_2 = O(sqrt(d)/||x||_2)",
        ),
        Claim(
            id="T1",
            source="Theorem 1, App. E",
            statement="||dL/dW^{2,L}||_F is O(d sqrt(ln d)) for Post-LN and O(d sqrt(ln d / L)) for Pre-LN",
        ),
        Claim(
            id="F1",
            source="App. F",
            statement="Post-LN: dL/dW^{2,l} carries a factor (2/3)^{(L-l)/2}, so it decays exponentially toward l = 1",
        ),
        Claim(
            id="F2",
            source="App. F",
            statement="Pre-LN: dL/dW^{2,l} is independent of l when l is large",
        ),
    )
}
