"""`gradbounds explore`: what the page is answered is what `predict` finds, and nothing but the page may ask."""

import http.client
import itertools
import json
import random
import re
import socket
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from gradbounds.cli import main
from gradbounds.explore import answers as explore_answers, precomputed, server
from gradbounds.explore.answers import NobodyWaitsError, answer, seconds_of_answer
from gradbounds.explore.page import SCRIPTS, page
from gradbounds.explore.questions import Question
from gradbounds.explore.samples import RunSamples, drawn, summary
from gradbounds.explore.server import MOST_BYTES, Server, answer_apart
from simulate import Cell, Run, sample, sweep
from theory import Stack, predict
from theory.paper.theorem1 import bound_value
from theory.stack import PAPER
from theory.stack.groups import GROUPS
from theory.stack.placements import COMPOSITIONS

SMALL = {"width": "64", "depth": "2", "tokens": "4", "vocab": "16"}
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96,
    "intermediate_size": 96, "num_key_value_heads": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def served():
    with Server(0, page()) as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def test_many_connections_at_once_wait_for_their_turn():
    """Nobody accepts them yet; beyond the queue of five that is Python's default, some would be reset or time out."""
    with Server(0, page()) as one, ExitStack() as opened:
        for _ in range(60):
            opened.enter_context(socket.create_connection(("127.0.0.1", one.server_port), timeout=0.5))


def request(served, path="/", *, body=None, method=None, **headers):
    """Status and text of a reply; headers with None are left out."""
    given = {"Host": f"127.0.0.1:{served.server_port}"}
    if body is not None:
        given |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(http.client.HTTPConnection("127.0.0.1", served.server_port, timeout=30)) as connection:
        connection.putrequest(method or ("GET" if body is None else "POST"), path, skip_host=True)
        for name, value in given.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(body)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()


def asked(served, kind, question):
    status, text = request(served, f"/api/{kind}", body=json.dumps(question).encode())
    return status, json.loads(text)


def flags_of(fields):
    return [word for name, value in fields.items() for word in (f"--{name.replace('_', '-')}", value)]


def settings():
    """Small networks at random, of some fields each, the same in every run."""
    draw = random.Random(7)
    return [
        SMALL
        | {
            "placement": draw.choice([*COMPOSITIONS]),
            "width": str(draw.choice([64, 96, 128])),
            "depth": str(draw.randint(1, 4)),
            "ffn_ratio": draw.choice(["0.5", "1", "2.75", "4"]),
            "activation": draw.choice(["relu", "gelu", "silu", "tanh"]),
            "mask": draw.choice(["none", "causal"]),
            "branch_scale": draw.choice(["own", f"{draw.random():.3f}"]),
        }
        for _ in range(3)
    ]


@pytest.mark.parametrize("fields", settings(), ids=lambda fields: fields["placement"])
def test_the_page_is_answered_what_predict_prints(served, capsys, fields):
    status, content = asked(served, "predict", {"fields": fields})
    assert status == 200
    assert main(["predict", *flags_of(fields), "--json"]) == 0
    known = {(row["quantity"], row["layer"]): row for row in json.loads(capsys.readouterr().out)["prediction"]}
    numbers = {
        (one["quantity"], layer): value
        for one in content["series"]
        for layer, value in zip(one["layer"], one["predicted"], strict=True)
    }
    assert known.keys() <= numbers.keys()
    assert all(numbers[at] == row["predicted"] for at, row in known.items())
    assert {name for name, _ in numbers.keys() - known.keys()} == {"cosine"}


