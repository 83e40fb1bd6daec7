"""Causes that `predict --logged` lists for step 1 of small GPT-2s and Llamas in which a mistake is planted.

    python -m bench.planted_logs TEXTS OUT.json

TEXTS holds one file NAME.txt for each text: token ids of GPT-2's tokenizer between blanks. They are of the first 1.2 MB
of a text with its line breaks. Texts without a file are omitted. Texts, networks and seeds were fixed before any log
was judged. The script needs transformers. A text takes 160 CPU seconds, and seven texts 822.

The first six texts are files of Debian 12. They are release notes of Git, every third changelog.Debian.gz by name,
docstrings of SciPy, every third module of Perl, licences of base-files, and Vim's help. Three texts were fixed after
these had been judged. They are Rust's reference without HTML tags, docstrings of SymPy, and every second file of
/usr/include/linux. The prior of texts was chosen with these nine. Six texts were fixed before it. They are manual pages
of sections 5, 7 and 8 as `man` prints them, Clippy's lints without HTML tags, and Markdown files of npm. The others are
docstrings of torch and pandas, and README and NEWS files of Debian 12. Two new texts were fixed before the sizes of a
padded vocabulary shared one prior, and then all codes. They were judged after each of these two changes. They are the
Debian Reference without HTML tags and indents, and the Markdown files of Debian's package anarchism without the
addresses of links.

The stored results are from seven texts of the last two lists, which were collected anew in December 2026 with other
versions of some packages.
"""

import json
import math
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy

from gradbounds.actions.logged import predict_logged
from gradbounds.budget import each_once
from gradbounds.described_network import Description

LISTS = {
    "first nine": ("relnotes", "changelogs", "scipydocs", "perlmods", "licences", "vimhelp", "rustref", "sympydocs",
                   "headers"),
    "held out": ("man578", "clippy", "npmdocs", "torchdocs", "pandasdocs", "readmes"),
    "new": ("debianref", "anarchism"),
}  # fmt: skip
TEXTS = tuple(text for texts in LISTS.values() for text in texts)
WIDTH, TOKENS, SEQUENCES, VOCAB = 128, 64, 32, 50257
NETWORKS = {
    "gpt2-2": ("gpt2", 2, True), "gpt2-6": ("gpt2", 6, True), "llama-2-tied": ("llama", 2, True),
    "llama-6-tied": ("llama", 6, True), "llama-2": ("llama", 2, False), "llama-4": ("llama", 4, False),
}  # fmt: skip
DEVIATIONS = {"healthy": 1.0, "twice": 2.0, "half": 0.5}
FACTORS = {"accumulated": 4.0, "sum": float(TOKENS)}
"""Factors of a healthy gradient: of a sum over 4 steps of accumulation, and of one over the tokens of a sequence."""
NAMES = {
    "twice": "all weights have twice", "half": "all weights have half", "sum": f"gradient is a sum over the {TOKENS} ",
}  # fmt: skip
ADDED = re.compile(r"gradient is added up over (\d+) accumulation steps or devices(?: \((\d+) to (\d+) with)?")


def configuration(name: str) -> dict[str, Any]:
    """Return the fields of a network's config.json."""
    family, depth, tied = NETWORKS[name]
    if family == "gpt2":
        return {
            "model_type": family, "n_embd": WIDTH, "n_layer": depth, "n_head": 2, "vocab_size": VOCAB,
            "n_positions": TOKENS, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0,
        }  # fmt: skip
    return {
        "model_type": family, "hidden_size": WIDTH, "num_hidden_layers": depth, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 2 * WIDTH, "vocab_size": VOCAB,
        "max_position_embeddings": TOKENS, "tie_word_embeddings": tied, "pad_token_id": None,
    }  # fmt: skip


