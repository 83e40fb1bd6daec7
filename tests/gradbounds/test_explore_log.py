"""The first line of a training log on the page of `gradbounds explore`: it is that of `predict --batch`."""

import json
import re
from pathlib import Path

import pytest

from gradbounds.budget import each_once
from gradbounds.cli import main
from gradbounds.explore import answers as explore_answers, page as explore_page
from gradbounds.explore.answers import answer, seconds_of_answer
from gradbounds.explore.page import page
from gradbounds.explore.precomputed import name_of
from gradbounds.explore.prepared import public_runs
from gradbounds.explore.questions import Question
from theory.mean_field import cost, prediction

SMALL = {"width": "64", "depth": "2", "tokens": "4", "vocab": "16"}
FLAGS = [word for name, value in SMALL.items() for word in (f"--{name}", value)]
MODEL = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96,
    "intermediate_size": 96, "max_position_embeddings": 64,
}  # fmt: skip
STATIC = Path(explore_page.__file__).with_name("static")
SCRIPT = "".join(part.read_text(encoding="utf-8") for part in STATIC.glob("*.js"))
LATE = re.compile(re.search(r"const LATE = /(.*)/;", SCRIPT)[1])
"""By which the page knows from a message that an answer may take longer."""


@pytest.fixture
def few_patterns(monkeypatch):
    """Four of theory, which else takes as many as some seconds allow."""
    for module in (cost, prediction):
        monkeypatch.setattr(module, "quick_patterns", lambda *_, **__: 4)


def printed(capsys, *flags):
    assert main(["predict", *flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_first_line_of_a_log(capsys):
    content, known = answer("batch", {"fields": SMALL, "batch": "6"}), printed(capsys, *FLAGS, "--batch", "6")
    assert {name: content[name] for name in ("loss", "gradient_norm")} == {
        name: known[name] for name in ("loss", "gradient_norm")
    }
    assert (content["tokens"], content["text"], content["longer"]) == (4, None, "")
    with pytest.raises(ValueError, match="are then not Gaussian"):
        answer("batch", {"fields": SMALL | {"normalization": "tanh"}, "batch": "6"})


def test_a_model_has_its_context_and_a_text_as_the_command_has(capsys, tmp_path, few_patterns):
    """Where nobody gives another length or law."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MODEL))
    for asked, flags in (
        ({}, ()), ({"zipf": "1.2"}, ("--text", "zipf:1.2")), ({"fields": {"tokens": "8"}}, ("--tokens", "8")),
    ):  # fmt: skip
        with each_once():  # of another network or law it would be another prediction
            content = answer("batch", {"config": MODEL, "batch": "6"} | asked)
            known = printed(capsys, "--config", str(file), "--batch", "6", *flags)
        assert content["gradient_norm"] == known["gradient_norm"]
        assert content["loss"] == known["loss"]
        assert content["tokens"] == (8 if flags[:1] == ("--tokens",) else 64)
        assert content["text"] == (flags[1] if flags[:1] == ("--text",) else "zipf:1")


def test_a_model_has_the_most_tokens_that_are_soon_and_says_what_all_take(monkeypatch, few_patterns):
    model = {"config": MODEL, "batch": "6"}
    whole = seconds_of_answer("batch", model)
    half = seconds_of_answer("batch", model | {"fields": {"tokens": "32"}})
    assert half < whole
    monkeypatch.setattr(explore_answers, "SECONDS", (half + whole) / 2)
    content = answer("batch", model)
    assert content["tokens"] == 32
    assert content["longer"].startswith("At 64 tokens theory")
    assert LATE.search(content["longer"])
    assert answer("batch", model | {"max_time": "60s"})["longer"] == ""


def test_public_runs_are_questions():
    runs = {run["name"]: run for run in public_runs()}
    run = runs["GPT-2 124M, llm.c"]
    assert (run["loss"], run["norm"]) == (11.0091, 15.37)
    for each in runs.values():
        Question.read(each["question"]).network()
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page(), re.S)[1])
    assert [one["name"] for one in data["public_runs"]] == [*runs]
    assert "Megatron, GPT 7B, untied" not in runs  # whose words are no text
    assert name_of("batch", run["question"]) == (
        "batch?batch=512&drawn_by=nanogpt&embeddings=tied&like=gpt2&tokens=1024&vocab=50257"
    )


def test_words_of_a_batch_may_repeat(capsys):
    content = answer("batch", {"fields": SMALL, "batch": "6", "zipf": "1.2"})
    known = printed(capsys, *FLAGS, "--batch", "6", "--text", "zipf:1.2")
    assert content["gradient_norm"] == known["gradient_norm"]
    with pytest.raises(ValueError, match="text must be .*, zipf:A"):
        answer("batch", {"fields": SMALL, "zipf": "/etc/passwd"})


def test_an_answer_may_be_asked_to_take_longer(monkeypatch):
    """And the page knows from the message that it may: its pattern is of the command's own words."""
    llama = {"like": "llama-3-8b", "fields": {"tokens": "4096"}, "batch": "64", "zipf": "1"}
    with pytest.raises(ValueError, match="of --max-time") as refused:
        answer("batch", llama)
    assert LATE.search(str(refused.value))[2] == "s"
    monkeypatch.setattr(explore_answers, "SECONDS", 1e-3)
    with pytest.raises(ValueError, match="of --max-time") as refused:
        answer("predict", {"fields": SMALL | {"query_key_scale": "1", "tokens": "16"}})
    assert LATE.search(str(refused.value))
    assert not LATE.search(
        "takes about 9 CPU s and 9.0 GiB, more than the 1 s of --max-time and the 2 GiB of --memory; x"
    )
    assert Question.read(llama | {"max_time": "60s"}).seconds == 60.0
    assert explore_answers._budget(Question.read(llama | {"max_time": "60s"})).seconds == 60.0


def test_flags_that_the_command_names_are_words_on_the_page(monkeypatch, few_patterns):
    """The page replaces these sentences, which the command still has."""
    lines = " ".join(answer("batch", {"fields": SMALL, "batch": "2"})["lines"])
    sampled = answer("predict", {"fields": SMALL | {"query_key_scale": "1", "tokens": "4"}})["sampled"][0]
    of_model = {"config": MODEL, "batch": "6"}
    monkeypatch.setattr(explore_answers, "SECONDS", seconds_of_answer("batch", of_model) / 1.01)
    shorter = " ".join(answer("batch", of_model)["lines"])
    for said, sentence in (
        (lines, "; --text english predicts it."), (sampled, "; --patterns N reduces these errors."),
        (shorter, "within --max-time and --memory"),
    ):  # fmt: skip
        assert sentence in said
        assert f'.replace("{sentence}", ' in SCRIPT
    assert " --text FILE uses your own text." in shorter
    assert r".replace(/ --text FILE uses your own text\./," in SCRIPT
