"""`gradbounds predict`: its numbers are theory's and the samples', and it says what theory lacks."""

import dataclasses
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from checks.stacks.gradients_by_layer import layer_table
from gradbounds import budget, progress
from gradbounds.actions import predict as asked
from gradbounds.cli import main
from gradbounds.network_text import drawn_lines, with_cosines
from gradbounds.units import takes
from simulate import sample
from tests.helpers.printed import output
from theory import Stack, predict
from theory.configurations import stack_from_config
from theory.mean_field.cost import prediction_cost

SMALL = ("--width", "64", "--depth", "2", "--tokens", "4", "--vocab", "16")
STACK = Stack(width=64, depth=2, tokens=4, vocab=16)


def printed(capsys, *arguments):
    tables = () if "--dry-run" in arguments else ("--layers",)
    return output(capsys, *SMALL, *tables, *arguments)


def row_of(said, layer):
    """What stands in a layer's line of the first table."""
    lines = said[said.index("\n  layer") + 1 :].splitlines()[1:]
    return next(line.split() for line in lines if line.split()[0] == str(layer))


@pytest.mark.quick
def test_theory_is_printed(capsys):
    said = printed(capsys)
    for layer, norm in enumerate(np.sqrt(predict(STACK)["grad_sq_W2"]), start=1):
        assert row_of(said, layer)[-1] == f"{norm:.4g}"


def test_samples_stand_beside_theory(png_alone, capsys, tmp_path):
    found = json.loads(printed(capsys, "--draws", "8", "--seed", "3", "--json", "--out", str(tmp_path / "out")))
    table = pd.DataFrame(found["prediction"])
    row = table[(table["quantity"] == "grad_W1") & (table["layer"] == 2)].iloc[0]
    values = sample(STACK, draws=8, seed=3)["grad_sq_W1"][:, 1].astype(float)
    assert row["mean"] == pytest.approx(np.sqrt(values.mean()))
    assert row["sem"] == pytest.approx(values.std(ddof=1) / np.sqrt(8) / (2 * row["mean"]))
    assert row["predicted"] == pytest.approx(np.sqrt(predict(STACK)["grad_sq_W1"][1]))
    assert (found["schema"], found["stack"]["width"], found["no_rule"]) == (2, 64, None)
    written = pd.read_csv(tmp_path / "out" / "prediction.csv")
    assert written["quantity"].tolist() == table["quantity"].tolist()
    assert (tmp_path / "out" / "gradient_over_layers.png").stat().st_size > 0


def test_the_cosine_of_samples_is_no_multiple_of_theory_s(capsys):
    samples = sample(replace(STACK, placement="pre"), draws=128, seed=3)
    said = printed(capsys, "--placement", "pre", "--draws", "128", "--seed", "3")
    of_samples = said[said.index("(cosine: of the samples)") :]
    cosine = (samples["token_correlation"].mean(0) / samples["hidden_energy"].mean(0))[0]
    error = float(row_of(of_samples, 1)[6])
    assert float(row_of(of_samples, 1)[4]) == pytest.approx(cosine, abs=error / 10) and 0.0 < error < 0.1


def test_a_field_given_again_is_another_network(capsys):
    several = json.loads(printed(capsys, "--json", "--compare", "placement=pre", "depth=3", "placement=peri"))[
        "compared"
    ]
    assert [(one["stack"]["placement"], one["stack"]["depth"]) for one in several] == [("pre", 3), ("peri", 2)]
    for one in several:
        norms = {row["layer"]: row["predicted"] for row in one["prediction"] if row["quantity"] == "grad_W2"}
        expected = predict(replace(STACK, placement=one["stack"]["placement"], depth=one["stack"]["depth"]))
        assert list(norms.values()) == pytest.approx(np.sqrt(expected["grad_sq_W2"]))
    said = printed(capsys, "--compare", "placement=pre", "placement=peri")
    loss = f"  loss .*, changed {float(expected['loss']):.4g}; gradient norm of all .*, changed"
    assert re.search(f"(?s)\\) with placement=pre.*\\) with placement=peri.*{loss}", said)