def test_the_words_are_those_of_predict(served, capsys):
    _, content = asked(served, "predict", {"fields": SMALL | {"placement": "peri"}})
    assert main(["predict", "--all", "--placement", "peri", *flags_of(SMALL)]) == 0
    _, whole = asked(served, "lines", {"fields": SMALL | {"placement": "peri"}})
    tables = next(k for k, line in enumerate(whole["lines"]) if line.startswith("Large-width theory"))
    assert capsys.readouterr().out.rstrip("\n").endswith("\n".join(whole["lines"][tables:]))
    assert set(content["stands_out"]) < set(whole["lines"])
    ratios = {one["head"][4:]: one["predicted"][0] / one["predicted"][-1] for one in content["series"] if one["matrix"]}
    assert (
        " to ".join(f"{ratios[name]:.3g} ({name})" for name in sorted(ratios, key=ratios.get)[::2])
        in content["finding"]
    )
    assert whole["evened"] == ""
    uneven = {"fields": SMALL | {"placement": "pre", "depth": "6"}}
    (line,) = (each for each in asked(served, "lines", uneven)[1]["lines"] if "evens out" in each)
    assert asked(served, "lines", uneven)[1]["evened"] == line
    assert precomputed._answer("predict", uneven)["evened"] == line
    assert "by more than 3%" in content["trust"][0]
    assert content["paper"] is None


def test_the_python_line_is_of_the_same_network(served):
    fields = {"width": "128", "query_key_scale": "0", "tokens": "4"}
    _, content = asked(served, "predict", {"config": LLAMA, "fields": fields})
    line = re.fullmatch(r"gb\.predict\(gb\.Stack\((.*)\)\)", content["python"])
    stack = eval(f"Stack({line[1]})")  # the line is ours
    assert stack.query_key_scale == 0
    norms = next(one["predicted"] for one in content["series"] if one["quantity"] == "grad_WV")
    assert stack.width == 128
    assert norms == pytest.approx(predict(stack)["grad_sq_WV"] ** 0.5, rel=1e-12)


@pytest.mark.parametrize("along", ["depth", "width"])
def test_other_sizes(served, along):
    """First and last layer, the bound of Theorem 1 and appendix F's law, at sizes around the network's."""
    _, content = asked(served, along, {"fields": SMALL | {"placement": "post"}})
    rows = content["rows"]
    sizes = sorted(set(rows["size"]))
    assert sizes[0] < int(SMALL[along]) < sizes[-1] or (along, sizes[0]) == ("depth", 1)
    stack = Stack(placement="post", **{name: int(value) for name, value in SMALL.items()} | {along: sizes[-1]})
    norms = predict(stack)["grad_sq_W2"] ** 0.5
    at = [k for k, size in enumerate(rows["size"]) if (size, rows["quantity"][k]) == (sizes[-1], "grad_W2")][0]
    assert [rows["first"][at], rows["last"][at]] == pytest.approx([norms[0], norms[-1]], rel=1e-12)
    paper = content["paper"][-1]
    assert paper["bound"] == pytest.approx(float(bound_value(stack).value), rel=1e-12)
    assert paper["appendix_f"] == pytest.approx(norms[-1] * (2 / 3) ** ((stack.depth - 1) / 2), rel=1e-9)


def test_widths_keep_heads_and_say_which_cannot_be(served):
    """Powers of two would not be divided by three heads."""
    fields = SMALL | {"width": "72", "heads": "3", "output_projection": "random"}
    _, content = asked(served, "width", {"fields": fields})
    assert sorted(set(content["rows"]["size"])) == [18, 36, 72, 144, 288, 576, 1152]
    assert content["left_out"] == "heads stay 3, and are as wide as the network makes them."
    _, content = asked(served, "width", {"fields": fields | {"heads": "24"}})
    assert "18, 36 cannot be, as heads must divide width = " in content["left_out"]


