"""`python -m studies fig3`: verdicts on synthetic models, and the command on a small text of our own."""

import numpy as np
import pandas as pd
import pytest

from studies.__main__ import run as main
from studies.fig3.claims import section_3_4
from studies.fig3.table import INGREDIENTS, growth, labelled, shares
from studies.translation_model import Translation
from tests.helpers.parallel_text import write

LAYERS = np.arange(1, 7)


def models(placement, *, growths, last, excess=0.05, spread=0.02, depths=(6, 8, 10), exponent=0.0, theory=0.35):
    """Rows as if models had been measured: growth of W2 a layer by what is missing, and the last layer's norm."""
    draw, frames = np.random.default_rng(0), []
    for missing, slope in growths.items():
        for depth in depths if missing == "nothing" else (6,):
            fields = {} if missing == "nothing" else INGREDIENTS[missing]
            model = Translation(placement=placement, depth=depth, **fields)
            layers = np.arange(1, depth + 1)
            for seed in range(5):
                rows = []
                for part in ("encoder", "decoder"):
                    norm = last * (depth / 6) ** exponent * np.exp(slope * (layers - depth))
                    norm = norm * np.exp(spread * draw.standard_normal(depth))
                    rows += [(part, layer, "W2", "mean norm", value) for layer, value in zip(layers, norm, strict=True)]
                rows.append(("decoder", depth, "", "excess 0.1", excess * np.exp(spread * draw.standard_normal())))
                frames.append(labelled(frame_of(rows), model, seed, Translation()))
        rows = [(part, layer, "W2", "predicted", last * np.exp(theory * (layer - 6))) for layer in LAYERS
                for part in ("encoder", "decoder")]  # fmt: skip
        frames.append(labelled(frame_of(rows), Translation(placement=placement, **fields), 0, Translation()))
    return pd.concat(frames, ignore_index=True)


def frame_of(rows):
    return pd.DataFrame(rows, columns=["part", "layer", "matrix", "statistic", "value"])


def words(frame):
    return {v.part: v.verdict for v in section_3_4(frame, "a text")}


def test_what_the_paper_saw_holds():
    found = words(models("post", growths={"nothing": 0.35, "cross-attention": 0.02}, last=1.6))
    assert found == {
        "Post-LN, P[‖x‖² > 1.1 E‖x‖²] of the last hidden state": "holds",
        "Post-LN, last ‖dL/dW2‖": "holds",
        "Post-LN, exponent of the last ‖dL/dW2‖ in L": "holds",
        "Post-LN, ln of the growth of ‖dL/dW2‖ a layer, decoder": "holds",
        "Post-LN, ln of the growth of ‖dL/dW2‖ a layer, encoder": "holds",
        "Post-LN, ln of the growth of ‖dL/dW2‖ a layer, decoder: without cross-attention": "fails",
    }
    found = words(models("pre", growths={"nothing": -0.05}, last=0.5, exponent=-0.5, theory=-0.05))
    assert set(found.values()) == {"holds"}


def test_expected_gradients_and_all_states_are_judged_where_they_were_measured():
    """C3 is of E ∇, whatever a mini-batch's norm does, and C1 of every layer, of which one may fail."""
    frame = models("post", growths={"nothing": 0.35}, last=1.6)
    mean = frame[frame["statistic"] == "mean norm"]
    flat = mean.assign(statistic="expected norm", value=mean["value"] * np.exp(-0.35 * mean["layer"]))
    first = frame[frame["statistic"] == "excess 0.1"].assign(part="encoder", layer=1, value=lambda t: t["value"] + 0.1)
    found = words(pd.concat([frame, flat, flat.assign(matrix="W1"), first]))
    for matrix in ("W1", "W2"):
        assert found[f"Post-LN, ln of the growth of ‖E dL/d{matrix}‖ a layer, decoder"] == "fails"
    assert found["Post-LN, P[‖x‖² > 1.1 E‖x‖²] of the last hidden state"] == "holds"
    assert found["Post-LN, P[‖x‖² > 1.1 E‖x‖²] of all hidden states"] == "fails"


