"""`gradbounds predict --logged A B`: the ratio of two logs, and the usual causes of a difference."""

import json
import math

import pytest

from gradbounds.actions.first_line import first_line
from gradbounds.actions.logged_pair import Judged, compare_logs
from gradbounds.cli import main
from theory import Stack
from theory.first_step.noise_scale import noise_scale
from theory.mean_field.text_law import TextLaw

BATCH, TOKENS = 96, 40
STACK = Stack(tokens=TOKENS, vocab=50257)
LOSS, NORM, OTHER_LOSS, OTHER_NORM = 10.95, 3.3, 11.0, 3.37
"""Two healthy first steps that differ in the seed: by 0.5% in the loss and 2% in the norm."""
LAYERS = {f"layers.{k}.mlp.fc1.weight": 1.0 + 0.1 * k for k in range(4)}
FLAGS = ("predict", "--width", "64", "--depth", "2", "--tokens", "4", "--vocab", "16", "--batch", "6")


def log(folder, name, loss, norm=None, **parameters):
    file = folder / f"{name}.jsonl"
    numbers = {"step": 1, "loss": loss, "grad_norm": norm} | parameters
    file.write_text(json.dumps({name: value for name, value in numbers.items() if value is not None}) + "\n")
    return file


def of_parameters(times, layer=None):
    """Norms of four matrices, one layer's or all of them scaled, and the norm of all."""
    norms = {name: norm * (times if layer in (None, k) else 1.0) for k, (name, norm) in enumerate(LAYERS.items())}
    return math.hypot(*norms.values()), norms


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("loss", "norm", "cause"),
    [
        (LOSS, NORM * 6, "the gradient is added up over 6 accumulation steps or devices"),
        (LOSS * 12, NORM * 12, "loss and gradient are added up over 12 accumulation steps or devices"),
        (LOSS, NORM * 48**0.5, "the norm is of one device's gradient, before the mean over 48 devices"),
        (LOSS * TOKENS, NORM * TOKENS, "the loss is a sum over the 40 tokens of a sequence"),
        (LOSS, NORM * BATCH * TOKENS, "the gradient is a sum over all 3840 tokens"),
        (LOSS / math.log(2), NORM, "the loss is in bits"),
        (LOSS, OTHER_NORM**2 * 1.01, "the norm is squared"),
        (LOSS, 1.0, "the norm is logged after it was clipped at 1"),
        (LOSS, NORM * 3, "the gradient is added up over 3 accumulation steps or devices"),
        (LOSS, NORM * 1024, "the gradient is multiplied by the loss scale 1024 of half precision"),
        (LOSS / 1.3, NORM / 1.3, "loss and gradient are averaged over 1.3"),
    ],
)
def test_planted_differences_are_named(tmp_path, swapped, loss, norm, cause):
    """The planted cause, in either order of the logs, is the nearest, or as near as its mirror in the other log."""
    logs = [log(tmp_path, "a", loss, norm), log(tmp_path, "b", OTHER_LOSS, OTHER_NORM)]
    result = compare_logs(logs[::-1] if swapped else logs, BATCH, STACK)
    found = result.to_frame()
    named = found["cause"].str.startswith(f"in the {'second' if swapped else 'first'} log, {cause}")
    assert named.any() and found["distance"][named].min() == pytest.approx(found["distance"].min(), abs=0.2)
    assert len(found) <= 3 and result.alarm and "Causes that may explain these ratios (" in str(result)


@pytest.mark.parametrize("times", [2.0, 5.0])
def test_a_scaled_layer(tmp_path, times):
    """The matrix is named first, its ratio is printed, and all others count as equal."""
    norms = [of_parameters(times, 2), of_parameters(1.0)]
    logs = [log(tmp_path, name, LOSS, norm, **each) for name, (norm, each) in zip("ab", norms, strict=True)]
    result = compare_logs(logs, BATCH, STACK)
    assert (
        result.to_frame()["cause"][0]
        == "in the first log, the gradients of single matrices differ (layers.2.mlp.fc1.weight)"
    )
    said = (
        f"layers.2.mlp.fc1.weight, {1.2 * times:.4g} and 1.2, ratio {times:.4g}.",
        f"Ratio by layer: 1 (layer 1) to {times:.4g} (layer 3), 4 layers.",
    )
    assert all(line in str(result) for line in said)
    assert result.to_frame("parameters")["ratio"].tolist() == pytest.approx([1.0, 1.0, times, 1.0])
    whole = log(tmp_path, "c", LOSS, of_parameters(1.0)[0], **norms[0][1])  # a norm that hides the layer
    assert compare_logs([whole, logs[1]], BATCH, STACK).alarm