def test_the_bound_is_taken_apart(served):
    """The product of the proof's factors is bound over norm, and its third factor is sqrt(d)."""
    _, content = asked(served, "predict", {"fields": SMALL | {"placement": "post"}})
    stack = Stack(**{name: int(value) for name, value in SMALL.items()})
    factors = [step["factor"] for step in content["taken_apart"]]
    norm = float(predict(stack)["grad_sq_W2"][-1]) ** 0.5
    assert len(factors) == 6 and factors[2] == pytest.approx(8.0)
    assert norm * np.prod(factors) == pytest.approx(float(bound_value(stack).value), rel=1e-9)
    assert asked(served, "predict", {"fields": SMALL | {"placement": "peri"}})[1]["taken_apart"] == []


def test_networks_are_compared_in_the_words_of_predict(served, capsys):
    networks = [{"fields": SMALL | {"placement": placement}} for placement in ("post", "pre", "peri")]
    _, content = asked(served, "compare", {"networks": networks, "names": ["this", "placement=pre", "<b>"]})
    assert main(["predict", *flags_of(SMALL), "--placement", "post", "--compare", "placement=pre"]) == 0
    assert "\n".join(content["lines"][: content["lines"].index("", 1)]) in capsys.readouterr().out
    norms = [predict(Stack(placement=each, **{name: int(value) for name, value in SMALL.items()})) for each in PAPER]
    ratios = [(norms[1][f"grad_sq_{role}"][-1] / norms[0][f"grad_sq_{role}"][-1]) ** 0.5 for role in ("W1", "W2", "WV")]
    assert all(f"{ratio:.3g} (" in content["words"][0] for ratio in (min(ratios), max(ratios)))
    assert content["words"][1].startswith("<b>: ")  # which the page sets as text
    for wrong in ({"networks": networks[:1], "names": ["a"]}, {"networks": networks, "names": [1, 2, 3]}, []):
        assert asked(served, "compare", wrong)[0] == 400


def test_what_takes_long_is_answered_by_a_process_that_can_be_cancelled(served, monkeypatch):
    assert seconds_of_answer("predict", {"fields": SMALL}) < 0.1
    assert seconds_of_answer("predict", {"like": "gpt2", "fields": {"tokens": "1024"}}) > 3.0
    assert seconds_of_answer("predict", {"fields": {"normalization": "tanh"}}) == 0.0
    monkeypatch.setattr(server, "_SLOW", -1.0)
    monkeypatch.setattr(server, "answer_apart", lambda kind, asked, is_wanted: {"apart": kind})
    assert asked(served, "predict", {"fields": SMALL})[1]["apart"] == "predict"


def test_sizes_that_nobody_waits_for_are_not_predicted():
    with pytest.raises(NobodyWaitsError):
        answer("depth", {"fields": SMALL}, is_wanted=lambda: False)


def test_a_process_that_nobody_waits_for_ends(monkeypatch):
    started = []
    context = server.multiprocessing.get_context("spawn")
    process = context.Process
    monkeypatch.setattr(context, "Process", lambda **given: started.append(process(**given)) or started[0])
    with pytest.raises(NobodyWaitsError):
        answer_apart("first_step", {"fields": SMALL}, is_wanted=lambda: False)
    assert started[0].exitcode == -9
    started.clear()
    with pytest.raises(ValueError, match="more than 0 seconds"):
        answer_apart("first_step", {"fields": SMALL}, seconds=0.0)
    assert started[0].exitcode == -9


def test_a_first_step(monkeypatch):
    content = answer("first_step", {"fields": SMALL | {"depth": "1", "tokens": "1"}})
    assert [one["optimizer"] for one in content["rates"]] == ["sgd", "adam"]
    rates = [one["critical_rate"] for one in content["rates"]]
    assert rates[0] != rates[1] and all(0 < rate < 100 for rate in rates)
    assert sum("critical rate" in line.lower() for line in content["lines"]) >= 2
    monkeypatch.setattr(explore_answers, "STEP_SECONDS", 0.001)
    refused = answer("first_step", {"fields": SMALL | {"depth": "1", "tokens": "1"}})["rates"]
    assert all("more than" in one["no_rule"] for one in refused)