def test_what_takes_theory_too_long_is_sampled(monkeypatch, capsys):
    """Of tied embeddings with a loss on one position nothing is cheaper: the network is sampled, if that is quick."""
    dear = prediction_cost(replace(STACK, embeddings="tied", loss_on="last"), patterns=2)
    monkeypatch.setattr(budget, "free_memory", lambda: 1e12)
    limit = ("--memory", f"{dear.bytes / 2e6:.3f}MB")
    monkeypatch.setattr("simulate.runs.cost.block_bytes", lambda cell: 1.0)
    said = printed(capsys, "--embeddings", "tied", "--loss-on", "last", *limit)
    assert re.search(
        r"Theory: theory would take about .* for 4 tokens with 2 attention samples, more than the .* of --memory", said
    )
    assert "Samples, root mean squares: 16 networks" in said
    assert "Samples / theory" in printed(capsys, "--embeddings", "tied", "--draws", "2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--like", "gpt2", "--tokens", "1024", "--loss-on", "last"),
            "theory would take about .*; --tokens [1-9][0-9]* is within the limits",
        ),
        (
            ("--like", "llama-3-8b", "--tokens", "1000000", "--loss-on", "last"),
            "theory would take about .* years and .*iB for 1000000 tokens",
        ),
        (("--like", "llama-3-8b", "--tokens", "4096", "--max-time", "0.1s"), "about .* s and .*4096 tokens with 2 att"),
        (("--mask", "causal", "--tokens", "100000", "--loss-on", "last"), "theory would take about"),
        (("--mask", "causal", "--memory", "1kB"), "theory would take about"),
        (("--memory", "1"), "--memory must be a size above 0 with its unit"),
        (("--memory", "0MB"), "--memory must be a size above 0 with its unit"),
        (("--max-time", "0s"), "--max-time must be a positive duration"),
        (("--max-time", "soon"), "--max-time must be a positive duration"),
        (("--compare", "mask=causal", "tokens=100000", "loss_on=last"), "theory would take about"),
    ],
)
def test_what_takes_too_much_is_refused_before_it_starts(monkeypatch, capsys, arguments, message):
    """In one line, within a second or two, with nothing predicted and nothing sampled."""
    for name in ("_sampled", "predicted"):
        monkeypatch.setattr(asked, name, lambda *_, **__: pytest.fail("nothing is to be computed"))
    assert main(["predict", *arguments]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1) and re.search(message, said.err)


def test_a_megabyte_is_enough_for_few_patterns(capsys):
    """Or it is an error: what is printed holds no more than it may, by the estimate."""
    arguments = ("--query-key-scale", "1", "--mask", "causal", "--patterns", "4096", "--memory", "1MB")
    said = printed(capsys, *arguments)
    count = int(
        re.search(r"for time and memory \((\d+) attention samples instead of 4096\)", said.replace("\n  ", " "))[1]
    )
    stack = replace(STACK, query_key_scale=1.0, mask="causal")
    assert prediction_cost(stack, patterns=count).bytes <= 1e6 < prediction_cost(stack, patterns=2 * count).bytes
    found = json.loads(printed(capsys, *arguments, "--json"))
    assert found["cheaper"] == f"{count} attention samples instead of 4096"


def test_a_million_tokens_are_predicted(capsys):
    """Where no token differs from another two numbers are a kernel; else a few stand for groups of their neighbours."""
    for more in ((), ("--mask", "causal"), ("--query-key-scale", "1", "--mask", "causal", "--patterns", "4")):
        said = printed(capsys, "--tokens", "1000000", *more)
        assert "one sequence of 1000000 tokens" in said
        folded = said.replace("\n  ", " ")
        assert ("a few tokens represent groups of their neighbours (docs/attention.md)" in folded) == bool(more)