def test_what_it_did_not_see_fails():
    found = words(models("post", growths={"nothing": 0.01}, last=2.5, excess=0.3, exponent=1.0))
    assert set(found.values()) == {"fails"}
    found = words(models("pre", growths={"nothing": 0.3}, last=0.5, exponent=0.4, excess=0.05))
    assert [word for part, word in found.items() if "growth" in part or "exponent" in part] == ["fails"] * 3


def test_what_cannot_be_told_is_undecided():
    found = words(models("post", growths={"nothing": 0.12}, last=1.6, spread=0.6, excess=0.12))
    assert "undecided" in found.values()
    assert "fails" not in found.values()


def test_theory_that_is_off_is_seen():
    """False alarm 1e-4 of a verdict; off by 15% and more than seeds scatter is `differs`."""
    right = section_3_4(models("post", growths={"nothing": 0.35}, last=1.6), "a text")
    assert "differs" not in {v.agreement for v in right}
    wrong = section_3_4(models("post", growths={"nothing": 0.35}, last=1.6, theory=0.1), "a text")
    assert {v.part for v in wrong if v.agreement == "differs"} == {
        f"Post-LN, ln of the growth of ‖dL/dW2‖ a layer, {part}" for part in ("decoder", "encoder")
    }


def test_shares_of_growth():
    table = growth(
        models("post", growths={"nothing": 0.4, "cross-attention": 0.1, "dropout": 0.4}, last=1.6, spread=1e-9)
    )
    found = shares(table).set_index("without")["share"]
    assert found["cross-attention"] == pytest.approx(0.75)
    assert found["dropout"] == pytest.approx(0.0, abs=1e-6)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write(tmp_path_factory.mktemp("text"))


def command(files, out, *more):
    sizes = "--width 32 --ffn-width 32 --heads 2 --depth 2 3 4 --vocab 40 --batch-tokens 150".split()
    return ["fig3", "--source", str(files[0]), "--target", str(files[1]), "--out", str(out), *sizes, *more]


def test_the_command(png_alone, files, tmp_path, capsys, request):
    """Models, theory, table, figure; a second time nothing is measured, and another seed is one more model."""
    more = ["--seeds", "2", "--initialization", "xavier", "--ingredients", "--pairs", "4"]
    code = main(command(files, tmp_path / "run", *more))
    said = capsys.readouterr().out
    assert code in (0, 1)  # at d = 32 theory may be further off than it is judged to be
    assert "Post-LN  xavier  decoder W2 theory" in said
    assert "decoder without cross-attention" in said
    assert "C2   Pre-LN, exponent of the last" in said
    frame = pd.read_csv(tmp_path / "run" / "fig3.csv", keep_default_na=False)
    assert set(frame["matrix"]) == {"W1", "W2", "WQ", "WK", "WV", "WO", "XQ", "XK", "XV", "XO", ""}
    assert set(frame["depth"]) == {2, 3, 4}
    assert (tmp_path / "run" / "fig3.png").stat().st_size > 50_000
    made = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "run" / "models").iterdir()}
    # 2 placements x 2 seeds x (3 depths + 7 ingredients), and theory of the 8 of the least depth.
    assert len(made) == 2 * 2 * 10 + 2 * 8
    request.getfixturevalue("blank_pictures")
    main(command(files, tmp_path / "run", *more))
    again = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "run" / "models").iterdir()}
    assert again == made
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(("flags", "message"), [
    (["--vocab", "4000"], "vocab must be from 5 to "),
    (["--seeds", "0"], "seeds must be an integer of at least 1, got 0"),
    (["--heads", "5"], "width must be even and a multiple of heads = 5, got 32"),
    (["--device", "cuda:99"], "device must be "),
    (["--target", "nothing.txt"], "target must be a readable file, got 'nothing.txt'"),
    (["--depth", "0"], "depth must be an integer of at least 1"),
    (["--depth", "1"], "depth at least 2 for a growth over layers, got 200 pairs and depth 1"),
    (["--pairs", "3"], "pairs must be at least 4, and depth at least 2 for a growth over layers, got 3 pairs"),
])  # fmt: skip
def test_bad_input_is_one_line(files, tmp_path, capsys, flags, message):
    assert main(command(files, tmp_path / "run", *flags)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "run").exists()
