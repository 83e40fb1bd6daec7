"""`gradbounds explore --out`, a page as one file whose answers are theory's, and a log's first line on the page."""

import ast
import itertools
import json
import re
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from checks.results import rounded
from gradbounds import progress
from gradbounds.budget import each_once
from gradbounds.cli import main
from gradbounds.explore import answers as explore_answers, page as explore_page, precomputed
from gradbounds.explore.answers import answer, seconds_of_answer
from gradbounds.explore.lectures import NAMES
from gradbounds.explore.page import page, prepared, public_runs
from gradbounds.explore.precomputed import answers, name_of
from gradbounds.explore.questions import Question
from gradbounds.json_output import json_text
from theory import Stack, predict
from theory.configurations.configuration_file import PUBLISHED
from theory.mean_field import cost, prediction
from theory.mean_field.cost import Cost

ROOT = Path(__file__).parents[2]
SMALL = {"width": "64", "depth": "2", "tokens": "4", "vocab": "16"}


@pytest.fixture(scope="module")
def few():
    return answers(models=(), depths=(1,), widths=(64,), placements=("post", "peri"), gated=(), choices=False)


def outside(text):
    """What a page would fetch: addresses in attributes and styles, and what styles import."""
    return re.findall(
        r"""(?:src|href|action)\s*=\s*["']?(?!data:)[^"'>\s]+|url\([^)]*\)|@import[^;]+|importScripts|import\(""", text
    )


def test_a_file_asks_for_nothing_from_outside(few):
    text = page(few | {"about": "</script><script>alert(1)</script>"})
    assert "connect-src 'none'" in text
    assert "<script>alert" not in text
    markup = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert outside(markup) == []
    assert not re.search(r"https?://", markup)
    assert "connect-src 'self'" in page()
    assert outside('<a href="http://a"> <img src=b> url(c)') == ['href="http://a', "src=b", "url(c)"]


def test_numbers_of_a_file_are_those_of_theory(few):
    assert len(few["given"]) == 2 * 4
    assert few["about"] == "2 placements at depths 1 and widths 64. "
    for placement in ("post", "peri"):
        content = few["given"][f"predict?depth=1&{f'placement={placement}&' * (placement != 'post')}width=64"]
        known = predict(Stack(placement=placement, depth=1, width=64))
        for name in ("W1", "W2", "WV", "Wemb"):
            (norms,) = (each["predicted"] for each in content["series"] if each["quantity"] == f"grad_{name}")
            assert norms == pytest.approx([float(known[f"grad_sq_{name}"].sum()) ** 0.5], rel=1e-3)


def test_answers_that_ship_are_those_of_theory(monkeypatch):
    """Three of them, all models and each stop of the tour; those of another version are not shown."""
    given = prepared()["given"]
    assert explore_page.FILE.stat().st_size <= 1e6
    for question in (
        {"fields": {}},
        {"fields": {"depth": "24", "ffn": "gated", "activation": "silu"}},
        {"like": "bert-base"},
    ):
        fresh, shipped = precomputed._answer("predict", question), given[precomputed.name_of("predict", question)]
        known, kept = ({one["quantity"]: one["predicted"] for one in each["series"]} for each in (fresh, shipped))
        words = ("finding", "cosine", "stands_out", "evened", "trust", "drawn")
        assert [shipped[name] for name in words] == [fresh[name] for name in words]
        assert kept.keys() == known.keys()
        assert all(kept[name] == pytest.approx(known[name], rel=1e-4, nan_ok=True) for name in known)
    assert all("series" in given[f"predict?like={model}"] for model in PUBLISHED)
    for stop in json.loads(explore_page.FILE.with_name("tour.json").read_text()):
        assert stop["guesses"][stop["right"]]
        network = dict(parse_qsl(stop["address"]))
        for fields in (network, *([dict(parse_qsl(network.pop("pin")))] if "pin" in network else [])):
            fields.pop("name", None)
            assert "series" in given[precomputed.name_of("predict", {"fields": fields})]
    assert "Computing the first network" not in page()
    monkeypatch.setattr(explore_page, "__version__", "0")
    prepared.cache_clear()
    assert prepared()["given"] == {} and "Computing the first network" in page()
    prepared.cache_clear()


def test_a_file_has_all_digits_of_the_line_of_a_log(few):
    """Which the page rounds to four beside the command's sentence: of five, 10.9653 would be 10.965 and then 10.96."""
    network = {"fields": {"depth": "1", "width": "64"}, "batch": precomputed.BATCH}
    content, kept = answer("batch", network), few["given"]["batch?batch=512&depth=1&width=64"]
    assert [kept[name] for name in ("loss", "gradient_norm")] == [content["loss"], content["gradient_norm"]]