def test_logs_without_a_norm(tmp_path):
    """Parameters that both logs have replace the norm; a number that only one log has is not compared."""
    scaled, plain = (log(tmp_path, name, None, **of_parameters(k)[1]) for name, k in (("a", 8.0), ("b", 1.0)))
    result = compare_logs([scaled, plain], BATCH, STACK)
    assert result.values["norm_ratio"] == pytest.approx(8.0)
    assert result.to_frame()["cause"].str.contains("the gradient is added up over 8 ").any()
    assert "All ratios lie between 1/1.7 and 1.7 times the median." in str(result)
    alone = compare_logs([log(tmp_path, "c", LOSS), log(tmp_path, "d", OTHER_LOSS, NORM)], BATCH, STACK)
    assert (
        not alone.alarm
        and "agree in loss: 5% is the limit, because theory does not judge them.\nThe gradient norm is not compared:"
        in str(alone)
    )
    with pytest.raises(ValueError, match="logged must be two logs that both have a loss"):
        compare_logs([scaled, log(tmp_path, "e", LOSS)], BATCH, STACK)


def test_agreement_and_a_difference_without_a_usual_cause(tmp_path):
    same = log(tmp_path, "a", LOSS, NORM), log(tmp_path, "b", OTHER_LOSS, OTHER_NORM)
    result = compare_logs(same, BATCH, STACK)
    assert (result.alarm, result.values["agree"], len(result.to_frame())) == (False, True, 0)
    other = compare_logs([log(tmp_path, "c", LOSS, NORM / 1.12), same[1]], BATCH, STACK)  # sums that lose small terms
    assert other.alarm and " tested causes explains these ratios." in str(other)


def test_a_log_that_is_as_predicted_has_no_fault(tmp_path):
    """The norm is 4 times as large: of 4 devices without the mean, or of a log that divides by 4 twice."""
    logs = [log(tmp_path, "a", LOSS, 4 * NORM), log(tmp_path, "b", LOSS, NORM)]
    results = [
        compare_logs(logs, BATCH, STACK, judge=lambda _, right=right: Judged([], right)) for right in ([], ["first"])
    ]
    assert [result.to_frame()["cause"].str.contains("first log").any() for result in results] == [True, False]
    # A root is nearer, but fits many ratios; one device's norm is no root if sequences share most of the gradient.
    causes = compare_logs(
        [log(tmp_path, "c", LOSS, 2.9 * NORM), logs[1]], BATCH, STACK, judge=lambda _: Judged(shared=0.9)
    ).to_frame()["cause"]
    assert causes.str.extract("(over 3|by 3|counts 8)")[0].tolist() == ["over 3", "by 3", "counts 8"] and (
        ["; if the gradient is added up, half as many" in str(result) for result in results] == [True, False]
    )


@pytest.mark.parametrize(
    ("norm", "right", "agree", "said"),
    [
        (1.12, ["first", "second"], True, "The logs agree in loss and gradient norm: two runs of one text differ by at "
         "most 1.1% in the loss and 17.4% in the gradient norm, each in 99 of 100 pairs"),
        (1.21, ["first", "second"], False, "Each log alone is as predicted, because the range of one log also"),
        (1.12, ["second"], True, "Only the second log is as predicted: the other is outside the range of one log"),
        (2.0, ["second"], False, "Only the second log is as predicted: if both logs have the same text, the other one"),
    ],
)  # fmt: skip
def test_two_runs_of_one_text_differ_by_weights_and_batches(tmp_path, norm, right, agree, said):
    """With deviations of 0.3% and 4.4% of one run, two runs differ by 2.58 sqrt(2) times as much."""
    logs = log(tmp_path, "a", LOSS, norm * NORM), log(tmp_path, "b", LOSS, NORM)
    judged = Judged([], right, 0.003, 0.044, is_derived=True)
    result = compare_logs(logs, BATCH, STACK, judge=lambda _: judged)
    assert (result.values["agree"], result.alarm) == (agree, not agree)
    assert said in str(result) and "tested causes" not in str(result)
    assert not compare_logs(
        [log(tmp_path, "c", LOSS * 1.012, NORM), logs[1]], BATCH, STACK, judge=lambda _: judged
    ).values["agree"]


def test_the_deviation_of_two_runs_contains_no_text():
    """The spread of texts and theory's own error widen the interval of one log alone."""
    scale = noise_scale(Stack(tokens=8, vocab=64, ffn="gated"), text=TextLaw.zipf(1.0, 64))
    one, spread = (first_line(scale, 8, (), TextLaw.zipf(1.0, 64), spread) for spread in (0.0, 0.2))
    assert one.drawn == spread.drawn < one.norm_deviation < spread.norm_deviation
    assert spread.norm_deviation**2 - one.norm_deviation**2 == pytest.approx((one.shared * 0.2 * one.norm) ** 2)
    assert one.norm_deviation**2 - one.drawn**2 == pytest.approx((0.02 * one.norm) ** 2)