def drawn_here(kind, asked, **given):
    """In place of a process, which the evidence in a browser starts."""
    return drawn(Question.read(asked))


def test_samples_come_as_lines(served, monkeypatch):
    monkeypatch.setattr(server, "answers_apart", drawn_here)
    question = {"fields": SMALL | {"width": "8", "depth": "1"}, "draws": "65", "seed": "3"}
    status, text = request(served, "/api/sample", body=json.dumps(question).encode())
    parts = [json.loads(line) for line in text.splitlines()]
    assert status == 200
    assert [(part["draws"], part["of"]) for part in parts] == [(0, 128), (64, 128), (128, 128)]
    known = sample(Stack(width=8, depth=1, tokens=4, vocab=16), draws=128, seed=3)
    (norm,) = (one for one in parts[-1]["series"] if one["quantity"] == "grad_W2")
    assert norm["mean"] == pytest.approx([np.sqrt(known["grad_sq_W2"].mean())], rel=1e-6)
    spread = known["grad_sq_W2"].std(ddof=1) / 128**0.5 / (2 * norm["mean"][0])
    assert norm["sem"] == pytest.approx([spread], rel=1e-5)


def test_samples_that_take_too_long_are_refused(served, monkeypatch):
    monkeypatch.setattr(server, "answers_apart", drawn_here)
    for change in ({"draws": "1e9"}, {"fields": SMALL | {"width": "1e9"}}):
        status, content = asked(served, "sample", {"fields": SMALL} | change)
        assert (status, "fewer or smaller networks" in content["error"]) == (400, True)
    assert asked(served, "sample", {"draws": "1"})[1]["error"].startswith("draws must be an integer of at least 2")


def test_an_error_after_the_first_samples_is_their_last_line(served, monkeypatch):
    def broken(kind, asked, **given):
        yield {"draws": 0}
        raise ValueError("the process ended.")

    monkeypatch.setattr(server, "answers_apart", broken)
    _, text = request(served, "/api/sample", body=b"{}")
    assert json.loads(text.splitlines()[-1])["error"] == "the process ended."


def test_a_run_folder_lies_over_the_curves(tmp_path):
    stack = Stack(width=8, depth=1, tokens=2, vocab=4)
    cell = Cell(stack)
    sweep([cell], draws=2, seed=0, out=tmp_path / "run")
    run = RunSamples(tmp_path / "run")
    (described,) = run.about["cells"]
    assert Question.read({"fields": described["fields"]}).network()[0] == stack
    with Server(0, page(run=run.about), run) as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        _, content = asked(one, "cell", {"cell": cell.name})
        refused = asked(one, "cell", {"cell": "x" * 1000})
        one.shutdown()
        thread.join()
    assert content["series"] == json.loads(json.dumps(summary(Run.open(tmp_path / "run").samples()[0])))
    assert (refused[0], len(refused[1]["error"]) < 120) == (400, True)


HOSTILE = [
    ({"fields": {"widht": "8"}}, "Did you mean width?"),
    ({"fields": {"__proto__": "8"}}, "the network has no field '__proto__'"),
    ({"fields": {"width": "<script>alert(1)</script>"}}, "width must be an integer"),
    ({"fields": {"width": 8}}, "width must be given as text"),
    ({"fields": {"width": "1e300"}}, "width must be at most"),
    ({"fields": {"depth": "100000"}}, "depth must be at most 512 on this page"),
    (
        {"fields": {"depth": "512", "tokens": "1e5", "experts": "64", "experts_per_token": "8"}},
        "theory would take about",
    ),
    ({"fields": {"mask": "given", "mask_rows": "[" * 10**5}}, "mask_rows must be"),
    ({"fields": {"placement": "x" * 10**5}}, "placement must be one of"),
    ({"like": "../../etc/passwd"}, "like must be one of"),
    ({"config": "/etc/passwd"}, "config must be of another kind"),
    ({"config": {"model_type": "resnet"}}, "model_type must be one of"),
    ({"batch": "0"}, "batch must be an integer of at least 1"),
    ({"text": "/etc/passwd"}, "question must have"),
    ({"draws": "many"}, "draws must be an integer"),
    ({"seed": "-1"}, "seed must be an integer of at least 0"),
    ({"max_time": "soon"}, "max_time must be a positive duration"),
    ({"max_time": "1d"}, "max_time must be at most 600s on this page"),
    ([], "question must be an object"),
]


