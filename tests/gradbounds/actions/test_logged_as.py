"""`--logged-as`, and what names of columns say: a log of sums, squares or clipped norms gives a plain log's numbers."""

import json

import pandas as pd
import pytest

from gradbounds.actions.first_line import first_line
from gradbounds.actions.log_line import LogLine
from gradbounds.actions.log_names import bare, is_clipped, is_squared
from gradbounds.actions.logged import predict_logged
from gradbounds.actions.logged_as import LoggedAs, reading
from gradbounds.cli import main
from gradbounds.described_network import Description
from tests.helpers.predicted_once import predicted_once  # noqa: F401  (a fixture)
from theory import Stack
from theory.first_step.noise_scale import noise_scale

pytestmark = pytest.mark.usefixtures("predicted_once")
FIELDS = {"placement": "pre", "width": 64, "depth": 2, "tokens": 4, "vocab": 16, "mask": "causal"}
BATCH = 6
TOKENS = BATCH * FIELDS["tokens"]
ROLES = {"self_attn.v_proj": "WV", "mlp.fc1": "W1", "mlp.fc2": "W2"}
MATRIX = "h.0.fc.weight"
_LOST = "Clipping may have changed the norms by a factor that the log does not state: {}."
MATRICES = _LOST.format("matrices are only compared with one another")
BOTH = _LOST.format("the gradient norm is not judged, and matrices are only compared with one another")
TINY = ("predict", "--width", "64", "--depth", "2", "--tokens", "4", "--vocab", "16", "--batch", "6")


@pytest.fixture(scope="module")
def scale():
    return noise_scale(Stack(**FIELDS))


@pytest.fixture(scope="module")
def healthy(scale):
    """Loss, norm, and norms of matrices by name, as theory has them."""
    line, squares = first_line(scale, BATCH, (), None), scale.grad_sq(BATCH)
    norms = {
        f"layers.{layer}.{name}.weight": float(squares[role][layer]) ** 0.5
        for name, role in ROLES.items()
        for layer in range(2)
    }
    return line.loss, line.norm, norms


def judged(folder, record, *words):
    file = folder / "log.jsonl"
    file.write_text(json.dumps({"step": 0} | record) + "\n")
    return predict_logged(FIELDS, BATCH, Description(), file, logged_as=words, patterns=None, max_time="1m")


def record_of(loss, norm, norms):
    return {"loss": loss, "grad_norm": norm} | norms


def line_of(loss, norm, matrix, name="", of_matrix=MATRIX):
    return LogLine(loss, norm, 0, {of_matrix: matrix}, name)


@pytest.mark.parametrize(
    ("words", "logged", "read", "settled", "text"),
    [
        ("", (3.0, 2.0, 0.5), (3.0, 2.0, 0.5), "", []),
        ("norm", (3.0, 2.0, 0.5, "grad_norm_sq", f"{MATRIX}/norm_sq"), (3.0, 2.0, 0.5), "square", ["Read as norms."]),
        ("square", (3.0, 4.0, -0.25), (3.0, 2.0, -0.5), "square", ["Read as squares: gradient norm 2."]),
        ("", (3.0, 4.0, 0.25, "grad_norm_sq", f"{MATRIX}/norm_sq"), (3.0, 2.0, 0.5), "square",
         [f"Read as squares by name (grad_norm_sq, {MATRIX}/norm_sq): gradient norm 2."]),
        ("sum square", (72.0, 48.0**2, 12.0**2), (3.0, 2.0, 0.5), "sum square",
         ["Read as sums over 24 tokens, squares: loss 3, gradient norm 2."]),
        ("sum", (None, None, 12.0), (None, None, 0.5), "sum", ["Read as sums over 24 tokens."]),
        # A norm below the threshold was not clipped, and one above it was logged before clipping.
        ("clipped:2.1", (3.0, 2.0, 0.5), (3.0, 2.0, 0.5), "clipped",
         ["Read as not clipped, because the norm is below 2.1."]),
        ("clipped:0.5", (3.0, 2.0, 0.125), (3.0, 2.0, 0.5), "clipped",
         ["Read as the total norm before clipping to 0.5, and all other norms after it."]),
        ("sum square clipped:12", (72.0, 48.0**2, 3.0**2), (3.0, 2.0, 0.5), "sum square clipped",
         ["Read as sums over 24 tokens, squares, the total norm before clipping to 12, and all other norms after it: "
          "loss 3, gradient norm 2."]),
        ("clipped:0.5", (3.0, 2.0, 0.125, "grad_norm", f"clipped/{MATRIX}"), (3.0, 2.0, 0.5), "clipped",
         ["Read as the total norm before clipping to 0.5, and all other norms after it."]),
        ("clipped:1", (3.0, 1.5, 0.25), (3.0, 1.5, 0.375), "clipped",
         ["Read as the total norm before clipping to 1, and all other norms after it."]),
        ("mean clipped:0.5", (3.0, 0.4, 0.125, "clipped_grad_norm"), (3.0, 0.4, 0.125), "sum clipped",
         ["Read as means over tokens, not clipped, because the norm is below 0.5."]),
        # At the threshold, the factor is lost.
        ("clipped:0.5", (3.0, 0.497, 0.125, "clipped_grad_norm"), (3.0, None, 0.125), "clipped",
         ["Read as after clipping to 0.5.", BOTH]),
        *[("clipped:0.5", (3.0, 0.5 * times, 0.125), (3.0, None, 0.125), "clipped",
           ["Read as after clipping to 0.5.", BOTH])
          for times in (0.991, 1.009)],
        ("clipped:0.5", (3.0, None, 0.125), (3.0, None, 0.125), "clipped",
         ["Read as after clipping to 0.5.", MATRICES]),
        ("", (3.0, 0.5, 0.125, "clipped_grad_norm", f"clipped/{MATRIX}"), (3.0, None, 0.125), "clipped",
         [f"Read as after clipping by name (clipped_grad_norm, clipped/{MATRIX}).", BOTH]),
        ("unclipped", (3.0, 0.5, 0.125, "clipped_grad_norm", f"clipped/{MATRIX}"), (3.0, 0.5, 0.125), "clipped",
         ["Read as before clipping."]),
        ("", (3.0, 2.0, 0.5, "raw_grad_norm"), (3.0, 2.0, 0.5), "clipped",
         ["Read as before clipping by name (raw_grad_norm)."]),
    ],
)  # fmt: skip
def test_readings(words, logged, read, settled, text):
    """A log of sums, squares or clipped norms has a plain log's numbers, or it is said which comparisons are lost."""
    found = reading(line_of(*logged), LoggedAs.of(words.split()), TOKENS)
    assert (found.line, found.lines, found.settled) == (line_of(*read, *logged[3:]), text, set(settled.split()))
    assert found.is_to_scale == (not set(text) & {BOTH, MATRICES})


