"""Bad input on the command line: one clear line, exit code 2, no traceback, nothing lost or half-written."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gradbounds.cli import main
from gradbounds.commands.claims import Claims


def call(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "gradbounds", *map(str, arguments)],
        capture_output=True, text=True, check=False, cwd=cwd, env=os.environ | {"COLUMNS": "60"},
    )  # fmt: skip


BAD = [
    (("predict", "--width", "0"), "width must be an integer of at least 2, got 0."),
    (
        ("predict", "--width", "x"),
        "Error parsing --width: width must be an integer, such as 512 or 1e6, got 'x'",
    ),
    (("predict", "--width", "1e20"), "width must be at most 9007199254740992, got 100000000000000000000."),
    (("predict", "--width", "2.5"), "width must be an integer of at least 2, got 2.5."),
    (("predict", "--depth", "100000000"), "depth must be at most 100000, got 100000000."),
    (
        ("predict", "--output-scale", "1e-200"),
        "--output-scale must be a positive finite number, from 1e-100 to 1e100, got",
    ),
    (("predict", "--depth", "-1"), "depth must be an integer of at least 1, got -1."),
    (
        ("predict", "--output-scale", "nan"),
        "--output-scale must be a positive finite number, from 1e-100 to 1e100, got nan.",
    ),
    (
        ("predict", "--bound", "--activation", "gelu"),
        "Theorem 1 requires the paper's setting, got activation = gelu. Without --bound, gradbounds predict prints",
    ),
    (("predict", "--dropout", "1"), "dropout must be a number in [0, 1), got 1.0."),
    (
        ("predict", "--input-gram", "[[1, 2], [2, 1]]"),
        "--input-gram must be a symmetric positive semidefinite matrix",
    ),
    (("sweep", "--out", "NEW", "--engine", "conditioned", "--initialization", "pytorch"), "engine must be 'dense' for"),
    (("sweep", "--out", "NEW", "--labels", "zipf", "--text", "FULL/thesis.tex"), "text must have at least tokens + 1"),
    (("predict", "--like", "lama-3-8b"), "got 'lama-3-8b'. Did you mean llama-3-8b?"),
    (("predict", "--like", "gpt2", "--drawn-by", "noex"), "nanochat, got 'noex'. Did you mean neox?"),
    (("predict", "--drawn-by", "neox"), "--drawn-by requires --config or --like, got 'neox' without them."),
    (("predict", "--like", "gpt2", "--config", "x"), "--config cannot be combined with like: give one of them."),
    (("predict", "--config", "FULL/thesis.tex"), "config must be JSON, but 'FULL/thesis.tex' is not: "),
    (("sweep", "--like", "lama-3-8b", "--out", "x"), "got 'lama-3-8b'. Did you mean llama-3-8b?"),
    (("sweep", "--ignore", "x", "--out", "NEW"), "--ignore requires --config or --like, got x without them."),
    (("predict", "--compare", "placment=peri"), "as placement=peri, got 'placment=peri'. Did you mean placement=peri?"),
    (("predict", "--compare", "norm=Peri-LN"), "got 'norm=Peri-LN'. Did you mean placement=peri?"),
    (("predict", "--compare", "peri"), "got 'peri'. Did you mean placement=peri?"),
    (
        ("predict", "--like", "gpt2", "--learning-rate", "1", "--adam-epsilon", "-1"),
        "--adam-epsilon must be a number from 0 to 1e+100, got -1.0.",
    ),
    (
        ("predict", "--like", "gpt2", "--learning-rate", "1", "--adamw-rate", "1"),
        "--adamw-rate requires the optimizer muon, got adam sgd.",
    ),
    (
        ("predict", "--like", "gpt2", "--learning-rate", "1", "--optimizer", "muon", "--adamw-rate", "0.31"),
        "--adamw-rate must be a number from 0 to 0.3 (0.3 times --learning-rate, the largest measured), got 0.31.",
    ),
    (("predict", "--logged", "log"), "--logged requires --batch or --like or --config, got"),
    (("predict", "--like", "gpt2", "--logged", "a", "b", "--dry-run"), "--dry-run cannot be combined with two logs"),
    (("predict", "--compare", "depth=4,x"), "depth must be an integer, such as 512 or 1e6, got 'x'."),
    (("predict", "--compare", "depth=x"), "depth must be an integer, such as 512 or 1e6, got 'x'."),
    (
        ("predict", "--compare", "width=8", "--compare", "depth=2"),
        "--compare must be given once, followed by all its values",
    ),
    (("probe", "encoder-pre", "--depth", "1000000"), "--depth must be at most 100000, got 1000000."),
    (("predict", "--widht", "3"), "Unrecognized options: --widht, 3. Did you mean --width?"),
    (("predict", "--seq-len", "8"), "Unrecognized options: --seq-len, 8. Did you mean --tokens?"),
    (("predict", "--batch_size=8"), "Did you mean --batch?"),
    (("predict", "--lr", "1"), "Did you mean --learning-rate?"),
    (("predict", "--compare", "sequence_length=8"), "Did you mean tokens?"),
    (("predict", "--placement", "sideways"), "placement must be one of 'post', "),
    (("predict", "--tokens", "x"), "tokens must be an integer, such as 512 or 1e6, got 'x'."),
    (("predict", "--tokens", "8", "16"), "Unrecognized options: 16. Give several values as --compare tokens=8,16."),
    (("predict", "--like", "gpt2", "--kv-heads", "1", "2", "--draws", "3"), "as --compare kv_heads=1,2. See "),
    (
        ("predict", "--like", "gpt2", "--learning-rate", "1", "--draws", "3", "--layers"),
        "--learning-rate cannot be combined with --draws, --layers; it concerns only step",
    ),
    (
        ("predict", "--like", "gpt2", "--learning-rate", "1", "--first-step", "--sequences", "3"),
        "--learning-rate cannot be combined with --first-step, --sequences; it concerns only step 1.",
    ),
    (
        ("predict", "--like", "gpt2", "--learning-rate", "1", "--bound"),
        "--learning-rate cannot be combined with --bound; it concerns only step 1.",
    ),
    (
        ("predict", "--like", "gpt2", "--learning-rate", "1e308"),
        "--learning-rate must be a number from 1e-100 to 1e+100, got 1e+308.",
    ),
    (
        ("predict", "--bound", "--draws", "4"),
        "--bound cannot be combined with --draws; it concerns the theory of one network.",
    ),
    (
        ("predict", "--bound", "--query-key-scale", "0.5"),
        "gradbounds claims T1 --all lists measurements of the bound where",
    ),
    (("predict", "--bound", "--dry-run"), "--dry-run cannot be combined with --bound, which take seconds."),
    (("predict", "--tokens", "0"), "tokens must be an integer of at least 1, got 0."),
    (("predict", "--vocab", "1"), "vocab must be an integer of at least 2, got 1."),
    (
        ("predict", "--output-scale", "-1"),
        "--output-scale must be a positive finite number, from 1e-100 to 1e100, got -1.0.",
    ),
    (
        ("predict", "--output-scale", "inf"),
        "--output-scale must be a positive finite number, from 1e-100 to 1e100, got inf.",
    ),
    (("predict", "--width", "x"), "Error parsing --width"),
    (
        ("sweep", "--preset", "compare", "--out", "new", "--branch-scale", "0"),
        "--branch-scale must be above 0, because branches without output",
    ),
    (
        ("sweep", "--preset", "compare", "--out", "new", "--placement", "post", "rezero"),
        "must be above 0, because branches without output",
    ),
    (("predict", "--branch-scale", "none"), "--branch-scale must be a number or 'own', got 'none'."),
    (("predict", "--width"), "--width"),
    (("predict", "--bound", "--latex", "yes"), "Unrecognized options: yes"),
    (("sweep", "--out", "NEW", "--draws", "0"), "draws must be an integer of at least 1, got 0."),
    (("sweep", "--out", "NEW", "--seed", "-1"), "seed must be an integer of at least 0, got -1."),
    (("sweep", "--out", "NEW", "--workers", "0"), "workers must be an integer of at least 1, got 0."),
    (("sweep", "--out", "NEW", "--text", "missing.txt"), "text must be a readable file, got 'missing.txt'"),
    (("sweep", "--out", "NEW", "--device", "abacus"), "device must be 'cpu', 'cuda' or 'cuda:N', got 'abacus'."),
    (("sweep", "--out", "NEW", "--device", "cuda:99"), "device must be one that this machine has"),
    (("sweep", "--out", "NEW", "--dtype", "int8"), "invalid choice 'int8' for argument '--dtype'"),
    (("sweep", "--out", "NEW", "--engine", "magic"), "invalid choice 'magic' for argument '--engine'"),
    (("sweep", "--out", "/proc/nowhere/run"), "out must be writable"),
    (("sweep", "--out", "FULL"), "out must be a new or empty folder"),
    (
        ("sweep", "--out", "FULL/thesis.tex"),
        "--out must be writable, but 'FULL/thesis.tex' is not: File",
    ),
    (("sweep", "--out", "FULL/thesis.tex/deeper"), "out must be writable"),
    (("sweep", "--out", "NEWER"), "run must have format 1, but 'NEWER' has 2"),
    (("sweep", "--out", "BROKEN"), "'BROKEN' has no readable manifest.toml"),
    (("sweep",), "out must be given: --out FOLDER saves the draws"),
    (
        ("sweep", "--out", "OLD", "--width", "9", "--depth", "1"),
        "'OLD' holds another run (other cells); choose another",
    ),
    (("sweep", "--out", "NEW", "--file", "missing.toml"), "file must be a readable TOML file, got 'missing.toml'"),
    (("sweep", "--out", "NEW", "--file", "FULL"), "file must be a readable TOML file, got 'FULL'"),
    (
        ("sweep", "--out", "NEW", "--file", "FULL/thesis.tex", "--preset", "wide"),
        "--file cannot be combined with --preset",
    ),
    (("sweep", "--out", "NEW", "--preset", "huge"), "for argument '--preset'. Expected one of ('"),
    (
        ("sweep", "--preset", "compare", "--dtype", "float64"),
        "cannot be combined with --dtype; it accepts fields, a model",
    ),
    (("sweep", "--out", "NEW", "--draws", "many"), "Error parsing --draws"),
    (
        ("sweep", "--out", "NEW", "--land-every", "-1"),
        "--land-every must be a number of seconds of at least 0, got -1.0",
    ),
    (
        ("sweep", "--out", "NEW", "--land-every", "nan"),
        "--land-every must be a number of seconds of at least 0, got nan",
    ),
    (("sweep", "--out", "x", "--draws", "0"), "draws must be an integer of at least 1, got 0."),
    (("sweep", "--out", "x", "--workers", "-2"), "workers must be an integer of at least 1, got -2."),
    (("sweep", "--out", "NEW", "--text", "FULL"), "text must be a readable file, got 'FULL'"),
    (("sweep", "--out", "NEW", "--text", "SHORT"), "text must have at least tokens + 1 = 9 words, but 'SHORT' has 2"),
    (("sweep", "--out", "NEW", "--text", "LATIN"), "text must be UTF-8, but 'LATIN' is not"),
    (("sweep", "--out", "NEW", "--device", "cpu:1"), "device must be 'cpu', 'cuda' or 'cuda:N', got 'cpu:1'."),
    (("sweep", "--out", "NEW", "--device", "cuda:x"), "device must be 'cpu', 'cuda' or 'cuda:N', got 'cuda:x'."),
    (("runs", "NEW"), "run must be a run folder or a folder of run folders, but 'NEW' holds none"),
    (("runs", "FULL"), "run must be a run folder or a folder of run folders, but 'FULL' holds none"),
    (("runs", "NEWER"), "run must have format 1, but 'NEWER' has 2"),
    (("predict", "--out", ""), "--out must be a path, got ''; write '.' for the current folder."),
    (("check", "EMPTY"), "run must hold draws, but 'EMPTY' has none"),
    (("check", "CUT"), "is damaged; move the file away"),
    (("check", "BROKEN"), "'BROKEN' has no readable manifest.toml"),
    (("check", "OLD", "--strict", "maybe"), "Unrecognized options: maybe"),
    (("figures", "OLD", "--out", "FULL/thesis.tex"), "out must be writable"),
    (("figures", "EMPTY", "--out", "NEW"), "run must hold draws, but 'EMPTY' has none"),
    (("frobnicate",), "Unrecognized options: frobnicate"),
    (
        (),
        "Expected one of {verify, predict, explore, sweep, check, figures, probe, claims, runs",
    ),
    (("check",), "(required)"),
    (("check", "NEW"), "run must be a folder that `gradbounds sweep` wrote"),
    (("check", "FULL"), "run must be a folder that `gradbounds sweep` wrote"),
    (("figures", "NEW", "--out", "OUT"), "run must be a folder that `gradbounds sweep` wrote"),
    (("verify", "--draws", "31"), "draws must be an integer of at least 32, got 31."),
    (("verify", "--text", "missing.txt"), "text must be a readable file"),
    # Absurd numbers, deep nesting, foreign files, escapes of a terminal.
    (("sweep", "--out", "NEW", "--draws", "1e30"), "draws must be at most 1099511627776, got 1000"),
    (("sweep", "--out", "NEW", "--workers", "1e9"), "workers must be at most 4096, got 1000000000."),
    (("sweep", "--out", "NEW", "--seed", "1e19"), "seed must be at most 9223372036854775807, got"),
    (("sweep", "--out", "NEW" * 100), "is not: File name too long."),
    (("sweep", "--" + "x" * 10**5), "letters) ... "),
    (("predict", "--draws", "1e30"), "draws must be at most"),
    (("predict", "--patterns", "1e12"), "patterns must be at most 1000000"),
    (("predict", "--ffn-ratio", "1e308"), "--ffn-ratio must be a positive finite number, from 1e-100 to 1e100, got"),
    (("predict", "--norm-epsilon", "1e308"), "--norm-epsilon must be a number from 0 to 1e10, got 1e+308."),
    (
        ("predict", "--residual-scale", "1e308"),
        "--residual-scale must be a number from 0 to 1e100, or None (own",
    ),
    (("predict", "--input-gram", "[" * 10**5), "--input-gram must be a symmetric positive semidefinite matrix"),
    (("predict", "--mask", "given", "--mask-rows", "[" * 10**5), "--mask-rows must be a square matrix of 0 and 1"),
    (("predict", "--config", "DEEP.json"), "--config must be JSON, but 'DEEP.json' is not: it is nested too deeply."),
    (("predict", "--config", "LATIN"), "--config must be JSON, but 'LATIN' is not: it is not UTF-8 (byte 2)."),
    (("predict", "--config", "INFINITE.json"), "n_embd must be a number, got inf."),
    (("predict", "--config", "HUGE.json"), "n_embd must be a number, got inf."),
    (
        ("predict", "--config", "EVIL.json"),
        "got \\x1b[2Jnum_key_value_heads = 1, with an unknown effect at initialization; --ignore ",
    ),
    (("predict", "--config", "/dev/zero"), "--config must be a readable JSON file, got '/dev/zero': it is a device."),
    (("predict", "--out", "/proc/nowhere"), "--out must be writable, but '/proc/nowhere' is not"),
    (
        ("sweep", "--file", "DEEP.toml", "--out", "x"),
        "--file must be TOML, but 'DEEP.toml' is not: it is nested",
    ),
    (("predict", "--bound", "--placement", "preln"), "got 'preln'. Did you mean pre?"),
    (("claims", "W33"), "got 'W33'. Did you mean W3?"),
    (("claims", "Peri-LN"), "got 'Peri-LN'. docs/theory.md describes Peri-LN."),
    (("predict", "--ffn", "SwiGLU"), "). SwiGLU is ffn gated with activation silu. See gradbounds"),
    (("predict", "--activation", "reglu"), "got 'reglu'. ReGLU is ffn gated with activation relu."),
    (("predict", "--ffn", "gate"), "). Did you mean gated? See gradbounds"),
    (("probe", "encoder-poost"), "got 'encoder-poost'. Did you mean encoder-post?"),
    (("probe", "zoo.py:nanogpt"), "there is no file zoo.py in "),
    (
        ("check", "FOREIGN"),
        "'FOREIGN/blocks/000009-aaaaaaaaaaaaaaaa.parquet' is damaged",
    ),
    (("runs", "FOREIGN"), "'FOREIGN/blocks/000009-aaaaaaaaaaaaaaaa.parquet' is damaged"),
    (("runs", "SESSIONS"), "but 'SESSIONS/manifest.toml' has sessions of another kind."),
    (("runs", "STARTED"), "but 'STARTED/manifest.toml' has sessions of another kind."),
    (
        ("runs", "CHANGED"),
        "but 'CHANGED/manifest.toml' was changed or is damaged; if it was changed on purpose, remo",
    ),
    (("sweep", "--file", "CHANGED/manifest.toml", "--out", "x"), "but 'CHANGED/manifest.toml' was changed or is dam"),
    (("check", "NEGATIVE"), "but 'NEGATIVE/manifest.toml' has draws of another kind."),
    (
        ("probe", "encoder-pre", "--width", "8", "--depth", "1", "--against", "VARIANCE.json"),
        "variances must be at least 0, and seeds at least 1",
    ),
    (("sweep", "--file", "INF.toml", "--out", "x"), "it has a number that is not finite, inf."),
    (("sweep", "--file", "MANY.toml", "--out", "x"), "draws must be at most 1099511627776, got"),
    (("sweep", "--file", "ESCAPE.toml", "--out", "x"), "dtype, text, got \\u001b[31m."),
    # Flags that would be ignored, and names and folders that a command does not take.
    (("sweep", "--out", "NEW", "--workers", "2", "--dask", "tcp://h:1"), "--workers cannot be combined with --dask"),
    (("sweep", "--out", "NEW", "--task-seconds", "-1"), "--task-seconds must be a number of seconds of at least 0"),
    (
        ("sweep", "--out", "NEW", "--memory", "4 cats"),
        "memory must be a size above 0 with its unit, such as 500MB or 4GB, got '4 cats'",
    ),
    (("sweep", "--out", "NEW", "--memory", "0GB"), "memory must be a size above 0"),
    (
        ("sweep", "--preset", "compare", "--out", "NEW", "--placement", "sideways"),
        "must be one of 'post', 'pre', 'peri'",
    ),
    (("sweep", "--preset", "compare", "--out", "NEW", "--draws", "1"), "draws must be an integer of at least 2, got 1"),
    (("predict", "--bound", "--placement", "peri"), "the paper's setting, got placement peri"),
    (("verify", "--out", "OLD"), "holds another run"),
    (("verify", "--source", "kell"), "Did you mean keel?"),
    (("verify", "--source", "keel", "--draws", "8"), "because every statement sets its own"),
    (("claims", "T2"), "claim must be one of 'L1', 'L2a'"),
    (("claims", "T99", "--json"), "claim must be one of 'L1', 'L2a'"),
    (("claims", "KE2", "--figure", "NEW"), "figure requires"),
    (("explore", "--port", "0"), "--port must be an integer from 1 to 65535"),
    (("explore", "--port", "8000", "--out", "NEW"), "--port cannot be combined with --out"),
    (("explore", "--lectures", "NEW", "--port", "8000"), "port"),
    (("explore", "FULL"), "run must be a folder that `gradbounds sweep` wrote"),
    (("explore", "OLD", "--out", "NEW"), "cannot be combined with --out"),
]

# Values of a field on the command line; each is refused as it is in a file.
BAD_VALUES = [
    (("--placement", "sideways"), "got 'sideways'."),
    (("--placement",), "placement must have at least one value, got none."),
    (("--width",), "width must have at least one value, got none."),
    (("--width", "1"), "width must be an integer of at least 2, got 1."),
    (("--width", "64", "x"), "width must be integers, ranges like 64:4096:x2 or 2:10:+2, got 'x'."),
    (("--width", "8.5"), "width must be integers, ranges like 64:4096:x2 or 2:10:+2, got '8.5'."),
    (("--width", "64:32:x2"), "width must have a range with increasing values"),
    (("--width", "64:128:x1"), "width must have a range with increasing values"),
    (("--width", "64:128:x0.5"), "width must have a range with increasing values"),
    (("--width", "64:128:+0"), "width must have a range with increasing values"),
    (("--width", "64:128:+-1"), "width must have a range with increasing values"),
    (("--width", "0:128:x2"), "width must have a range with increasing values"),
    (("--width", "64:128:xtwo"), "width must have a range with a finite step"),
    (("--width", "64:128:xnan"), "width must have a range with a finite step"),
    (("--width", "64:128:+inf"), "width must have a range with a finite step"),
    (("--width", "64:128"), "width must be integers, ranges"),
    (("--width", "64:128:2"), "width must be integers, ranges"),
    (("--width", "a:b:x2"), "width must be integers, ranges like 64:4096:x2 or 2:10:+2, got 'a'."),
    (("--width", "64:1e-3:x2"), "width must be integers, ranges like 64:4096:x2 or 2:10:+2, got '1e-3'."),
    (("--width", "2:9000000:+1"), "width must have a range of at most 1000000 values"),
    (("--width", "2:2000:+1", "--vocab", "2:2000:+1"), "grid must have at most 1000000 cells, got 7992002"),
    (("--depth", "0"), "depth must be an integer of at least 1, got 0."),
    (("--tokens", "-3"), "tokens must be an integer of at least 1, got -3."),
    (("--vocab", "depth"), "vocab must be integers, ranges like 64:4096:x2 or 2:10:+2, 'width', got 'depth'."),
    (("--vocab", "1"), "vocab must be an integer of at least 2, got 1."),
    (("--output-scale", "0"), "--output-scale must be a positive finite number, from 1e-100 to 1e100, got 0.0."),
    (
        ("--output-scale", "big"),
        "--output-scale must be numbers, ranges like 64:4096:x2 or 2:10:+2, 'sqrt-width', got 'big'",
    ),
    (("--output-scale", "nan"), "--output-scale must be a positive finite number, from 1e-100 to 1e100, got nan."),
    (("--output-scale", "1:nan:x2"), "--output-scale must have a range with increasing values"),
    (("--output-scale", "1:inf:x2"), "--output-scale must have a range"),
    (("--width", "8", "16", "--depth", "1", "--zip", "width,depth"), "zip must join fields with equally many values"),
    (("--width", "8", "--zip", "width,height"), "zip must name fields with values in the grid, got 'height'."),
    (("--width", "8", "--zip", "width,depth"), "zip must name fields with values in the grid, got 'depth'."),
    (("--width", "8", "--zip", "width,width"), "zip must name a field once, got 'width' twice."),
    (
        ("--width", "8", "--depth", "1", "--zip", "width,depth", "depth"),
        "zip must name a field once, got 'depth' twice.",
    ),
    (("--zip", ""), "zip must name fields with values in the grid, got ''."),
]
BAD += [(("sweep", "--out", "NEW", *arguments), message) for arguments, message in BAD_VALUES]

BAD_FILES = [
    (
        "width = 8",
        "file must have keys grid, draws, seed, engine, device, dtype, text, got width (fields of the network",
    ),
    ("drawz = 8", "file must have keys grid, draws, seed, engine, device, dtype, text, got drawz."),
    ("draws = ", "file must be TOML, but"),
    ("[grid]\nwidth = 8\nwidth = 16", "file must be TOML, but"),
    ("draws = 'many'", "draws must be an integer, got 'many'."),
    ("draws = true", "draws must be an integer, got True."),
    ("draws = 2.5", "draws must be an integer, got 2.5."),
    ("draws = 0", "draws must be an integer of at least 1, got 0."),
    ("seed = -1", "seed must be an integer of at least 0, got -1."),
    ("seed = [1]", "seed must be an integer, got [1]."),
    ("engine = 'magic'", "engine must be 'auto' or 'conditioned' or 'dense' or 'gram', got 'magic'."),
    ("engine = 1", "engine must be a string, got 1."),
    ("dtype = 'int8'", "dtype must be 'float32' or 'float64', got 'int8'."),
    ("device = 'abacus'", "device must be 'cpu', 'cuda' or 'cuda:N', got 'abacus'."),
    ("text = 'missing.txt'", "text must be a readable file, got 'missing.txt'"),
    ("grid = 8", "grid must be a table [grid] or several [[grid]]"),
    ("grid = []", "grid must be a table [grid] or several [[grid]]"),
    (
        "[grid]\nheight = 8",
        "output_transform and zip, got height.",
    ),
    ("[grid]\nwidht = 8", "and zip, got widht. Did you mean width?"),
    ("drawz = 8", "text, got drawz. Did you mean draws?"),
    ("[grid]\nwidth = []", "width must have at least one value, got none."),
    ("[grid]\nwidth = true", "width must be integers, ranges"),
    ("[grid]\nwidth = 8.5", "width must be integers, ranges"),
    ("[grid]\nwidth = [[8]]", "width must be integers, ranges"),
    ("[grid]\nwidth = {a = 1}", "width must be integers, ranges"),
    ("[grid]\nplacement = 3", "placement must be given as text, got 3."),
    ("[grid]\nplacement = ['post', 'mid']", "got 'mid'."),
    ("[grid]\nzip = 'width'", "zip must be a list of lists of fields"),
    ("[grid]\nwidth = 8\nzip = ['width']", "zip must be a list of lists of fields"),
    ("[grid]\nwidth = 8\nzip = [[1]]", "zip must name fields with values in the grid, got 1."),
    ("[grid]\nwidth = 8\nzip = [[['width']]]", "zip must name fields with values in the grid, got ['width']."),
    ("[recipe]\ndrawz = 1", "file must have keys grid, draws"),
    ("\x00", "file must be TOML, but"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs that are damaged, empty, changed or of a later version, and files that are not what a flag asks for."""
    place = tmp_path_factory.mktemp("folders")
    assert main(["sweep", "--width", "8", "--depth", "1", "--draws", "1", "--out", str(place / "OLD")]) == 0
    for name in ("CUT", "EMPTY", "NEWER", "BROKEN"):
        shutil.copytree(place / "OLD", place / name)
    (file,) = (place / "CUT" / "blocks").iterdir()
    file.write_bytes(file.read_bytes()[:-50])
    shutil.rmtree(place / "EMPTY" / "blocks")
    manifest = (place / "OLD" / "manifest.toml").read_text().partition("\n")[2]  # without its digest
    (place / "NEWER" / "manifest.toml").write_text(manifest.replace("format = 1", "format = 2"))
    (place / "BROKEN" / "manifest.toml").write_text(manifest[:30] + "[[[")
    (place / "FULL").mkdir()
    (place / "FULL" / "thesis.tex").write_text("irreplaceable")
    os.mkfifo(place / "PIPE")
    (place / "SHORT").write_text("two words")
    (place / "LATIN").write_bytes("Zwölf Boxkämpfer ".encode("latin-1") * 9)
    shutil.copytree(place / "OLD", place / "FOREIGN")
    pq.write_table(
        pa.table({"cell": ["a"], "x": [1]}), place / "FOREIGN" / "blocks" / "000009-aaaaaaaaaaaaaaaa.parquet"
    )
    shutil.copytree(place / "OLD", place / "SESSIONS")
    for name, was, now in (("STARTED", "started = .*", "started = 7"), ("NEGATIVE", "(?m)^draws = 1$", "draws = -3")):
        (place / name).mkdir()
        (place / name / "manifest.toml").write_text(re.sub(was, now, manifest))
    shutil.copytree(place / "OLD", place / "CHANGED")
    (place / "CHANGED" / "manifest.toml").write_text(
        (place / "OLD" / "manifest.toml").read_text().replace("draws = 1\n", "draws = 2\n")
    )
    columns = ["width", "depth", "part", "layer", "parameter", "quantity", "mean", "variance", "seeds"]
    kept = {"format": 1, "name": "one", "columns": columns, "rows": [[8, 1, "", 0, "", "loss", 0.0, -1.0, 2]]}
    (place / "VARIANCE.json").write_text(json.dumps(kept))
    (place / "SESSIONS" / "manifest.toml").write_text("sessions = 5\n" + manifest.partition("[[sessions]]")[0])
    config = '{"model_type": "gpt2", "n_embd": %s, "n_layer": 2, "n_head": 4, "vocab_size": 100%s}'
    (place / "DEEP.json").write_text("[" * 10**5)
    (place / "DEEP.toml").write_text("a = " + "[" * 10**5)
    (place / "INF.toml").write_text("draws = inf")
    (place / "MANY.toml").write_text("draws = 1" + "0" * 30 + "\n[grid]\nwidth = 8")
    (place / "ESCAPE.toml").write_text(r'"\u001b[31m" = 1')
    (place / "INFINITE.json").write_text(config % ("Infinity", ""))
    (place / "HUGE.json").write_text(config % ("1e400", ""))
    (place / "EVIL.json").write_text(config % ("64", r', "auto_map": {}, "\u001b[2Jnum_key_value_heads": 1'))
    return place


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"}


