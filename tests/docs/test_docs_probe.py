"""The page about probing: its numbers are the committed ones, and its examples run."""

import json
import re
from pathlib import Path

import pytest

from gradbounds.cli import main
from tests.helpers.printed_numbers import says

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "probe.md").read_text(encoding="utf-8")


def test_the_numbers_are_the_committed_ones():
    report = json.loads((ROOT / "bench" / "results" / "probing-xeon-2cores.json").read_text(encoding="utf-8"))
    added = {
        tokens: [
            f"{100 * (case['forward and backward with probing over without'] - 1):.0f}%"
            for name, case in report.items()
            if name.endswith(f", {tokens} tokens")
        ]
        for tokens in (16, 512)
    }
    assert says("probe.md", *sorted(added[512], key=len), *sorted(added[16]))
    cpu, gpu = (
        json.loads((ROOT / "bench" / "results" / f"one-module-{machine}.json").read_text(encoding="utf-8"))
        for machine in ("xeon-2cores", "h200")
    )
    few, many = (cpu[f"31 million parameters, {tokens} tokens"] for tokens in (128, 1024))
    ratios = sorted(f"{of['report over both passes']:.0f}" for of in (few, many))
    there = gpu["32 million parameters, 8192 tokens"]["report, seconds"]
    seconds = *(f"{of['report, seconds']:.0f}" for of in (few, many)), f"{there:.1f}"
    assert says(
        "probe.md", *ratios, "times its forward", seconds[0], "128 tokens", seconds[1], "1024", seconds[2], "8192"
    )
    folder = ROOT / "tests" / "evidence"
    found = json.loads((folder / "probing-exponents.json").read_text(encoding="utf-8"))["exponents"]
    post, pre = (found[f"encoder-{placement}, W2"] for placement in ("post", "pre"))
    numbers = [f"{one[what]:.3f}" for one in (post, pre) for what in ("measured", "predicted")]
    assert says("probe.md", *numbers[:2], "Post-LN", *numbers[2:], "Pre-LN")
    alarms = json.loads((folder / "probing.json").read_text(encoding="utf-8"))
    assert set(alarms["named, of 20"].values()) == {20}
    assert set(alarms["alarms of 100 healthy modules"].values()) == {0}


def test_the_numbers_of_whole_models_are_the_committed_ones():
    folder = ROOT / "tests" / "evidence"
    healthy = json.loads((folder / "probe-healthy.json").read_text(encoding="utf-8"))
    power = json.loads((folder / "probe-faults.json").read_text(encoding="utf-8"))["power"]
    alone, beside = (healthy[kind]["all"] for kind in ("by itself", "against a reference"))
    assert says("probe.md", f"{healthy['all runs']} healthy runs", str(alone), "alarm", str(beside), "reference")
    runs, alone_named, against_named = (
        [sum(fault[kind]["named"] for fault in group) if kind else sum(fault["runs"] for fault in group)
         for group in (list(power.values())[:8], list(power.values())[8:])]
        for kind in ("", "by itself", "against a reference")
    )  # fmt: skip
    without, beside = (f"{named[1]} of {runs[1]}" for named in (alone_named, against_named))
    assert says("probe.md", f"{alone_named[0]} of {runs[0]}", without, "without a reference", beside)


def test_the_numbers_of_one_model_are_the_committed_ones():
    healthy, faults, thresholds = (
        json.loads((ROOT / "tests" / "evidence" / f"probe-one-{name}.json").read_text(encoding="utf-8"))
        for name in ("healthy", "faults", "thresholds")
    )
    assert says("probe.md", f"{thresholds['modules']} healthy modules")
    low, high = healthy["95% of the rate"]
    assert low == 0
    assert says("probe.md", f"{healthy['modules']} healthy modules raised {healthy['with an alarm']} alarms")
    assert says("probe.md", f"up to {100 * high:.1f}%")
    named, runs = (sum(of[what] for of in faults["power"].values()) for what in ("named", "runs"))
    assert says("probe.md", f"Of {len(faults['power'])} kinds", f"{named} of {runs} runs were named")
    public = json.loads((ROOT / "tests" / "evidence" / "probe-public.json").read_text(encoding="utf-8"))
    assert says(
        "probe.md", f"Of {public['kinds']} kinds", f"{public['right answers']} of {public['runs']} runs were answered",
        f"{public['by alarm']} by an alarm", f"{public['healthy runs']} healthy counterparts raised",
        f"{public['healthy runs with an alarm']} alarms",
    )  # fmt: skip
    sizes = json.loads((ROOT / "tests" / "evidence" / "probe-sizes.json").read_text(encoding="utf-8"))
    assert says("probe.md", f"Of {sizes['models']} models", f"{len(sizes['with an alarm'])} did")
    assert sizes["with an alarm"] == ["ModernBertForMaskedLM"]
    furthest = {what: of["furthest"] for what, of in thresholds.items() if isinstance(of, dict)}
    columns = re.findall(r"^\| .* \| (?:above|below|from) [\d.]+ \| ([\d.e-]+) \|$", PAGE, re.M)
    in_order = ("loss over ln V", "labels' entropy over loss", "energy growth over L", "gradient growth over root L",
                "norm response", "bias over matrix", "standard deviation of logits", "logits over other layers'",
                "sum over keys from 1", "units", "rows that repeat")  # fmt: skip
    expected = [1 / furthest[name] if name.startswith("labels") else furthest[name] for name in in_order]
    assert [float(value) for value in columns] == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("name", ["healthy", "broken"])