def test_how_the_numbers_were_computed_counts_for_both_logs(tmp_path):
    logs = log(tmp_path, "a", LOSS, NORM**2), log(tmp_path, "b", LOSS, NORM**2)
    result = compare_logs(logs, BATCH, STACK, logged_as=("square",))
    assert not result.alarm and str(result).count("Read as squares: gradient norm 3.3.") == 1


@pytest.mark.parametrize("spelled", ["--logged {} {}", "--logged {} --logged {}", "--logged={} --logged={}"])
def test_spellings_of_the_flag(tmp_path, capsys, spelled):
    logs = log(tmp_path, "a", LOSS, NORM), log(tmp_path, "b", OTHER_LOSS, 2 * NORM)
    assert main([*FLAGS, *spelled.format(*logs).split(), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["norm_ratio"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--batch 6 --logged {0} {1} {0}", "--logged must be one log or two, got 3."),
        ("--batch 6 --logged", "--logged must be followed by a log, or two."),
        ("--logged {0} {1}", "--logged requires --batch or --like or --config, got '{0} {1}' without it."),
        ("--batch 6 --logged {0} {1} --text english", "two logs cannot be combined with --text; theory judges"),
        ("--batch 6 --logged {0} none", "--logged must be a readable log, got 'none'"),
    ],
)  # fmt: skip
def test_bad_pairs_are_one_line(tmp_path, capsys, line, error):
    logs = log(tmp_path, "a", LOSS, NORM), log(tmp_path, "b", LOSS, NORM)
    assert main(["predict", *line.format(*logs).split()]) == 2
    said = capsys.readouterr().err
    assert error.format(*logs) in said and said.count("\n") == 1


def test_tokens_are_the_context_of_a_model(tmp_path, capsys):
    """A sum over a model's batch counts its whole context. Each log is judged by a quick prediction."""
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = ["predict", "--config", f"{tmp_path}/config.json", "--batch", "8"]
    assert main([*model, "--patterns", "2", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    loss, norm = first["loss"], first["gradient_norm"]
    logs = log(tmp_path, "a", 512 * loss, 512 * norm), log(tmp_path, "b", loss, norm)
    assert main([*model, "--logged", *map(str, logs)]) == 1
    printed = capsys.readouterr().out
    assert "in the first log, the loss is a sum over all 512 tokens" in printed
    assert (
        f"{logs[0]}: not as predicted: the loss is" in printed.partition("The logs differ.")[0]
        and f"{logs[1]}: as predicted\n" in printed
    )


def test_one_log_and_two_are_judged_by_one_rule(tmp_path, capsys):
    """A text that repeats tokens less explains a smaller norm; no known text explains one 30 times as large."""
    config = {"model_type": "gpt_neox", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 256, "vocab_size": 2048}))
    model = ["predict", "--config", f"{tmp_path}/config.json", "--tokens", "8", "--batch", "512"]
    assert main([*model, "--patterns", "2", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    right = log(tmp_path, "right", first["loss"], first["gradient_norm"])
    for times, verdict, status in ((0.72, "undecided", 3), (30.0, "not as predicted", 1)):
        other = log(tmp_path, "other", first["loss"], times * first["gradient_norm"])
        assert main([*model, "--patterns", "2", "--logged", f"{other}"]) == status
        assert f"Step 1: {verdict}: the gradient norm" in capsys.readouterr().out
        assert main([*model, "--logged", f"{other}", f"{right}"]) == 1
        assert f"{other}: {verdict}: the gradient norm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("loss", "added"),
    [
        (4.36, " Add --drawn-by neox for these weights.\n"),
        (4.17, ""),
        (1.0, "Theory does not judge the two logs: their losses are below half of ln V, of trained weights.\n"),
    ],
)
def test_the_code_of_the_nearest_loss_is_to_be_added(tmp_path, capsys, loss, added):
    """GPT-NeoX's own code has the loss 4.36 at these sizes, and transformers' class 4.17."""
    config = {"model_type": "gpt_neox", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 256, "vocab_size": 64}))
    logs = [str(log(tmp_path, name, loss, norm)) for name, norm in (("a", NORM), ("b", 8 * NORM))]
    main(["predict", "--config", f"{tmp_path}/config.json", "--tokens", "8", "--batch", "4", "--logged", *logs])
    printed = capsys.readouterr().out
    assert added in printed and ("--drawn-by" in printed) == ("--drawn-by" in added)
