"""`gradbounds predict --logged A B`: the ratio of two logs, and the usual causes of a difference."""

import json
import math

import pytest

from gradbounds.actions.logged_pair import compare_logs
from gradbounds.cli import main

BATCH, TOKENS = 96, 40
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
        (LOSS, NORM * 6, "sums the gradients of 6 ranks or accumulation steps instead of averaging them"),
        (LOSS * 12, NORM * 12, "sums loss and gradient of 12 ranks or accumulation steps instead of averaging them"),
        (LOSS, NORM * 48**0.5, "gives the norm of one rank's gradient, before the mean over 48 ranks, or counts"),
        (LOSS * TOKENS, NORM * TOKENS, "sums loss and gradient over the 40 tokens of a sequence"),
        (LOSS, NORM * BATCH * TOKENS, "gives the gradient of a loss that sums over the 3840 tokens of the batch"),
        (LOSS / math.log(2), NORM, "gives the loss in bits"),
        (LOSS, OTHER_NORM**2 * 1.01, "gives squared norms"),
        (LOSS, 1.0, "gives the norm after clipping at 1"),
        (LOSS, NORM * 3, "sums the gradients of 3 ranks"),
        (LOSS / 1.3, NORM / 1.3, "averages loss and gradient over 1.3"),
    ],
)
def test_ten_planted_differences_are_named(tmp_path, swapped, loss, norm, cause):
    """The planted cause is the first of at most three, in either order of the logs."""
    logs = [log(tmp_path, "a", loss, norm), log(tmp_path, "b", OTHER_LOSS, OTHER_NORM)]
    result = compare_logs(logs[::-1] if swapped else logs, BATCH, TOKENS)
    named = result.to_frame()["cause"].tolist()
    planted = f"the {'second' if swapped else 'first'} log {cause}"
    assert named[0].startswith(planted) and len(named) <= 3 and result.alarm
    assert "Causes that give these ratios within 5% (" in str(result)


@pytest.mark.parametrize("times", [2.0, 5.0])
def test_a_scaled_layer(tmp_path, times):
    """The matrix is named first, its ratio is printed, and all others count as equal."""
    norms = [of_parameters(times, 2), of_parameters(1.0)]
    logs = [log(tmp_path, name, LOSS, norm, **each) for name, (norm, each) in zip("ab", norms, strict=True)]
    result = compare_logs(logs, BATCH, TOKENS)
    named = result.to_frame()["cause"][0]
    assert named == "gradients of single matrices differ in the first log (layers.2.mlp.fc1.weight)"
    said = (
        f"layers.2.mlp.fc1.weight, {1.2 * times:.4g} and 1.2, ratio {times:.4g}.",
        f"Ratio by layer: 1 (layer 1) to {times:.4g} (layer 3), 4 layers.",
    )
    assert all(line in str(result) for line in said)
    assert result.to_frame("parameters")["ratio"].tolist() == pytest.approx([1.0, 1.0, times, 1.0])
    whole = log(tmp_path, "c", LOSS, of_parameters(1.0)[0], **norms[0][1])  # a norm that hides the layer
    assert compare_logs([whole, logs[1]], BATCH, TOKENS).alarm


def test_logs_without_a_norm(tmp_path):
    """Parameters that both logs have replace the norm; a number that only one log has is not compared."""
    scaled, plain = (log(tmp_path, name, None, **of_parameters(k)[1]) for name, k in (("a", 8.0), ("b", 1.0)))
    result = compare_logs([scaled, plain], BATCH, TOKENS)
    assert result.values["norm_ratio"] == pytest.approx(8.0)
    assert result.to_frame()["cause"].str.contains("sums the gradients of 8 ranks").any()
    assert "All ratios lie between 1/1.7 and 1.7 times the median." in str(result)
    alone = compare_logs([log(tmp_path, "c", LOSS), log(tmp_path, "d", OTHER_LOSS, NORM)], BATCH, TOKENS)
    assert not alone.alarm
    assert "agree in loss within 5%, as two seeds do. The gradient norm is not compared: one log has none." in str(
        alone
    )
    with pytest.raises(ValueError, match="logged must be two logs that both have a loss"):
        compare_logs([scaled, log(tmp_path, "e", LOSS)], BATCH, TOKENS)