def test_thresholds_that_a_log_contradicts():
    """A matrix that a log has by two names counts once."""
    with pytest.raises(ValueError, match="got clipped:0.5; but clipped_grad_norm is 1.02 times the threshold"):
        reading(line_of(3.0, 0.51, 0.125, "clipped_grad_norm"), LoggedAs(threshold=0.5))
    found = reading(line_of(72.0, None, 12.0), LoggedAs(is_sum=True, threshold=12.0), TOKENS)
    table = pd.DataFrame({"layer": [1, 1, 1, 2], "role": ["W1", "W1", "W2", "W2"], "logged": [0.3, 0.3, 0.24, 0.32]})
    found.check(table)
    with pytest.raises(ValueError, match="got clipped:12; but the norms of the matrices together are 1.03 times the"):
        found.check(table.assign(logged=1.03 * table["logged"]))
    most = [reading(line_of(3.0, norm, 0.125), LoggedAs(threshold=0.5)).most for norm in (2.0, 0.5, 0.4)]
    assert most == [2.0, 0.5, float("inf")]


def test_without_the_whole_norm_clipping_has_an_unknown_factor(tmp_path, healthy):
    loss, _, norms = healthy
    clipped = {name: value / 4 for name, value in norms.items()}
    result = judged(tmp_path, {"loss": loss} | clipped, "clipped:1")
    assert "by a factor that the log does not state: matrices are only compared with one another." in str(result)
    planted = clipped | {"layers.1.mlp.fc2.weight": norms["layers.1.mlp.fc2.weight"]}
    result = judged(tmp_path, {"loss": loss} | planted, "clipped:1")
    assert result.alarm and (
        "Step 1 is as predicted, except dL/dW2 of layer 2: its ratio logged / predicted is 4 times" in str(result)
    )


@pytest.mark.parametrize("word", ["mean", "sum", "norm", "square", "unclipped", "clipped:1000"])
def test_what_was_said_is_no_cause(tmp_path, healthy, word):
    """But for a loss that is no sum where its gradient is, or the other way round."""
    loss, norm, norms = healthy
    of = {"mean": " sum over ", "sum": " sum over ", "norm": "squared", "square": "squared"}.get(word, "clipped")
    off = record_of(3 * loss, 0.5, norms)
    assert judged(tmp_path, off).to_frame()["cause"].str.contains(of).any()
    causes = judged(tmp_path, off, word).to_frame()["cause"]
    assert not causes.str.contains(of).any()
    assert causes.str.contains("but the gradient is a sum").any() == (word == "sum")
    if word == "sum":
        for record, cause in (
            ((loss, TOKENS * norm), "the loss is a mean, but the gradient is a sum"),
            ((TOKENS * loss, norm), "the loss is a sum, but the gradient is a mean"),
        ):
            causes = judged(tmp_path, record_of(*record, {}), "sum").to_frame()
            assert causes["cause"][causes["explains"]].tolist()[0] == cause


