"""`--logged-as`, and what names of columns say: a log of sums, squares or clipped norms gives a plain log's numbers."""

import json

import pytest

from gradbounds.actions.first_line import first_line
from gradbounds.actions.log_names import bare, is_clipped, is_squared
from gradbounds.actions.logged import predict_logged
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


def check_plain(result, loss, norm, norms):
    """Every number is what the plain log has."""
    assert [result.values[f"logged_{name}"] for name in ("loss", "norm")] == pytest.approx([loss, norm], rel=1e-12)
    layers = result.to_frame("layers")
    assert layers["logged"].tolist() == pytest.approx(list(norms.values()), rel=1e-12)
    assert layers["ratio"].tolist() == pytest.approx([1.0] * len(norms), rel=1e-9) and result.values["as_it_should_be"]


@pytest.mark.parametrize(
    ("words", "power", "line"),
    [
        ("", 1, None),
        ("mean norm unclipped", 1, "Read as means over tokens, norms, before clipping."),
        ("square", 2, "Read as squares: gradient norm "),
        ("sum", 1, f"Read as sums over {TOKENS} tokens: loss "),
        ("sum square", 2, f"Read as sums over {TOKENS} tokens, squares: loss "),
        ("square sum sum", 2, f"Read as sums over {TOKENS} tokens, squares: loss "),
    ],
)
def test_sums_and_squares(tmp_path, healthy, words, power, line):
    loss, norm, norms = healthy
    number = TOKENS if "sum" in words else 1
    written = {name: (number * value) ** power for name, value in norms.items()}
    result = judged(tmp_path, record_of(number * loss, (number * norm) ** power, written), *words.split())
    check_plain(result, loss, norm, norms)
    assert (line or "") in str(result) and ("Read as" in str(result)) == (line is not None)


@pytest.mark.parametrize(("words", "number", "power"), [("", 1, 1), ("sum square", TOKENS, 2)])
def test_norms_after_clipping(tmp_path, healthy, words, number, power):
    """Below the threshold nothing was clipped, and a norm above it is from before; at it the factor is lost."""
    loss, norm, norms = healthy

    def result(threshold, whole, times=1.0):
        written = {name: (number * times * value) ** power for name, value in norms.items()}
        record = record_of(number * loss, (number * whole) ** power, written)
        return judged(tmp_path, record, *words.split(), f"clipped:{number * threshold:.17g}")

    for threshold, times, said in ((2 * norm, 1.0, "not clipped, because the norm is below "),
                                   (norm / 4, 0.25, "the total norm before clipping to ")):  # fmt: skip
        fine = result(threshold, norm, times=times)
        check_plain(fine, loss, norm, norms)
        assert said in str(fine)
    lost = result(norm / 4, norm / 4 * 0.995, times=0.25)
    assert (lost.values["logged_norm"], lost.values["as_it_should_be"]) == (None, True) and (
        lost.to_frame("layers")["ratio"].tolist() == pytest.approx([0.25] * len(norms))
    )
    assert "the gradient norm is not judged, and matrices are only compared with one another." in str(lost)
    for whole, error in ((norm / 4, "^logged_as must give the clipping threshold of the log, got clipped:"),
                         (norm, " times the threshold")):  # fmt: skip
        with pytest.raises(ValueError, match=error):
            result(norm / 4, whole)


def test_what_is_no_square_and_what_stands_there_twice(tmp_path, healthy):
    """Numbers that are no square are named as they are; a matrix of two names is clipped once."""
    loss, norm, norms = healthy
    squares = {name: value**2 for name, value in norms.items()}
    bad = {"layers.0.mlp.fc1.weight": -1.0, "layers.0.mlp.fc2.weight": 0.0, "layers.1.mlp.fc2.weight": float("nan")}
    result = judged(tmp_path, record_of(loss, norm**2, squares | bad), "square")
    assert len(result.to_frame("layers")) == len(norms) - len(bad) and all(
        f"{name}, which is {value:g}" in str(result) for name, value in bad.items()
    )
    length = sum(value**2 for value in norms.values()) ** 0.5
    twice = norms | {f"model.{name}": value for name, value in norms.items()}
    result = judged(tmp_path, {"loss": loss} | twice, f"clipped:{length:.17g}")
    assert len(result.to_frame("layers")) == 2 * len(norms)


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


@pytest.mark.parametrize("total", ["grad_norm_sq", "grad_norm^2", "train/squared_grad_norm", "gnorm_squared"])
@pytest.mark.parametrize("matrix", ["{}/norm_sq", "{}_grad_norm_squared", "sq_norm/{}", ""])
def test_names_that_say_squares(tmp_path, healthy, total, matrix):
    """Behind a matrix or before it, or of the object that it is in; but a user knows better."""
    loss, norm, norms = healthy

    def result(power, *words):
        of = {name: value**power for name, value in norms.items()}
        written = {matrix.format(name): value for name, value in of.items()} if matrix else {"l2_squared": of}
        return judged(tmp_path, {"loss": loss, total: norm**power} | written, *words)

    check_plain(result(2), loss, norm, norms)
    assert f"Read as squares by name ({total}, " in str(result(2))
    check_plain(result(1, "norm"), loss, norm, norms)


@pytest.mark.parametrize(
    "total", ["clipped_grad_norm", "grad_norm_after_clip", "grad_norm/post-clip", "norm (clipped)"]
)
def test_names_that_say_clipped(tmp_path, healthy, total):
    loss, norm, norms = healthy
    clipped = {f"{name}_grad_norm_clipped": value / 4 for name, value in norms.items()}
    result = judged(tmp_path, {"loss": loss, total: norm / 4} | clipped)
    assert result.values["logged_norm"] is None and f"Read as after clipping by name ({total}, " in str(result)
    assert "the gradient norm is not judged, and matrices are only compared with one another." in str(result)
    whole = judged(tmp_path, {"loss": loss, "grad_norm": norm} | clipped, f"clipped:{norm / 4:.17g}")
    check_plain(whole, loss, norm, norms)
    with pytest.raises(ValueError, match="^logged_as must give the clipping threshold of the log, got clipped:"):
        judged(tmp_path, {"loss": loss, total: norm} | clipped, f"clipped:{norm / 4:.17g}")
    assert judged(tmp_path, {"loss": loss, total: norm / 4}, "unclipped").values["logged_norm"] == norm / 4
    before = judged(tmp_path, {"loss": loss, "unclipped_grad_norm": norm, total: norm / 4})
    assert before.values["logged_norm"] == norm and "Read as before clipping by name (unclipped_grad_norm)." in str(
        before
    )


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
    assert result.to_frame("layers").empty and (
        "Parameters not compared: layer*_attn_c_attn_weight_gnorm (2), layer*_ln_1_bias_gnorm (2)." in str(result)
    )


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
    assert error in complaint and complaint.count("\n") == 1


def test_words_stand_with_a_log(tmp_path, capsys):
    for line in (TINY, TINY[:-2], ("probe", "encoder-post")):
        assert main([*line, "--logged-as", "sum"]) == 2
        assert "--logged-as requires --logged, got 'sum' without" in capsys.readouterr().err
    (tmp_path / "log").write_text(f"0 {16 * TOKENS:d} 0.5\n")
    assert main([*TINY, "--logged", str(tmp_path / "log"), "--logged-as", "sum", "square", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["logged_loss"] == 16.0