@pytest.mark.parametrize(("question", "message"), HOSTILE, ids=[message for _, message in HOSTILE])
def test_a_hostile_question_has_one_short_message(served, question, message):
    status, content = asked(served, "predict", question)
    assert status == 400
    assert message in content["error"]
    assert len(content["error"]) < 700
    assert "\n" not in content["error"]


def test_a_width_of_a_billion_is_a_network(served):
    status, content = asked(served, "predict", {"fields": SMALL | {"width": "1e9"}})
    assert (status, content["stack"]["width"]) == (200, 10**9)


def test_only_the_page_is_answered(served):
    own, body = f"127.0.0.1:{served.server_port}", json.dumps({"fields": SMALL}).encode()
    assert served.server_address[0] == "127.0.0.1"
    assert request(served)[0] == request(served, Host=f"localhost:{served.server_port}")[0] == 200
    for host in ("evil.example", "127.0.0.1", f"evil.example:{served.server_port}", None):
        assert request(served, Host=host)[0] == 403
        assert request(served, "/api/predict", body=body, Host=host)[0] == 403
    assert request(served, "/api/predict", body=body, Origin=f"http://{own}")[0] == 200
    for origin in ("http://evil.example", "null", f"https://{own}", f"http://{own}.evil.example"):
        assert request(served, "/api/predict", body=body, Origin=origin)[0] == 403
        assert request(served, Origin=origin)[0] == 403


def test_what_is_no_question_is_refused(served):
    body = b"{}"
    assert request(served, "/api/predict", body=body, Content_Type="text/plain")[0] == 415
    assert request(served, "/api/predict", body=body, Content_Length=None)[0] == 411
    assert request(served, "/api/predict", body=body, Content_Length="-1")[0] == 411
    assert request(served, "/api/predict", body=body, Content_Length=str(MOST_BYTES + 1))[0] == 413
    assert request(served, "/api/predict", body=b"{" * 1000)[0] == 400
    assert request(served, "/api/predict", body=b"\xff")[0] == 400
    assert request(served, "/api/samples", body=body)[0] == request(served, "/predict", body=body)[0] == 404
    assert request(served, "/../etc/passwd")[0] == 404
    assert request(served, method="DELETE")[0] == 501


def test_every_field_has_a_control():
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page(), re.S)[1])
    names = [field["name"] for group in data["groups"] for field in group["fields"]]
    assert names == [*Stack.__dataclass_fields__]
    assert [group["name"] for group in data["groups"]] == [group.__name__ for group in GROUPS]
    choices = {field["name"]: field["choices"] for group in data["groups"] for field in group["fields"]}
    assert choices["mask"] == ["none", "causal", "given"]
    assert "NAME" not in choices["placement"]


def test_the_page_sets_data_as_text_alone():
    scripts = [part for part in Path(server.__file__).with_name("static").glob("*.js") if "uPlot" not in part.name]
    lines = {part.stem: part.read_text(encoding="utf-8").splitlines() for part in scripts}
    assert sorted(lines) == sorted(SCRIPTS)
    assert max(map(len, lines.values())) < 300 and sum(map(len, lines.values())) <= 1500
    for line in itertools.chain(*lines.values()):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", line)


def test_a_port_in_use_is_refused(capsys, served):
    assert main(["explore", "--port", str(served.server_port)]) == 2
    assert "--port must be free" in capsys.readouterr().err