def refused(capsys, arguments, message):
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("gradbounds: ")
    assert message in line
    assert line.isprintable() and len(line) < 2100


@pytest.mark.parametrize(("content", "message"), BAD_FILES, ids=lambda v: repr(v)[:40])
def test_bad_files_are_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text(content)
    refused(capsys, ("sweep", "--out", "NEW", "--file", "sweep.toml"), message)
    assert not (tmp_path / "NEW").exists()


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda v: " ".join(v)[:60] if isinstance(v, tuple) else "")
def test_bad_input_is_one_line_and_exit_code_2(folders, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(folders)
    before = contents(folders)
    refused(capsys, arguments, message)
    assert contents(folders) == before, "a refused command left something behind, or lost something"
    assert not (folders / "NEW").exists()


@pytest.mark.parametrize("command", ["claims", "predict"])
def test_a_stream_that_was_closed_is_one_line(monkeypatch, capsys, command):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    assert main([command]) == 2
    assert capsys.readouterr().err == "gradbounds: I/O operation on closed file\n"


def test_no_traceback_in_a_process_of_its_own():
    done = call("check", "nowhere")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a file that takes nothing")
def test_a_full_disk_is_one_line_and_exit_code_2(monkeypatch):
    """Of messages too, which are lost then. What is buffered fails again when the interpreter ends."""
    command = [sys.executable, "-m", "gradbounds"]
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with open("/dev/full", "w") as full:
        done = subprocess.run([*command, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.endswith("output cannot be used: No space left on device.\n")
        assert subprocess.run([*command, "predict", "--widht"], stderr=full, check=False).returncode == 2


def test_none_is_no_choice(tmp_path, capsys):
    assert main(["sweep", "--preset", "huge", "--out", str(tmp_path / "no")]) == 2
    assert "None" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [np.linalg.LinAlgError("not definite"), torch.linalg.LinAlgError("not definite"), FloatingPointError()]
)
def test_a_failed_calculation_is_one_line_that_names_the_network(monkeypatch, capsys, error):
    monkeypatch.setattr("theory.mean_field.recursion.feed_forward", mock.Mock(side_effect=error))
    assert main(["predict", "--like", "gpt2", "--tokens", "4", "--depth", "1"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("gradbounds: ")]
    said = "`gradbounds predict --like gpt2 --tokens 4 --depth 1`: in theory.mean_field.recursion, "
    assert said + (str(error) or "FloatingPointError") in line
    assert line.endswith("please report this line.")


@pytest.mark.parametrize(("error", "message"), [
    (MemoryError("Unable to allocate 6 GiB"), "not enough memory (Unable"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "not enough memory"),
    (OSError(36, "File name too long", "a" * 10**5), "cannot be used: File name too long."),
    (RecursionError("maximum recursion depth exceeded"), "input is nested too deeply; reduce its nesting."),
    (OverflowError("too large"), "numbers are too extreme: the calculation ends in Overflow"),
])  # fmt: skip
def test_what_the_machine_refuses_is_one_line(monkeypatch, capsys, error, message):
    monkeypatch.setattr(Claims, "run", mock.Mock(side_effect=error))
    refused(capsys, ["claims"], message)


def test_an_error_of_ours_is_none_of_the_user_s(monkeypatch):
    monkeypatch.setattr(Claims, "run", mock.Mock(side_effect=RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        main(["claims"])


def test_what_a_command_prints_does_nothing_to_a_terminal(tmp_path, capsys):
    out = tmp_path / "\x1b[31mred\x9b\u202e"
    assert main(["sweep", "--width", "8", "--depth", "1", "--draws", "1", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "\\u001b[31mred\\u009b\\u202e" in said
    assert said.replace("\n", "").isprintable()
    assert out.is_dir(), "the name itself stays as it was given"


def test_a_closed_stdout_is_no_error(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    assert main(["claims"]) == 0
