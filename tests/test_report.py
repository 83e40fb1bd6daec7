"""The committed verdicts: rendered again, sampled again, and compared with what is new."""

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from checks import comparison, verdicts
from checks.experiment import TEXT, verify_cells
from checks.report import COMMITTED, agreement_counts, changed, html, load_verdicts, markdown, missing, results
from simulate import sample
from theory import Stack

ROOT = Path(__file__).parent.parent


def test_paper_checks_is_what_the_committed_results_render_to():
    committed = json.loads(COMMITTED.read_text())
    assert (ROOT / "paper_checks.md").read_text() == markdown(load_verdicts(), committed["command"])


def test_results_survive_a_round_trip(tmp_path, small_grid):
    found = verdicts(small_grid)
    (tmp_path / "r.json").write_text(results(found, small_grid, "a command"))
    again = load_verdicts(tmp_path / "r.json")
    assert changed(again, found) == []
    assert markdown(again, "a command") == markdown(found, "a command")


def committed_cells():
    """Two cells of the committed results, picked by the results' size, so that nobody chooses them."""
    cells = json.loads(COMMITTED.read_text())["cells"]
    rng = np.random.default_rng(len(COMMITTED.read_bytes()))
    cheap = [cell for cell in cells if cell["width"] <= 256 and cell["depth"] <= 16]
    return [cheap[i] for i in rng.choice(len(cheap), 2, replace=False)]


@pytest.mark.parametrize("cell", committed_cells(), ids=lambda c: f"{c['placement']}-d{c['width']}-L{c['depth']}")
def test_committed_cells_are_sampled_again_with_a_new_seed(cell):
    """False alarm 1e-5 per number (Welch's t); a committed mean off by 40% is missed with less than 1e-3."""
    stack = Stack(**{f.name: cell[f.name] for f in fields(Stack)})
    text = TEXT if cell["text"] else None
    again = sample(stack, draws=96, seed=cell["seed"] + 1000, text=text)
    for name in ("hidden_energy", "grad_sq_W2"):
        values = again[name][:, -1].astype(float)
        difference = values.mean() - cell[name]["mean"]
        sem = np.hypot(values.std(ddof=1) / np.sqrt(96), cell[name]["sem"])
        assert abs(difference) < 4.7 * sem, name
        assert 7.8 * sem < 0.4 * cell[name]["mean"], "too few draws to tell"


def test_committed_cells_are_those_of_verify():
    committed = json.loads(COMMITTED.read_text())["cells"]
    names = [f.name for f in fields(Stack)]
    stored = {
        (*(cell[n] for n in names[:-1]), round(cell["output_scale"], 3), bool(cell["text"])) for cell in committed
    }
    fresh = {
        (*(getattr(c.stack, n) for n in names[:-1]), round(c.stack.output_scale, 3), c.text is not None)
        for c in verify_cells()
    }
    assert stored == fresh


def test_changed_verdicts_are_seen():
    before = load_verdicts()
    assert changed(before, before) == []
    now = [replace(v, verdict="holds") if v.claim == "F1" else v for v in before]
    ((new, old),) = changed(now, before)
    assert (new.verdict, old.verdict) == ("holds", "fails")
    fewer_draws = [replace(v, verdict="undecided") for v in before]
    assert changed(fewer_draws, before) == []
    unknown = [replace(v, part="another part", verdict="holds") for v in before]
    assert changed(unknown, before) == []
    assert missing(before, before) == []
    assert missing(unknown, before) == before


def test_a_broken_results_file(tmp_path):
    for content in ("{", '{"verdicts": [{}]}', "[]"):
        (tmp_path / "r.json").write_text(content)
        with pytest.raises(ValueError, match="^results must be a file that `gradbounds verify --accept` wrote"):
            load_verdicts(tmp_path / "r.json")


def test_the_page_escapes_and_shows_everything(small_grid):
    found, table = verdicts(small_grid), comparison(small_grid)
    page = html(found, table, ["figures/a.svg"], title="<title>", summary="sum & mary")
    assert "&lt;title&gt;" in page
    assert "sum &amp; mary" in page
    assert 'src="figures/a.svg"' in page
    assert all(v.words in page for v in found)


def test_counts_in_words():
    table = pd.DataFrame({"agreement": ["agrees", "agrees", "differs", "beyond", ""]})
    assert agreement_counts(table) == (
        "2 agree within 3%, 0 are consistent but need more draws to tell, 1 differ, "
        "1 are shown only (too narrow for the large-width prediction to be judged)"
    )
