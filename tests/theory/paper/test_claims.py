"""The claims as data: complete, parsed, and equal to what is derived where something is."""

from dataclasses import replace

import pytest
import sympy as sp

from checks.results import committed_results
from gradbounds.cli import main
from theory import CLAIMS
from theory.paper import layer_norm, lemmas, theorem1
from theory.paper.derivations import DERIVATIONS
from theory.paper.lemmas import d

NAMES = [
    "L1", "L2a", "L2b", "L2c", "L3", "L4", "D1", "D2", "L5", "E1", "T1", "S1", "F1", "F2", "F3", "F4", "C1", "C2", "C3",
    *(f"W{number}" for number in range(1, 10)), "B1", "B2", "B3", "B4", "H1", "H2", "H3", "G1",
]  # fmt: skip


def expression(claim):
    """The claim as a relation between its two sides."""
    functions = {name: sp.Function(name) for name in ("E", "P", "Norm", "ReLU", "J", "multiplicity", "curvature")}
    positive = {name: sp.Symbol(name, positive=True) for name in ("d", "s", "C")}
    # As in theory.paper.lemmas: l counts from 0, where the recursion that proves a claim starts.
    layers = {"l": sp.Symbol("l", integer=True, nonnegative=True), "L": sp.Symbol("L", integer=True, positive=True)}
    return sp.sympify(claim.form, locals=functions | positive | layers)


def test_every_statement_is_there():
    assert list(CLAIMS) == NAMES
    for claim in CLAIMS.values():
        assert isinstance(expression(claim), sp.Basic)
        assert claim.latex.count("{") == claim.latex.count("}")
        assert claim.statement
        assert claim.setting
        assert claim.tight.endswith(".")
    with pytest.raises(ValueError, match="^kind must be one of 'identity', .*, got 'rumour'"):
        replace(CLAIMS["T1"], kind="rumour")


def test_forms_are_what_is_derived():
    """The paper's right-hand sides, as written in the data, against the derivations that do not read them."""
    s = sp.Symbol("s", positive=True)
    assert sp.simplify(expression(CLAIMS["L1"]).rhs - lemmas.relu_energy(d, s)) == 0
    assert sp.simplify(expression(CLAIMS["L2a"]).rhs - lemmas.post_ln_energies()[1]) == 0
    low, high = expression(CLAIMS["L2b"]).args
    derived = lemmas.pre_ln_band()
    assert sp.simplify(low.lts - derived[0]) == 0
    assert sp.simplify(high.gts - derived[1]) == 0
    attention = lemmas.post_ln_energies()[0]
    low, high = expression(CLAIMS["L2c"]).args
    assert (low.lts, high.gts) == (attention.subs(lemmas.attention, 0), attention.subs(lemmas.attention, 1))
    multiplicities = {eq.lhs.args[0]: eq.rhs for eq in expression(CLAIMS["L4"]).args}
    assert {value: n.subs(d, 3) for value, n in multiplicities.items()} == layer_norm.projection_eigenvalues(3)
    assert sp.simplify(expression(CLAIMS["E1"]).lhs.args[0].gts - theorem1.entry_threshold()) == 0


def test_numbers_are_those_of_the_forms():
    """What verdicts and figures read, against the statement that sympy reads."""
    form = {name: expression(CLAIMS[name]) for name in CLAIMS}
    number = {name: {key: sp.Rational(value) for key, value in CLAIMS[name].numbers.items()} for name in CLAIMS}
    s, layer, depth = sp.Symbol("s", positive=True), lemmas.layer, lemmas.L
    assert form["L1"].rhs == number["L1"]["energy"] * s**2 * d
    assert form["L2a"].rhs == number["L2a"]["energy"] * d
    low, high = form["L2b"].args
    assert [sp.expand(side / d - 1) for side in (low.lts, high.gts)] == [
        number["L2b"][end] * layer for end in ("least", "most")
    ]
    low, high = form["L2c"].args
    assert [low.lts / d, high.gts / d] == [number["L2c"][end] for end in ("least", "most")]
    for placement, post in (("post", sp.true), ("pre", sp.false)):
        order = form["T1"].gts.subs(sp.Symbol("post"), post)
        assert sp.simplify(depth * sp.diff(sp.log(order), depth)) == number["T1"][placement]
        assert form["C2"].rhs.subs(sp.Symbol("post"), post) == number["T1"][placement]
    assert form["S1"].rhs == number["S1"]["exponent"]
    assert sp.simplify(form["F1"].rhs ** 2 - number["F1"]["square"] ** (depth - layer)) == 0
    assert form["F2"].rhs == number["F2"]["exponent"]
    assert form["F3"].rhs == number["F3"]["square"]
    epsilon, delta = (number["C1"][name] for name in ("epsilon", "delta"))
    assert "1.1*E(Norm(x)**2)" in CLAIMS["C1"].form
    assert (1 + epsilon, 1 - delta) == (sp.Rational("1.1"), sp.Rational("0.875"))
    assert form["C1"].rhs == 0.875
    assert f"about {float(number['C2']['post'])}" in CLAIMS["C2"].statement