def test_one_token_is_predicted(capsys):
    said = printed(capsys, "--tokens", "1", "--query-key-scale", "1")
    assert "one sequence of 1 token\n" in said and "cosine" not in said


def test_layers_double_unless_all_are_asked_for(capsys):
    deep = ("--depth", "12")
    few, every = printed(capsys, *deep), printed(capsys, *deep, "--all")
    layers = [line.split()[0] for line in few.splitlines() if re.match(r" {5,6}\d+ ", line)]
    assert layers == ["1", "2", "4", "8", "12"]
    omitted = "The table shows 5 of 12 layers; --all prints every layer."
    assert omitted in few and "of the residual stream before the layer's last norm (d: width)" in few
    assert "of the residual stream after the layer (d: width)" in printed(capsys, "--placement", "pre", "--depth", "2")
    assert [line.split()[0] for line in every.splitlines() if re.match(r" {5,6}\d+ ", line)] == [
        str(layer) for layer in range(1, 13)
    ]
    assert "--all" not in every and row_of(few, 8) == row_of(every, 8)


def test_two_tokens_have_a_cosine(capsys):
    found = predict(STACK)
    cosines = found["token_correlation"] / found["hidden_energy"]
    said = printed(capsys)
    assert [row_of(said, layer)[2] for layer in (1, 2)] == [f"{cosine:.4g}" for cosine in cosines]
    samples = sample(STACK, draws=8, seed=0)
    shown = pd.DataFrame(with_cosines(layer_table(found, samples)))
    row = shown[(shown["quantity"] == "cosine") & (shown["layer"] == 2)].iloc[0]
    product, energy = (samples[name][:, 1].astype(float) for name in ("token_correlation", "hidden_energy"))
    assert row["mean"] == pytest.approx(product.mean() / energy.mean())
    relative = [values.std(ddof=1) / 8**0.5 / values.mean() for values in (product, energy)]
    assert row["sem"] == pytest.approx(row["mean"] * np.hypot(*relative))


def test_errors_beyond_a_percent_stand_in_the_table(capsys):
    found = predict(replace(STACK, query_key_scale=2.0, mask="causal"), patterns=4)
    said = printed(capsys, "--query-key-scale", "2", "--mask", "causal", "--patterns", "4")
    rows = [line for line in said.splitlines() if re.match(r" {5,6}[12] ", line)]
    for role, layer in (("WQ", 0), ("W2", 1)):
        square, error = found[f"grad_sq_{role}"][layer], found.errors[f"grad_sq_{role}"][layer]
        shown = re.search(rf"{np.sqrt(square):.4g}(?! \+-)", rows[layer]) is not None
        assert shown == (error / (2 * square) < 0.01), (role, error / (2 * square))
    assert " +- " in rows[0]


