"""Statements of files: planted errors are caught, true ones are seldom refused, and ill-formed files have one line."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from checks.results import field_results, load_results
from checks.stacks.statements import claimed_words, judge, networks, theory_of, variants
from checks.statistics import FALSE_ALARM
from gradbounds.actions.statements import verify_claims
from gradbounds.cli import main
from simulate import Run
from theory import Claim
from theory.paper.claims import CLAIMS, claims_of, sources
from tools.accept import accept

SMALL = {"placement": "pre", "width": 128, "tokens": 4, "vocab": 64, "depth": 4}
NORM = {"grad_sq_W2[1]": 0.5}
BASE = Claim(id="C", kind="value", quantity=NORM, claimed=1.0, network=SMALL, draws=64)
BY_DEPTH = replace(BASE, kind="exponent", against="depth", at=(4, 8, 16, 32))
BY_LAYER = replace(BASE, kind="growth", quantity={"hidden_energy": 1.0}, against="layer", network=SMALL | {"depth": 16})
ORDER = replace(
    BASE,
    kind="comparison",
    claimed=None,
    quantity={"hidden_energy[-1]": 1.0},
    networks={"pre": {}, "scaled": {"placement": "scaled"}},
)
KNOWN: dict = {}


def theory(network):
    if network not in KNOWN:
        KNOWN[network] = theory_of(network)
    return KNOWN[network]


def drawn(generator, relative=0.1, draws=64):
    """Samples of networks whose means are theory's, with a normal error of some percent of each draw."""

    def samples(network):
        return {
            name: value * (1.0 + relative * generator.standard_normal((draws, *value.shape)))
            for name, value in theory(network).items()
            if name in ("grad_sq_W2", "hidden_energy")
        }

    return samples


def true_number(claim):
    """What theory says, as `judge` prints it."""
    return judge(claim, drawn(np.random.default_rng(0)), theory).predicted


TRUE = {
    kind: replace(claim, **({"claimed": None} | {end: true_number(claim)}))
    for kind, claim, end in (
        ("value", BASE, "claimed"),
        ("exponent", BY_DEPTH, "claimed"),
        ("growth", BY_LAYER, "claimed"),
        ("bound", replace(BASE, kind="bound"), "at_most"),
        ("ratio", replace(ORDER, kind="ratio", networks=dict(ORDER.networks), claimed=1.0), "claimed"),
    )
}


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        (TRUE["exponent"], {"claimed": TRUE["exponent"].claimed + 0.1}),
        (TRUE["growth"], {"claimed": TRUE["growth"].claimed * 1.02}),
        (TRUE["value"], {"claimed": TRUE["value"].claimed * 1.1}),
        (TRUE["bound"], {"at_most": TRUE["bound"].at_most * 0.9}),
        (TRUE["ratio"], {"claimed": TRUE["ratio"].claimed * 0.9}),
        (ORDER, {"networks": dict(reversed(ORDER.networks.items()))}),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value.kind,
)
def test_a_planted_error_of_each_kind_is_caught(claim, changes):
    samples = drawn(np.random.default_rng(1), 0.05)
    assert judge(claim, samples, theory).verdict.startswith("holds")
    assert judge(replace(claim, **changes), samples, theory).verdict == "fails"


def test_a_true_statement_is_refused_at_most_at_the_stated_rate():
    """The judge refuses at most one of 1000 true claims: 0.06 are expected, and two have a probability of 0.002.

    The order is of two equal networks, where it is as close to false as it can be.
    """
    generator = np.random.default_rng(2)
    claims = [*TRUE.values(), replace(ORDER, networks={"first": {}, "second": {}})]
    refused = sum(
        judge(claims[k % len(claims)], drawn(generator, 0.5, 16), lambda _: {}).verdict == "fails" for k in range(1000)
    )
    assert refused <= 1, FALSE_ALARM


def test_every_shipped_statement_has_networks_and_an_id_of_its_own():
    every = [claim for claims in sources().values() for claim in claims.values()]
    judged = [claim for claim in every if not claim.unjudged]
    assert len({claim.id for claim in every} | set(CLAIMS)) == len(every) + len(CLAIMS)
    assert len(judged) >= 40
    assert len({claim.paper for claim in judged}) >= 15
    for claim in judged:
        assert networks(claim), claim.id
        assert claim.source, claim.id
        assert claim.statement, claim.id


def test_every_shipped_statement_has_committed_verdicts():
    """One for every setting, on the numbers of the file; a statement that fails is corrected."""
    for name, claims in sources().items():
        listed = [each for claim in claims.values() if not claim.unjudged for each in variants(claim)]
        committed = field_results()[name].verdicts if listed else []
        assert [(v.claim, v.relaxed) for v in committed] == [(claim.id, claim.setting) for claim in listed]
        for claim, v in zip(listed, committed, strict=True):
            assert str(v.claimed) == claimed_words(claim)
            assert v.verdict != "fails" or (claim.left_out and claim.corrected), claim.id