def test_order_of_theorem_1():
    """The claimed order over the derived bound tends to a constant, in each placement."""
    claimed = expression(CLAIMS["T1"]).gts
    for placement, post in (("post", True), ("pre", False)):
        order = claimed.subs(sp.Symbol("post"), sp.true if post else sp.false)
        in_width = sp.limit(theorem1.bound(placement) / order, d, sp.oo)
        constant = sp.limit(in_width, lemmas.L, sp.oo)
        assert constant.is_finite
        assert constant.is_positive


DERIVED = {
    "L1": [
        "d*s**2/2",
    ],
    "L2a": [
        "3",
        "0",
        "3*d/2",
    ],
    "L2b": [
        "d*(2*l*m + l + 2)/2",
        "(d*(l + 2)/2, d*(3*l + 2)/2)",
        "1/2",
    ],
    "L2c": [
        "0",
        "d*(m + 1)",
    ],
    "L3": [
        "1/3",
        "sqrt(42)/14",
        "1 - 4*2**(1/4)",
    ],
    "L4": [
        "{0: 1, 1: 2}",
    ],
    "D1": [
        "0.5273",
        "0.0582",
        "0.0457",
    ],
    "D2": [
        "-t**2/(2*nu**2)",
        "-u/(2*b)",
    ],
    "L5": [
        "0",
        "(B - EY + e)/(B - a)",
        "epsilon/(epsilon + 9/10)",
        "(1/10, 7/8, 147/160)",
    ],
    "E1": [
        "1/200",
        "0.0008",
    ],
    "T1": [
        "2*sqrt(30)*B*d*sqrt(log(100*d))/3",
        "2*sqrt(10)*B*d*sqrt(log(100*d))/sqrt(L + 2)",
        "-delta - epsilon/(epsilon + 9/10) + 99/100",
        "-n*(delta + epsilon/(epsilon + 9/10) + 1/100) + 1",
        "4",
        "[sqrt(n), 1, sqrt(d), 2*sqrt(log(100*d)), sqrt(10), "
        "sqrt(2)*sqrt(V)*(sqrt(V) + sqrt(d)*(t + 1))/(sqrt(d)*sqrt(V*(P + 1) - 2))]",
        "[sqrt(n), 1, sqrt(d), 2*sqrt(log(100*d)), sqrt(10)*sqrt(3*L + 2)/sqrt(L + 2), "
        "sqrt(2)*sqrt(V)*(sqrt(V) + sqrt(d)*(t + 1))/(sqrt(d)*sqrt(V*(P + 1) - 2))]",
        "(sigma_e**2*(V - 1)/(3*V*n), sigma_e**2*(V - 1)*(n + 1)/(3*V*n))",
        "(sigma_e**2*(V - 1)/(V*n*(3*L + 2)), sigma_e**2*(V - 1)*(n + 1)/(V*n*(L + 2)))",
    ],
    "S1": [
        "1/(3*l + 2)",
    ],
    "F3": [
        "2/3 + 4/(3*d)",
    ],
    "F4": [
        "0.0208",
    ],
    "F1": [
        "1/2",
        "1",
        "2/3",
        "55/36",
        "55/9",
    ],
    "F2": [
        "3/2",
        "-2/3",
        "-1",
    ],
    "H2": [
        "(0, 0, 1/2, 0, 0, 0)",
        "1",
    ],
    "H3": [
        "0",
        "0",
        "0",
        "q*s**2*v**2/d",
        "-q*s**2*v**2/d",
        "0",
        "d*q",
    ],
    "G1": [
        "(0, 0)",
        "sqrt(g2*phi2 + 1)/sqrt(dphi2*g2 + 1)",
        "sqrt(g1*g2*phi2 + 1)/sqrt(dphi2*g1*g2 + g1*g2*phi2 + 1)",
        "(dphi2*g2 + 1)/((g_A + 1)*(g2*phi2 + 1))",
        "G*e**2/4",
        "sqrt(dphi2*g2 + 1)/((g_A + 1)*sqrt(g2*phi2 + 1))",
        "1",
        "sqrt(3)/2",
        "0.9894",
        "0.8704",
        "0.8839",
    ],
}
"""What each step gives: by integration, matrices or solving; here as it stands in the paper, docs/theorem_1.md or
docs/theory.md."""


@pytest.mark.parametrize("name", DERIVATIONS)
def test_derivations(name):
    assert name in CLAIMS
    found = [step.run() for step in DERIVATIONS[name]]
    assert [f"{value:.4f}" if isinstance(value, float) else str(value) for value in found] == DERIVED[name]


def test_what_has_no_derivation_is_an_observation():
    """H3 alone is an identity that a study derives."""
    underived = {name: claim.kind for name, claim in CLAIMS.items() if name not in DERIVATIONS}
    assert underived.pop("H3") == "identity"
    assert set(underived.values()) == {"observation"}


def test_claims_are_listed_and_explained(capsys):
    assert main(["claims"]) == 0
    said = capsys.readouterr().out
    assert all(f"\n{name} " in "\n" + said for name in NAMES)
    judged = {v.claim for one in committed_results() for v in one.verdicts}
    assert said.split("\nLiu et al. 2020")[0].count("not tested here") == len(set(NAMES) - judged)
    assert main(["claims", "t1"]) == 0
    said = capsys.readouterr().out
    for words in ("Statement", "Derived", "tight?", "Measured", "2*sqrt(30)*B*d*sqrt(log(100*d))/3", "loose by x"):
        assert words in said