def step_one(name: str, ids: Any, seed: int, times: float) -> dict[str, float]:
    """Return loss and gradient norms of step 1 for weights with `times` their standard deviation, as a log has them."""
    torch.manual_seed(seed)
    fields = configuration(name)
    config = transformers.CONFIG_MAPPING[fields.pop("model_type")](
        **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} | fields
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(times)
    starts = np.random.default_rng(seed).choice((len(ids) - 1) // TOKENS, SEQUENCES, replace=False) * TOKENS
    batch = torch.from_numpy(ids[starts[:, None] + np.arange(TOKENS + 1)])
    loss = cross_entropy(model(input_ids=batch[:, :-1]).logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    squares = {key: float(value.grad.double().square().sum()) for key, value in model.named_parameters()}
    layers = {key: square**0.5 for key, square in squares.items() if ".h." in key or ".layers." in key}
    return {"loss": float(loss.detach()), "grad_norm": math.fsum(squares.values()) ** 0.5} | layers


def logs(folder: Path, network: str) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Yield text, planted mistake and numbers of every log of a network, for the texts in a folder."""
    column = [*NETWORKS].index(network)
    for row, text in enumerate(TEXTS):
        if not (file := folder / f"{text}.txt").exists():
            continue
        ids = np.array(file.read_text().split(), dtype=int)
        for run, (planted, times) in enumerate(DEVIATIONS.items()):
            numbers = step_one(network, ids, 1000 * row + 100 * column + run, times)
            yield text, planted, numbers
            for wrong, factor in FACTORS.items() if planted == "healthy" else ():
                yield text, wrong, {key: value * (1.0 if key == "loss" else factor) for key, value in numbers.items()}


def names(planted: str, line: str) -> bool:
    """Return whether a printed line names a planted mistake; a number may be the end of a range or inside it."""
    if planted != "accumulated":
        return NAMES[planted] in line or planted in DEVIATIONS and "(half or twice with" in line
    ends = ADDED.search(line)
    return bool(ends) and int(ends[2] or ends[1]) <= 4 <= int(ends[3] or ends[1])


def judged(network: str, planted: str, numbers: dict[str, float]) -> dict[str, Any]:
    """Return the verdict on a log, and whether a printed cause is the planted one."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log.jsonl"
        file.write_text(json.dumps({"step": 1} | numbers))
        result = predict_logged(
            {"tokens": TOKENS}, SEQUENCES, Description(config=configuration(network)), file, text="english",
            is_default=True, patterns=2, max_time="10m",
        )  # fmt: skip
    _, _, causes = str(result).partition("Causes that may explain")
    lines = re.findall(r"^  \S.*: loss .*, gradient norm .*$", causes, re.MULTILINE)
    place = next((1 + k for k, line in enumerate(lines) if planted != "healthy" and names(planted, line)), 0)
    verdict = {True: "as predicted", False: "off", None: "undecided"}[result.values["as_it_should_be"]]
    return {"verdict": verdict, "place": place}


def judged_logs(folder: Path) -> Iterator[dict[str, Any]]:
    """Judge every log twice, by loss and norm alone and with the norms of all matrices."""
    for network in NETWORKS:
        with each_once():  # one prediction of a network for all its logs
            for text, planted, numbers in logs(folder, network):
                few = {key: numbers[key] for key in ("loss", "grad_norm")}
                for kind, shown in (("loss and norm", few), ("all matrices", numbers)):
                    row = {"text": text, "network": network, "planted": planted, "numbers": kind}
                    yield row | judged(network, planted, shown)
        print(network, f"{time.process_time():.0f} CPU s", flush=True)


def table(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, int]]]:
    """Count logs, listed mistakes, their places and verdicts, by the logged numbers and the planted mistake."""
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for row in rows:
        count = counts.setdefault(row["numbers"], {}).setdefault(row["planted"], Counter())
        place = row["place"]
        count.update(
            {"logs": 1, "listed": place > 0, "among three": 0 < place <= 3, "first": place == 1, row["verdict"]: 1}
        )
    return counts


def main() -> None:
    """Judge the logs of all texts in the folder, and store the counts for each list of texts."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = [*judged_logs(Path(sys.argv[1]))]
    read = {row["text"] for row in rows}
    stored = {
        name: {
            "texts": [text for text in texts if text in read],
            "table": table(same := [row for row in rows if row["text"] in texts]),
            "missed": [
                " ".join((row["text"], row["network"], row["planted"], row["numbers"]))
                for row in same
                if (row["verdict"] == "off" if row["planted"] == "healthy" else not row["place"])
            ],
        }
        for name, texts in LISTS.items()
        if read.intersection(texts)
    }
    Path(sys.argv[2]).write_text(json.dumps({"CPU seconds": round(time.process_time()), **stored}, indent=1) + "\n")


if __name__ == "__main__":
    main()