def test_a_file_has_gated_networks_with_all_that_the_page_asks_of_them(monkeypatch):
    """By the page's own names, which leave defaults out: two clicks from the paper's setting lead to them."""
    monkeypatch.setattr(precomputed, "_answer", lambda kind, question: answer(kind, question))
    content = answers(models=(), depths=(2, 24), widths=(), placements=(), gated=("post",), choices=False)
    assert "Post-LN with gated units of relu or silu" in content["about"]
    for depth in (2, 24):
        for gate in ("", "activation=silu&"):
            for kind in ("predict", "depth", "width"):
                assert f"{kind}?{gate}depth={depth}&ffn=gated" in content["given"]
    rows = content["given"]["depth?depth=24&ffn=gated"]["rows"]
    norms = predict(Stack(placement="post", depth=64, ffn="gated"))["grad_sq_W2"] ** 0.5
    at = next(k for k, name in enumerate(rows["quantity"]) if (name, rows["size"][k]) == ("grad_W2", 64))
    assert [rows["first"][at], rows["last"][at]] == pytest.approx([norms[0], norms[-1]], rel=1e-9)


def test_a_file_has_the_lines_of_the_prediction_that_it_has():
    network = {"fields": {"placement": "peri"} | SMALL}
    apart = rounded(json.loads(json_text(answer("predict", network) | answer("lines", network))), precomputed._DIGITS)
    together = precomputed._answer("predict", network)
    assert together["lines"] == apart["lines"]
    assert together["series"] == apart["series"]


def test_a_file_says_what_it_takes_before_it_starts(capsys, monkeypatch):
    """Choices that are no network take nothing, and an answer that would be refused is not counted."""
    monkeypatch.setattr(precomputed, "_answer", lambda kind, question: capsys.readouterr().err)
    given = answers(models=(), depths=(), widths=(), placements=())["given"]
    first, *others = given.values()
    assert re.fullmatch(rf"{len(given)} answers take about [0-9.]+ \w+ of one core\.\n", first)
    assert others
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) + sum("answers: " in one for one in given.values()) <= 10
    assert lines[-1] == f"answers: {len(given)} of {len(given)}"
    for_one = [("predict", {"fields": SMALL})]
    seconds = seconds_of_answer(*for_one[0])
    assert precomputed._seconds(for_one) == pytest.approx([precomputed._EACH + 2 * seconds])
    monkeypatch.setattr(precomputed, "SECONDS", seconds / 2)
    assert precomputed._seconds(for_one) == [precomputed._EACH]


def test_a_file_says_how_long_the_rest_takes(capsys, monkeypatch):
    """By the estimates of answers, not by their number: the first of four is half of the work here."""
    clock = itertools.count(0, 40)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(precomputed, "_estimate", lambda kind, question: float(kind == "predict"))
    monkeypatch.setattr(precomputed, "_EACH", 1.0)
    monkeypatch.setattr(precomputed, "_answer", lambda kind, question: None)
    answers(models=(), depths=(1,), widths=(64,), placements=("pre",), gated=(), choices=False)
    first, *_, last = capsys.readouterr().err.splitlines()[1:]
    assert first == "answers: 1 of 4, 40 s left"
    assert last == "answers: 4 of 4"


def test_steps_of_a_file_are_counted_and_not_said_one_by_one(capsys, monkeypatch):
    monkeypatch.setattr(precomputed, "_answer", lambda kind, question: progress.shown("a step", Cost(9.0)).__enter__())
    answers(models=(), depths=(1,), widths=(64,), placements=("pre",), gated=(), choices=False)
    assert [line.partition(" ")[0] for line in capsys.readouterr().err.splitlines()] == ["4", *["answers:"] * 4]


def test_lectures_are_notebooks_with_the_code_of_their_scripts(tmp_path, capsys):
    assert main(["explore", "--lectures", str(tmp_path / "new")]) == 0
    assert {file.stem for file in (tmp_path / "new").iterdir()} == {*NAMES} and len(
        capsys.readouterr().out.split()
    ) == 4
    for file in (tmp_path / "new").iterdir():
        cells = json.loads(file.read_text())["cells"]
        code = ast.parse("\n".join(cell["source"] for cell in cells if cell["cell_type"] == "code"))
        script = ast.parse((ROOT / "examples" / f"{file.stem}.py").read_text()).body[1:]
        assert ast.unparse(code) == ast.unparse(ast.Module(script, []))
        assert not any(":math:" in cell["source"] for cell in cells)


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
    assert (content["tokens"], content["text"]) == (4, None)
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
    monkeypatch.setattr(explore_answers, "SECONDS", 0.1)
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