def test_verdicts_on_statements_can_be_committed(tmp_path, monkeypatch, capsys):
    """Each goes into the file of its source; sampled again, a statement has the numbers that are committed."""
    (tmp_path / "checks" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert main(["verify", "--source", "rezero", "--out", "run"]) == 0
    (file,) = accept(Path("run"))
    again, committed = load_results(Path(file)), field_results()["rezero"]
    assert again.command == committed.command == "gradbounds verify --source rezero"
    assert [v.verdict for v in again.verdicts] == [v.verdict for v in committed.verdicts]
    assert [v.measured for v in again.verdicts] == pytest.approx([v.measured for v in committed.verdicts], rel=1e-5)


GOOD = """
[M1]
kind = "exponent"
statement = "Pre-LN divides the first layer's gradient by sqrt(L)"
quantity = { "grad_sq_W2[1]" = 0.5 }
against = "depth"
at = [2, 4, 8]
claimed = -0.5
draws = 32
network = { placement = "pre", width = 64, tokens = 2, vocab = 16 }
"""


def test_a_file_is_judged_and_continued(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(GOOD)
    assert main(["verify", "--claims", str(file), "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert "1 of 1 claims are judged; sampling takes about" in said.err
    assert "M1   exponent in depth of grad_sq_W2[1]^0.5: fails" in said.out
    assert "fails" in str(verify_claims(file, tmp_path / "run"))
    assert "sampling" not in capsys.readouterr().err.partition("\n")[2], "what was sampled is not sampled again"
    file.write_text(GOOD.replace("-0.5", "0.0").replace("[2, 4, 8]", "[2, 4, 6]"))
    assert main(["verify", "--claims", str(file), "--out", str(tmp_path / "run"), "--draws", "96"]) == 0
    assert "claimed 0" in capsys.readouterr().out
    assert {s.stack.depth: s.draws for s in Run.open(tmp_path / "run").samples()} == {2: 128, 4: 128, 6: 128, 8: 64}, (
        "whole blocks"
    )


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("[2, 4, 8]", "[2, 4]", "at least 3 values"),
        ("[2, 4, 8]", str(list(range(1, 50))), "at most 32"),
        ('"depth"', '"deepness"', "against of claim"),
        ("-0.5", "nan", "not finite"),
        ("claimed = -0.5", "at_least = 1\nat_most = -1", "must be in order"),
        ("-0.5", "true", "a finite number"),
        ('"exponent"', '"growth"', "above 0 but for exponents"),
        ('"exponent"', '"identity"', "growth or comparison"),
        ("grad_sq_W2[1]", "grad_sq_W9[1]", "Did you mean"),
        ("grad_sq_W2[1]", "grad_sq_W2[3]", "up to 2"),
        ("grad_sq_W2[1]", "grad_sq_W2", "a layer, as grad_sq_W2"),
        ("width = 64", "widht = 64", "widht"),
        ("width = 64", "width = 9007199254740992", "max-time must be longer"),
        ("draws = 32", "draws = 5000", "2 to 4096"),
        ("draws = 32", 'numbers = { x = "1e999999999" }', "must be fractions"),
        ('kind = "exponent"', "", "kind"),
        ("claimed", "clamied", "Did you mean claimed"),
        ("[M1]", '["a\\nb"]', "a word of at most 40"),
        ("Pre-LN divides", "\\u001b[31m", "one line"),
        ("[M1]", "x = 1\n[M1]", "must be a table"),
        (GOOD, "", "from 1 to 200 claims"),
        (GOOD, "".join(f"[a{k}]\n" for k in range(201)), "from 1 to 200 claims"),
        (GOOD, "[[", "TOML"),
        (GOOD, "#" * (2**20 + 1), "at most 1 MiB"),
    ],
)
def test_an_ill_formed_file_has_one_line(before, after, said, tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(GOOD.replace(before, after))
    assert main(["verify", "--claims", str(file), "--out", str(tmp_path / "run")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert said in lines[-1], lines
    assert len(lines) <= 1 + ("max-time" in said)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_file_of_claims_is_a_regular_file(make, tmp_path, capsys):
    make(tmp_path / "mine")
    assert main(["verify", "--claims", str(tmp_path / "mine")]) == 2
    assert "claims must be a regular file" in capsys.readouterr().err


def test_a_variant_is_another_row():
    text = GOOD + '[M1.variants]\n"gated units" = { ffn = "gated" }\n'
    (claim,) = claims_of(text.encode(), "mine").values()
    assert [each.setting for each in variants(claim)] == ["the source's setting", "gated units"]
    assert len(networks(claim)) == 6


def test_the_example_of_the_page_is_read():
    page = (Path(__file__).parents[2] / "docs" / "claim_tutorial.md").read_text(encoding="utf-8")
    assert claims_of(page.partition("```toml\n")[2].partition("```")[0].encode(), "page")
