"""The page about probing: its numbers are the committed ones, and its examples run."""

import json
import re
from pathlib import Path

import pytest

from gradbounds.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "probe.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())


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
    assert f"probing adds {' to '.join(sorted(added[512], key=len))} to forward and backward" in WORDS.replace(
        "5%", "5%"
    )
    assert f"most of the work, {' to '.join(sorted(added[16]))} (bench" in WORDS
    folder = ROOT / "tests" / "evidence"
    found = json.loads((folder / "probing-exponents.json").read_text(encoding="utf-8"))["exponents"]
    post, pre = (found[f"encoder-{placement}, W2"] for placement in ("post", "pre"))
    assert f"are {post['measured']:.3f} (theory {post['predicted']:.3f}) for Post-LN" in WORDS
    assert f"and ${pre['measured']:.3f}$ (theory ${pre['predicted']:.3f}$) for Pre-LN" in WORDS
    alarms = json.loads((folder / "probing.json").read_text(encoding="utf-8"))
    assert set(alarms["named, of 20"].values()) == {20}
    assert set(alarms["alarms of 100 healthy modules"].values()) == {0}


def test_the_numbers_of_whole_models_are_the_committed_ones():
    folder = ROOT / "tests" / "evidence"
    healthy = json.loads((folder / "probe-healthy.json").read_text(encoding="utf-8"))
    power = json.loads((folder / "probe-faults.json").read_text(encoding="utf-8"))["power"]
    alone, beside = (healthy[kind]["all"] for kind in ("by itself", "against a reference"))
    assert f"of {healthy['all runs']} healthy runs of Llama" in WORDS
    assert f"{alone} raised an alarm by themselves" in WORDS
    assert f"and {beside} against a reference of eight seeds" in WORDS
    runs, alone_named, against_named = (
        [sum(fault[kind]["named"] for fault in group) if kind else sum(fault["runs"] for fault in group)
         for group in (list(power.values())[:8], list(power.values())[8:])]
        for kind in ("", "by itself", "against a reference")
    )  # fmt: skip
    assert f"{alone_named[0]} of {runs[0]} runs named it by themselves" in WORDS
    assert (
        f"{alone_named[1]} of {runs[1]} were noticed without a reference, and {against_named[1]} of {runs[1]} with one"
        in WORDS
    )


@pytest.mark.parametrize("name", ["healthy", "broken"])
def test_the_examples_say_what_the_page_says(tmp_path, monkeypatch, capsys, name):
    """Verdicts and alarms; numbers to rounding on another CPU are not compared."""
    code = re.search(r"```python\n# mine.py\n(.*?)```", PAGE, re.S)
    module = f"mine_{name}"
    (tmp_path / f"{module}.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    assert main(["probe", f"{module}:{name}", "--width", "128", "--depth", "8", "16", "32", "--seeds", "8"]) == 0
    said = capsys.readouterr().out
    shown = re.findall(r"```text\n(.*?)```", PAGE, re.S)[name == "broken"]

    def verdicts(text):
        return [
            re.sub(r"[\d.]+|-(?=\d)", "#", line)
            for line in text.splitlines()
            if line.startswith(("ALARM", "No alarm", "0 is"))
        ]

    assert verdicts(shown) == verdicts(said)
    assert verdicts(shown)