def test_a_family_s_own_code_is_evidence(capsys, tmp_path):
    """In place of what was not measured for its fields; and not for a network that is none of the family's."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 64,
    }))  # fmt: skip
    line = ["predict", "--config", str(path), "--tokens", "4", "--patterns", "4", "--layers"]
    said = output(capsys, *line[1:])
    sentence = (
        "Compared with transformers' own LlamaForCausalLM at width 512 and 16 tokens (not at the 4 of this network)"
    )
    assert sentence in said and "coefficient" not in said
    assert "own LlamaForCausalLM" not in output(capsys, *line[1:], "--placement", "peri")


def test_what_is_not_known_of_a_network_is_said_in_words(capsys):
    rotated = ("--placement", "pre", "--query-key-scale", "1", "--rotary", "1", "--width", "512", "--vocab", "64")
    said = printed(capsys, *rotated, "--patterns", "4")
    assert "The error by finite width is unknown here: rotated, normalized and capped queries" in said
    said = printed(capsys)
    assert (
        "Finite width may change these numbers by more than 3%: not wide enough: networks of this kind "
        "need d >= " in said
    )


def test_without_a_rule_samples_stand_in(capsys):
    said = printed(capsys, "--embeddings", "tied", "--dropout", "0.1", "--draws", "2")
    assert "Theory: stack must have untied embeddings or no dropout" in said
    assert "Samples, root mean squares: 2 networks" in said
    assert "Samples / theory" not in said and "Theorem 1" not in said


def test_what_theory_samples_has_errors_and_an_encoder_lines_of_its_own(capsys):
    arguments = ("--query-key-scale", "1", "--source-tokens", "3", "--patterns", "16")
    said = printed(capsys, *arguments)
    assert re.search(r"with standard errors of at most [\d.]+% \(.+\). Smaller differences may be chance;", said)
    assert said.count("  layer") == 2
    assert "Gradient norm, first layer / last layer, at 4 tokens, encoder: dL/dWQ" in said
    assert printed(capsys, *arguments) == said, "the same command gives the same numbers"


def test_a_table_needs_theory_or_samples_alone():
    drawn = sample(STACK, draws=2, seed=0)
    alone = layer_table(None, drawn)
    assert alone["predicted"].isna().all() and (alone["draws"] == 2).all()
    assert set(alone["quantity"]) <= set(layer_table(predict(STACK), drawn)["quantity"])


NANOGPT = {"n_layer": 2, "n_head": 4, "n_embd": 64, "block_size": 128, "vocab_size": 65, "dropout": 0.2, "bias": False}


def test_a_configuration_file(capsys, tmp_path):
    """Its network is predicted, flags change it, and each of its fields is named or used."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(NANOGPT))
    line = ["predict", "--config", str(path), "--tokens", "4", "--patterns", "8", "--layers"]
    found = json.loads(output(capsys, *line[1:], "--json", "--compare", "placement=peri", "depth-scaling=none"))
    stack, notes = stack_from_config(NANOGPT, tokens=4)
    assert stack.embeddings == "tied"
    assert found["stack"] == json.loads(json.dumps(dataclasses.asdict(stack)))
    assert {note["field"] for note in found["notes"]} == {note.field for note in notes}
    beside = {"placement": "peri", "depth_scaling": "none"}
    assert {name: found["compared"][0]["stack"][name] for name in beside} == beside
    said = output(capsys, *line[1:], "--compare", "placement=post", "--activation", "tanh")
    ratios = np.sqrt(predict(replace(stack, activation="tanh"), patterns=8)["grad_sq_W1"])
    compared = said[said.index("Predictions at") :].splitlines()
    assert next(row for row in compared if "dL/dW1" in row).split()[1] == f"{ratios[0] / ratios[-1]:.3g}"
    assert "- dropout = 0.2 is left out: the prediction is without dropout, as in evaluation" in said
    assert re.search(
        "(?s)Theory averages over random logits and attention weights here.*without effect at init.*: bias, "
        "block_size[.]",
        said,
    )


def test_who_draws_the_weights(capsys, tmp_path):
    """Said below the title; the class's own comparison stands beside its own draw alone."""
    fields = {"model_type": "gpt_neox", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields | {"intermediate_size": 256, "vocab_size": 64}))
    line = ["predict", "--config", str(path), "--tokens", "4", "--patterns", "8"]
    by_class = output(capsys, *line[1:])
    drawn = "Weights: as GPTNeoXForCausalLM draws them; other training code: --drawn-by neox (loss 4.36)"
    assert by_class.splitlines()[1] == drawn
    assert "27 of 27 numbers of a small GPTNeoXForCausalLM agree" in " ".join(by_class.split())
    by_code = output(capsys, *line[1:], "--drawn-by", "neox")
    assert by_code.splitlines()[1].startswith("Weights: as GPT-NeoX draws them (")
    assert "or --drawn-by" not in by_code and "numbers of GPTNeoXForCausalLM" not in by_code
    found = json.loads(output(capsys, *line[1:], "--drawn-by", "neox", "--json"))
    stack, notes = stack_from_config(path, tokens=4, drawn_by="neox")
    assert (found["drawn_by"], found["stack"]) == ("neox", json.loads(json.dumps(dataclasses.asdict(stack))))
    assert notes[-1].what == "drawn"
    # A flag that unties both ends is known to the rule.
    tied = ["predict", "--like", "llama-3.2-1b", "--drawn-by", "torchtitan", "--embeddings", "untied", "--dry-run"]
    assert json.loads(output(capsys, *tied[1:], "--json"))["stack"]["embedding_scale"] == 1.0