def test_a_matrix_of_an_unknown_factor_is_no_cause(tmp_path, healthy):
    loss, norm, norms = healthy
    clipped = {f"clipped/{name}": value / 4 for name, value in norms.items()}
    assert not judged(tmp_path, record_of(loss, 9 * norm, clipped)).to_frame()["cause"].str.contains("in layer").any()
    assert judged(tmp_path, record_of(loss, 9 * norm, norms)).to_frame()["cause"].str.contains("in layer").any()


@pytest.mark.parametrize(
    ("name", "squared", "clipped", "plain"),
    [
        ("grad_norm", False, None, "grad_norm"),
        ("grad_norm_sqrt", False, None, "grad_norm_sqrt"),
        ("grad_norm_2", False, None, "grad_norm_2"),
        ("grad_2.0_norm", False, None, "grad_2.0_norm"),
        ("squared_relu/layers.0.fc1.weight", False, None, "squared_relu/layers.0.fc1.weight"),
        ("clip_norm", False, None, "clip_norm"),
        ("pre_clip_grad_norm**2", True, False, "grad_norm"),
        *[
            (f"grad_norm_{word}", False, False, "grad_norm")
            for word in ("unclipped", "raw", "pre-clip", "preclipped", "before_clipping")
        ],
        *[
            (f"{word}_grad_norm", False, True, "grad_norm")
            for word in ("post_clip", "after_clipped", "after clipping", "clipped")
        ],
        *[
            (f"{word}_grad_norm", False, None, f"{word}_grad_norm")
            for word in ("rawest", "unclippeds", "preclipp", "declipped")
        ],
        *[(f"grad_l2{word}", True, None, "grad_l2") for word in ("_sq", "_squared", "^2", "**2")],
        *[(f"{word}gnorm", True, None, "gnorm") for word in ("sq_", "squared_")],
        ("squared_gradient_l2", True, None, "gradient_l2"),
        ("sq grad_norm", True, None, "grad_norm"),
        ("lsq_norm", False, None, "lsq_norm"),
        ("grad_norm/clipped", False, True, "grad_norm/"),
        ("clipped/layers.0.fc1.weight", False, True, "/layers.0.fc1.weight"),
    ],
)
def test_what_a_name_says(name, squared, clipped, plain):
    assert (is_squared(name), is_clipped(name), bare(name)) == (squared, clipped, plain)


def test_names_that_nothing_matches_are_listed(tmp_path, healthy):
    loss, norm, _ = healthy
    names = [f"layer{layer}_{name}_gnorm" for layer in range(2) for name in ("attn_c_attn_weight", "ln_1_bias")]
    text = ",".join(["step", "train_loss", *names]) + "\n" + ",".join(map(str, [0, loss, 1, 2, 3, 4])) + "\n"
    (tmp_path / "log.csv").write_text(text)
    result = predict_logged(FIELDS, BATCH, Description(), tmp_path / "log.csv", patterns=None, max_time="1m")
    assert "Parameters not compared: layer*_attn_c_attn_weight_gnorm (2), layer*_ln_1_bias_gnorm (2)." in str(result)
    assert result.to_frame("layers").empty


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("mean sum", "--logged-as 'mean' cannot be combined with 'sum'."),
        ("square norm", "--logged-as 'square' cannot be combined with 'norm'."),
        ("clipped:1 clipped:2", "--logged-as 'clipped:1' cannot be combined with 'clipped:2'."),
        ("unclipped clipped:2", "--logged-as 'unclipped' cannot be combined with 'clipped:2'."),
        (
            "sums",
            "--logged-as must be some of mean, sum, norm, square, unclipped, clipped:C, with a positive number C, got ",
        ),
        ("clipped", "got 'clipped'."),
        ("clipped:", "got 'clipped:'."),
        ("clipped:0", "got 'clipped:0'."),
        ("clipped:nan", "got 'clipped:nan'."),
        ("clipped:inf", "got 'clipped:inf'."),
    ],
)
def test_bad_words_are_one_line(tmp_path, capsys, words, error):
    (tmp_path / "log").write_text("0 3.0 0.5\n")
    assert main([*TINY, "--logged", str(tmp_path / "log"), "--logged-as", *words.split()]) == 2
    complaint = capsys.readouterr().err
    assert error in complaint
    assert complaint.count("\n") == 1


def test_a_mean_is_no_sum():
    assert reading(LogLine(4.0), LoggedAs(is_sum=True), 399).line.loss == 4.0 / 399
    with pytest.raises(ValueError, match="sum over 401 tokens of at least 0.01 each, got a loss of 4. Omit it for a"):
        reading(LogLine(4.0), LoggedAs(is_sum=True), 401)


def test_words_stand_with_a_log(tmp_path, capsys):
    for line in (TINY, TINY[:-2], ("probe", "encoder-post")):
        assert main([*line, "--logged-as", "sum"]) == 2
        assert "--logged-as requires --logged, got 'sum' without" in capsys.readouterr().err
    (tmp_path / "log").write_text(f"0 {16 * TOKENS:d} 0.5\n")
    assert main([*TINY, "--logged", str(tmp_path / "log"), "--logged-as", "sum", "square", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["logged_loss"] == 16.0
