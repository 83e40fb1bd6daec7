"""Causes that `predict --logged` lists for step 1 of small GPT-2s and Llamas in which a mistake is planted.

    python -m bench.planted_logs TEXTS OUT.json

TEXTS holds one file NAME.txt for each text: token ids below 50257, separated by white space. They are from GPT-2's
tokenizer, in the order of their frequency, for the first 1.2 MB of a text with its line breaks. The texts, networks and
seeds were committed before any log was judged. The script needs transformers, and takes two hours on one core.
The stored results are from separate scripts with the same steps, before the last edits of the rule.

The first six texts are files of Debian 12. They are release notes of Git, every third changelog.Debian.gz by name,
docstrings of SciPy, every third module of Perl, licences of base-files, and Vim's help. Three texts were fixed after
these had been judged. They are Rust's reference without HTML tags, docstrings of SymPy, and every second file of
/usr/include/linux. The prior of texts was chosen with these nine. The last six texts were fixed before it. They are
manual pages of sections 5, 7 and 8 as `man` prints them, Clippy's lints without HTML tags, and Markdown files of npm.
The others are docstrings of torch and pandas, and README and NEWS files of Debian 12.
"""

import json
import math
import re
import sys
import tempfile
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
from gradbounds.described_network import Description

TEXTS = ("relnotes", "changelogs", "scipydocs", "perlmods", "licences", "vimhelp", "rustref", "sympydocs", "headers",
         "man578", "clippy", "npmdocs", "torchdocs", "pandasdocs", "readmes")  # fmt: skip
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


def logs(folder: Path) -> Iterator[tuple[str, str, str, dict[str, float]]]:
    """Yield text, network, planted mistake and numbers of every log."""
    for row, text in enumerate(TEXTS):
        ids = np.array((folder / f"{text}.txt").read_text().split(), dtype=int)
        for column, network in enumerate(NETWORKS):
            for run, (planted, times) in enumerate(DEVIATIONS.items()):
                numbers = step_one(network, ids, 1000 * row + 100 * column + run, times)
                yield text, network, planted, numbers
                for wrong, factor in FACTORS.items() if planted == "healthy" else ():
                    yield (
                        text,
                        network,
                        wrong,
                        {key: value * (1.0 if key == "loss" else factor) for key, value in numbers.items()},
                    )


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
    return {
        "verdict": {True: "as predicted", False: "off", None: "undecided"}[result.values["as_it_should_be"]],
        "listed": planted != "healthy" and any(names(planted, line) for line in lines),
        "among three": planted != "healthy" and any(names(planted, line) for line in lines[:3]),
    }


def main() -> None:
    """Judge every log twice, by loss and norm alone and with the norms of all matrices; count by mistake."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = [
        {"text": text, "network": network, "planted": planted, "numbers": kind, **judged(network, planted, shown)}
        for text, network, planted, numbers in logs(Path(sys.argv[1]))
        for kind, shown in (
            ("loss and norm", {key: numbers[key] for key in ("loss", "grad_norm")}), ("all matrices", numbers)
        )
    ]  # fmt: skip
    table = {
        kind: {
            planted: {
                "logs": len(same), "listed": sum(row["listed"] for row in same),
                "among three": sum(row["among three"] for row in same),
                **Counter(row["verdict"] for row in same),
            }
            for planted in (*DEVIATIONS, *FACTORS)
            if (same := [row for row in rows if (row["numbers"], row["planted"]) == (kind, planted)])
        }
        for kind in ("loss and norm", "all matrices")
    }  # fmt: skip
    missed = [
        " ".join((row["text"], row["network"], row["planted"], row["numbers"]))
        for row in rows
        if (row["verdict"] == "off" if row["planted"] == "healthy" else not row["listed"])
    ]
    Path(sys.argv[2]).write_text(json.dumps({"table": table, "missed": missed}, indent=1) + "\n")


if __name__ == "__main__":
    main()