def test_an_older_class_has_its_flag():
    assert drawn_lines(stack_from_config(like="gpt2")[1])[:2] == [
        "Weights are drawn as transformers' GPT2LMHeadModel draws them.",
        "transformers 5.0.0 to 5.14.1 draws WO and W2 sqrt(2 L) = 4.9 times as large; "
        "--depth-scaling none predicts that.",
    ]


def test_the_matrix_before_the_output_matrix_has_its_gradient(capsys):
    """BERT's head, behind which tied embeddings sample no logits."""
    sizes = ["--width", "32", "--depth", "2", "--vocab", "16", "--layers"]
    assert "dL/dW_H " in output(capsys, *sizes, "--output-transform", "added")
    tied = ["--embeddings", "tied", "--query-key-scale", "1"]
    assert "Theory averages over random attention weights here" in output(
        capsys, *sizes, "--output-transform", "added", *tied
    )


def test_a_flag_with_its_default_changes_a_published_model_too(capsys):
    """GPT-2 is Pre-LN with twelve heads; Post-LN, ReLU and one head are the defaults of the flags."""
    line = ["predict", "--like", "gpt2", "--width", "16", "--depth", "1", "--tokens=2", "--vocab", "8", "--json"]
    changes = {"placement": "post", "activation": "relu", "heads": 1, "embeddings": "untied"}
    flags = [word for name, value in changes.items() for word in (f"--{name}", str(value))]
    stack = json.loads(output(capsys, *line[1:], *flags))["stack"]
    assert {name: stack.get(name, getattr(Stack(), name)) for name in changes} == changes
    assert main([*line[:-1], "--heads", "4"]) == 0
    assert capsys.readouterr().out.startswith(
        "gpt2 with --width 16 --depth 1 --vocab 8 --heads 4: Pre-LN, 1 layer, width 16, 4 heads, "
    )


def test_errors_beyond_one_per_cent_stand_in_comparisons(capsys):
    one = printed(capsys, "--query-key-scale", "1", "--patterns", "4", "--compare", "query-key-scale=1.5")
    compared = one[one.index("(columns 'changed') with query-key-scale=1.5") :]
    assert re.search(r"cosine( +[0-9.]+ \+- [0-9.]+){4}$", compared, re.MULTILINE)
    one = printed(capsys, "--compare", "placement=pre")
    assert "+-" not in one[one.index("(columns 'changed') with placement=pre") :], "nothing is sampled"


def test_a_dry_run_says_what_it_takes_and_predicts_nothing(monkeypatch, capsys):
    """The estimate is the one that the command announces: of every compared network and sample."""
    monkeypatch.setattr(budget.Way, "predicted", lambda _: pytest.fail("nothing is to be computed"))
    large = "--width 4096 --depth 32 --heads 32 --query-key-scale 1 --mask causal --tokens 16".split()
    found = json.loads(output(capsys, *large, "--compare", "tokens=4096", "--dry-run", "--json"))
    few, many = found["networks"]
    assert (few["stack"]["tokens"], many["stack"]["tokens"]) == (16, 4096)
    assert few["way"] == "all requested tokens and attention samples"
    assert many["way"].startswith("a few tokens represent groups of their neighbours")
    expected = prediction_cost(Stack(**many["stack"]), grouped=True, patterns=4)
    assert (many["seconds"], many["bytes"]) == pytest.approx((expected.seconds, expected.bytes), rel=1e-3)
    assert found["seconds"] == pytest.approx(few["seconds"] + many["seconds"])
    said = printed(capsys, "--dry-run", "--compare", "placement=pre", "--draws", "8")
    assert re.search(
        r"\n  network: .*; 8 sampled networks, about \S+ CPU s .*, within .*\n  placement=pre: [^;]*$", said
    )
    experts = ["predict", "--like", "qwen3-30b-a3b", "--tokens", "64", "--compare", "depth=24", "--dry-run", "--json"]
    assert main(experts) == 0 and 30 < json.loads(capsys.readouterr().out)["seconds"], "critical rates included"
    refused = printed(capsys, "--dry-run", "--embeddings", "tied", "--dropout", "0.1")
    assert "stack must have untied embeddings" in refused and "16 sampled networks" in refused