def test_the_examples_say_what_the_page_says(tmp_path, monkeypatch, capsys, name):
    """Verdicts and alarms; numbers to rounding on another CPU are not compared."""
    code = re.search(r"```python\n# mine.py\n(.*?)```", PAGE, re.S)
    module = f"mine_{name}"
    (tmp_path / f"{module}.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    assert main(["probe", f"{module}:{name}", "--width", "128", "--depth", "8", "16", "32", "--seeds", "8"]) == 0
    said = capsys.readouterr().out
    shown = re.findall(r"```text\n(.*?)```", PAGE, re.S)[1 + (name == "broken")]

    def verdicts(text):
        return [
            re.sub(r"[\d.]+|-(?=\d)", "#", line)
            for line in text.splitlines()
            if line.startswith(("ALARM", "No alarm", "0 is"))
        ]

    assert verdicts(shown) == verdicts(said)
    assert verdicts(shown)


def test_the_example_of_one_model_says_what_the_page_says(tmp_path, monkeypatch, capsys):
    code = re.search(r"```python\n# one.py\n(.*?)```", PAGE, re.S)
    (tmp_path / "one_on_the_page.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "10000")
    assert main(["probe", "one_on_the_page.py:make"]) == 0
    said = capsys.readouterr().out.replace("one_on_the_page", "one")
    shown = re.findall(r"```text\n(.*?)```", PAGE, re.S)[0]
    words = [
        [re.sub(r"[\d.]+ *", "# ", line).split() for line in text.splitlines() if not line.startswith("First step")]
        for text in (shown, said)
    ]
    assert words[0] == words[1]


def test_the_example_of_steps_says_what_the_page_says(tmp_path, monkeypatch, capsys):
    """At smaller widths, with fewer seeds and steps: the same weight, and the same power of the width."""
    code = re.search(r"```python\n# steps.py\n(.*?)```", PAGE, re.S)
    (tmp_path / "steps_on_the_page.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "10000")
    names = ["steps_on_the_page.py:make", "--optimizer", "steps_on_the_page.py:optimizer"]
    assert main(["probe", *names, "--width", "32", "64", "128", "--steps", "1", "--seeds", "3"]) == 0
    (alarm,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("ALARM"))
    shown = re.search(r"^ALARM learning rate.*$", PAGE, re.M)[0]
    assert alarm == shown.replace("512 it is 8.0", "128 it is 4.0").replace("width 64", "width 32")


def test_the_numbers_of_steps_are_the_committed_ones():
    dense, healthy, narrow, breaches, costs = (
        json.loads((ROOT / "tests" / "evidence" / f"probe-steps-{name}.json").read_text(encoding="utf-8"))
        for name in ("dense", "healthy", "narrow", "breaches", "costs")
    )
    low, high = healthy["95% of the rate"]
    assert low == 0
    assert healthy["runs of a kind"] * len(healthy["kinds"]) == healthy["runs"]
    assert says(
        "probe.md", f"{healthy['runs']} runs of right parametrizations raised {healthy['with an alarm']} alarms"
    )
    assert says("probe.md", "right parametrizations", f"{100 * high:.1f}%")
    assert says("probe.md", f"as did {narrow['runs']} with many vectors, or attention and SGD")
    assert narrow["with an alarm"] == 0
    power = breaches["power"].values()
    runs, named, alone = (sum(of[what] for of in power) for what in ("runs", "named", "as the only alarm"))
    assert says("probe.md", f"Of {len(power)} kinds of breaches", f"{named} of {runs} were named", "in one alarm")
    assert alone == named
    assert all(of["factors that mend"] == [of["factor planted"]][: of["factor planted"] is not None] for of in power)
    count, share = dense["exponents"], 100 * dense["one run: part within 0.1"]
    seeds = dense["runs"] * dense["seeds of a run"]
    near = f"{dense['within 0.1']} are within 0.1"
    as_they_are = f"unless sums are seen, {dense['within 0.1 as they are']}."
    assert says("probe.md", f"Of {count} powers from {seeds} seeds", near, f"of eight seeds {share:.0f}%", as_they_are)
    assert dense["intervals of at most 0.1"] == count
    times = (costs[f"width {width}: measured over not"] for width in (512, 128))
    assert says("probe.md", *(f"{number:.0f} times" for number in times))
    seconds, millions = costs["CPU seconds of a report"], int(costs["million parameters"])
    assert says("probe.md", f"{millions} million parameters {seconds:.0f} CPU seconds with {costs['tokens']} tokens")