def test_agreement_and_a_difference_without_a_usual_cause(tmp_path):
    same = log(tmp_path, "a", LOSS, NORM), log(tmp_path, "b", OTHER_LOSS, OTHER_NORM)
    result = compare_logs(same, BATCH, TOKENS)
    assert (result.alarm, result.values["agree"], len(result.to_frame())) == (False, True, 0)
    other = compare_logs([log(tmp_path, "c", LOSS, NORM / 1.12), same[1]], BATCH, TOKENS)  # sums that lose small terms
    assert other.alarm
    assert " tested causes gives these ratios within 5%. Compare each log with theory." in str(other)


def test_a_log_that_is_as_predicted_has_no_fault(tmp_path):
    """The norm is 4 times as large: of 16 ranks without the mean, or of a log that divides by 4 twice."""
    logs = [log(tmp_path, "a", LOSS, 4 * NORM), log(tmp_path, "b", LOSS, NORM)]
    named = [compare_logs(logs, BATCH, TOKENS, judge=lambda _, right=right: ([], right)) for right in ([], ["first"])]
    blamed = [result.to_frame()["cause"].str.contains("first log (?!.*or the second)").any() for result in named]
    assert blamed == [True, False] and "the second log divides them by 4 twice" in str(named[1])


def test_how_the_numbers_were_computed_counts_for_both_logs(tmp_path):
    logs = log(tmp_path, "a", LOSS, NORM**2), log(tmp_path, "b", LOSS, NORM**2)
    result = compare_logs(logs, BATCH, TOKENS, logged_as=("square",))
    assert not result.alarm
    assert str(result).count("Read as squares: gradient norm 3.3.") == 1


@pytest.mark.parametrize("spelled", ["--logged {} {}", "--logged {} --logged {}", "--logged={} --logged={}"])
def test_spellings_of_the_flag(tmp_path, capsys, spelled):
    logs = log(tmp_path, "a", LOSS, NORM), log(tmp_path, "b", OTHER_LOSS, 2 * NORM)
    assert main([*FLAGS, *spelled.format(*logs).split(), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["norm_ratio"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--batch 6 --logged {0} {1} {0}", "--logged must be one log or two, got 3."),
        ("--batch 6 --logged", "--logged must be followed by a log, or two."),
        ("--logged {0} {1}", "--logged requires --batch, got '{0} {1}' without it."),
        ("--batch 6 --logged {0} {1} --text english", "two logs cannot be combined with --text; theory judges"),
        ("--batch 6 --logged {0} none", "--logged must be a readable log, got 'none'"),
    ],
)  # fmt: skip
def test_bad_pairs_are_one_line(tmp_path, capsys, line, error):
    logs = log(tmp_path, "a", LOSS, NORM), log(tmp_path, "b", LOSS, NORM)
    assert main(["predict", *line.format(*logs).split()]) == 2
    said = capsys.readouterr().err
    assert error.format(*logs) in said
    assert said.count("\n") == 1


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
    assert "sums loss and gradient over the 512 tokens of the batch" in printed
    assert (
        f"{logs[0]}: not as predicted (the loss is" in printed.partition("The logs differ.")[0]
        and f"{logs[1]}: as predicted\n" in printed
    )


@pytest.mark.parametrize(("loss", "added"), [(4.36, " Add --drawn-by neox for these weights.\n"), (4.17, "")])
def test_the_code_of_the_nearest_loss_is_to_be_added(tmp_path, capsys, loss, added):
    """GPT-NeoX's own code has the loss 4.36 at these sizes, and transformers' class 4.17."""
    config = {"model_type": "gpt_neox", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 256, "vocab_size": 64}))
    logs = [str(log(tmp_path, name, loss, norm)) for name, norm in (("a", NORM), ("b", 8 * NORM))]
    main(["predict", "--config", f"{tmp_path}/config.json", "--tokens", "8", "--batch", "4", "--logged", *logs])
    printed = capsys.readouterr().out
    assert added in printed and ("--drawn-by" in printed) == bool(added)