@pytest.mark.parametrize(("flags", "announced"), [
    ("", "predicting step 1"), ("--layers", "predicting step 1"), ("--batch 8", "predicting step 1"),
    ("--first-step --optimizer sgd", "predicting the first step"),
    ("--compare placement=peri", "comparing 2 networks"), ("--compare", "comparing"),
    ("--learning-rate 1e-3", "predicting the first step by AdamW"), ("--batch 8 --logged LOG", "predicting the first"),
])  # fmt: skip
def test_a_dry_run_has_the_announced_time_and_memory(flags, announced, monkeypatch, capsys, tmp_path):
    """Both print one estimate in the same words, in one line."""
    monkeypatch.setattr(progress, "LONG", 1e-9)
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 5.0, "grad_norm": 2.0}')
    model = "--like gpt2 --width 32 --depth 1 --heads 2 --vocab 128 --tokens 16 --patterns 2".split()
    model = model[:-2] if "rate" in flags else model
    line = ["predict", *model, *flags.replace("LOG", str(tmp_path / "log.jsonl")).split()]
    plan = json.loads(output(capsys, *line[1:], "--dry-run", "--json"))
    assert (plan["stack"]["tokens"], plan["stack"]["width"]) == (16, 32)
    assert main(line) in (0, 1)
    lines = [each for each in capsys.readouterr().err.splitlines() if each.startswith(announced)]
    assert lines[0].partition(": ")[2] == takes(plan["seconds"], plan["bytes"])
    assert main([*line, "--dry-run"]) == 0 and f"\n  cost      {lines[0].partition(': ')[2]}" in capsys.readouterr().out


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from Linux")
def test_the_announced_memory_is_an_upper_bound_within_a_factor_of_1_5():
    """The announced memory is the whole process's, with its libraries."""
    code = (
        "from gradbounds import cli, progress; progress.LONG = 0.0; cli.main(); print(open('/proc/self/status').read())"
    )
    line = [sys.executable, "-c", code, "predict", *"--like gpt2 --width 256 --depth 2 --heads 4 --tokens 32".split()]
    done = subprocess.run([*line, "--compare", "depth=1"], capture_output=True, text=True, check=True)
    most, used = re.search(r"within ([\d.]+) MiB\n", done.stderr)[1], re.search(r"VmHWM:\s+(\d+)", done.stdout)[1]
    assert float(most) / 1.5 < float(used) / 2**10 < float(most), (used, most)


CAUSAL = ("--placement", "pre", "--depth", "4", "--width", "64", "--vocab", "16", "--mask", "causal")


def test_compared_lengths_have_the_numbers_of_one_by_one(capsys):
    found = json.loads(output(capsys, *CAUSAL, "--tokens", "8", "--compare", "tokens=1,128", "--json"))["compared"]
    assert [each["stack"]["tokens"] for each in found] == [1, 128]
    for each in found:
        one = predict(Stack(**each["stack"]))["grad_sq_WV"]
        rows = [row["predicted"] for row in each["prediction"] if row["quantity"] == "grad_WV"]
        assert rows == pytest.approx(one**0.5)
