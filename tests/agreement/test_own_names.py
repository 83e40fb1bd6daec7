"""Names of one's own in samples: against theory, in keys and run folders, in other processes, in commands."""

import pickle
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from scipy.special import expit

from checks.stacks.judge import verdicts
from checks.stacks.own_claims import own_verdicts, register_claim
from checks.verdict import Verdict
from gradbounds.actions.claims import explain, list_claims
from gradbounds.cli import main
from simulate import Cell, Run, sample
from simulate.runs.execution import Execution, InProcess, sample_task
from simulate.runs.memory import BatchLimits
from simulate.runs.registrations import packed, unpack
from simulate.runs.sweep import sample_into
from tests.helpers.agreement import off
from tests.theory.test_registration import gelu, gelu_slope, softplus
from theory import (
    CLAIMS,
    Composition,
    Initialization,
    Stack,
    predict,
    register_activation,
    register_initialization,
    register_placement,
)
from theory.stack.activations import ACTIVATIONS as NAMES
from theory.stack.initializations import INITIALIZATIONS
from theory.stack.placements import COMPOSITIONS

pytestmark = pytest.mark.usefixtures("own_names")
SMALL = Stack(placement="pre", width=24, depth=2, tokens=3, vocab=8)
# The built-in claims have nothing to say on one such cell, which saves their derivations.
RELAXED = replace(SMALL, normalization="rms")


def squared_relu(u):
    return np.maximum(u, 0.0) ** 2


def squared_relu_slope(u):
    return 2 * np.maximum(u, 0.0)


def squared_relu_of_tensors(x):
    return torch.relu(x).square()


def half(depth):
    return 0.5


def small_gain(role, d_in, d_out):
    return 0.7 if role == "W2" else 1.2


def register_squared_relu():
    register_activation("own.squared_relu", squared_relu, squared_relu_slope, torch=squared_relu_of_tensors)


def register_all():
    register_squared_relu()
    composition = Composition(title="half", source="here", input_norm=True, output_norm=True, branch=half)
    register_placement("half_peri", composition)
    register_initialization("uneven", Initialization(gain=small_gain, source="here"))


@pytest.mark.parametrize("engine", ["dense", "conditioned", "gram"])
def test_a_built_in_under_another_name_has_the_same_law(engine):
    """With the key's seed: the draws are the same numbers."""
    register_activation("my_gelu", gelu, gelu_slope, torch="torch.nn.functional.gelu")
    register_placement("my_pre", COMPOSITIONS["pre"])
    register_initialization("my_he", INITIALIZATIONS["he"])
    built_in = replace(SMALL, activation="gelu", initialization="he")
    own = Cell(replace(built_in, placement="my_pre", activation="my_gelu", initialization="my_he"), engine)
    cell = Cell(built_in, engine)
    assert cell.key != own.key
    object.__setattr__(own, "key", cell.key)
    ours, theirs = (sample_task(one, 0, [0], BatchLimits())[0] for one in (own, cell))
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@pytest.mark.parametrize(("engine", "ffn", "width"), [("dense", "plain", 256), ("conditioned", "gated", 1024)])
def test_new_ones_agree_with_theory(engine, ffn, width):
    """3% or 4 standard errors for each of some 40 numbers: a false alarm in fewer than one of 300 at worst.

    Gated, a gradient is up to 20/d larger than at infinite width (17% at 128, 7% at 256, 3.6% at 512).
    """
    register_all()
    own = {"placement": "half_peri", "activation": "own.squared_relu", "initialization": "uneven"}
    stack = replace(SMALL, width=width, vocab=32, ffn=ffn, **own)
    samples = sample(stack, draws=128, seed=0, engine=engine)
    assert off(samples, predict(stack))[1] == []


@pytest.mark.parametrize(
    ("of_tensors", "message"),
    [
        (None, "^activation 'own' must be registered with a function of tensors to be sampled"),
        ("torch.nn.functional.gelu", "^torch of activation 'own' must be its function, but its values at"),
        ("torch.nn.functional.none", "^torch of activation 'own' must be importable, got 'torch.nn.functional.none'"),
        (lambda x: torch.nn.functional.softplus(x.detach()) + x * 0, "^torch .* its function, but its slopes at"),
        (lambda x: x.numpy(), "^torch of activation 'own' must be a function of tensors that autograd .*Runtime"),
    ],
)
def test_functions_of_tensors_that_are_not_the_activation(of_tensors, message):
    register_activation("own", softplus, expit, torch=of_tensors)
    predict(replace(SMALL, activation="own"))
    with pytest.raises(ValueError, match=message):
        sample(replace(SMALL, activation="own"), draws=1, seed=0)


def test_keys_hold_versions_and_those_of_built_in_names_stay():
    assert Cell(SMALL, "dense").name == "dcb7171b720bc716"
    register_activation("own", softplus, expit, version="2")
    assert '"registered":{"activation":"2"}' in Cell(replace(SMALL, activation="own")).key
    assert Cell(SMALL, "dense").name == "dcb7171b720bc716"


def test_a_run_folder_says_which_registration_it_lacks(tmp_path, own_names, capsys):
    register_squared_relu()
    stack = replace(SMALL, activation="own.squared_relu")
    run = Run.create(tmp_path / "run", {"request": {"command": "test"}})
    sample_into([Cell(stack), Cell(SMALL)], draws=2, seed=0, run=run)
    samples = {s.stack: s for s in Run.open(run.folder).samples()}
    np.testing.assert_array_equal(samples[stack]["loss"][:2], sample(stack, draws=2, seed=0)["loss"])
    own_names()
    name = Cell(SMALL).name
    assert main(["check", str(run.folder)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("gradbounds: run must hold cells with known names, but cell ")
    assert said.endswith("which is not registered here: import or install the module that registers it.\n")
    assert name not in said
    register_activation(
        "own.squared_relu", squared_relu, squared_relu_slope, torch=squared_relu_of_tensors, version="2"
    )
    with pytest.raises(
        ValueError, match=r"has another version than activation 'own.squared_relu' \(2\), or is from a later"
    ):
        run.samples()


def test_other_processes_are_told(own_names):
    """`own_names` makes this process another, which knows none."""
    register_all()
    stack = replace(SMALL, placement="half_peri", activation="own.squared_relu", initialization="uneven")
    cell, sent = Cell(stack), packed(stack)
    here = sample_task(cell, 0, [0], BatchLimits())[0]
    there = pickle.dumps(cell)
    own_names()
    with pytest.raises(ValueError, match="^(placement|activation|initialization) must be one of"):
        sample_task(pickle.loads(there), 0, [0], BatchLimits())
    np.testing.assert_array_equal(
        sample_task(pickle.loads(there), 0, [0], BatchLimits(), sent)[0]["loss"], here["loss"]
    )
    unpack(stack, sent)
    assert packed(SMALL) == b""


def test_what_other_processes_cannot_be_told(tmp_path, own_names):
    register_activation("own", lambda u: u * u, lambda u: 2 * u, torch=lambda x: x * x)
    cell = Cell(replace(SMALL, activation="own"))
    run = Run.create(tmp_path / "run", {"request": {"command": "test"}})
    needed = "^activation 'own' must be registered by an entry point, or with functions at the top level of a module"
    with pytest.raises(ValueError, match=needed):
        sample_into([cell], draws=1, seed=0, run=run, execution=Execution(workers=2, pool=InProcess()))
    # A function of an interactive session has a module and a name, but not elsewhere.
    own_names()
    register_squared_relu()
    stack = replace(SMALL, activation="own.squared_relu")
    with pytest.raises(ValueError, match="^activation 'own.squared_relu' must be registered by an entry point"):
        unpack(stack, packed(stack).replace(b"squared_relu_slope", b"squared_relu_slops"))
    NAMES.installed.add("own.squared_relu")
    sent = packed(stack)
    own_names()
    with pytest.raises(ValueError, match="^activation must be one of"):
        unpack(stack, sent)
    register_activation("own.squared_relu", squared_relu, squared_relu_slope, version="2")
    with pytest.raises(
        ValueError, match="^activation 'own.squared_relu' must have version '1' where it is sampled, got '2'"
    ):
        unpack(stack, sent)


def test_flags_take_registered_names(capsys):
    register_squared_relu()
    # It is refused for what it is, not as a name.
    assert main(["predict", "--bound", "--activation", "own.squared_relu"]) == 2
    assert "the paper's setting, got activation = own.squared_relu" in capsys.readouterr().err
    assert main(["predict", "--bound", "--activation", "cubed_relu"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("gradbounds: --activation must be one of 'relu', ")
    assert "'own.squared_relu', got 'cubed_relu'" in said


def test_a_claim_of_ones_own_is_judged_listed_and_explained(capsys):
    claim = replace(CLAIMS["L1"], id="own.loss", source="here", statement="The loss is ln V", latex="L = ln V")

    def judge(cells):
        return [
            Verdict(
                claim="own.loss", subject="loss", verdict="holds", claimed="ln V", predicted=1.0, measured=2.0,
                interval=(0.0, 9.0), agreement="agrees", setting="here",
            )
            for s in cells
        ]  # fmt: skip

    register_claim(claim, judge)
    register_claim(claim, judge)
    samples = sample(RELAXED, draws=32, seed=0)
    assert [v.claim for v in verdicts([samples])][-1] == "own.loss"
    assert "Result: not tested here." in str(list_claims()).partition("own.loss here (identity)")[2]
    assert "The loss is ln V" in str(explain("OWN.loss"))
    with pytest.raises(
        ValueError, match="^claim must have a new name, got 'own.loss', which already names something else"
    ):
        register_claim(claim, lambda cells: [])
    with pytest.raises(ValueError, match="^claim must have a new name, got 'L1', which is built in"):
        register_claim(CLAIMS["L1"], judge)
    register_claim(replace(claim, id="own.wrong"), lambda cells: ["holds"])
    (row,) = [v for v in verdicts([samples]) if v.claim == "own.wrong"]
    assert str(row.note) == "its judge must return a list of verdicts on it, and returned ['holds']"


def test_the_example_of_the_page_runs(monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
    mine, use, claim = re.findall(r"```python\n(.*?)```", page, re.S)
    module = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    exec(mine, vars(module))
    scope = {}
    exec(use, scope)
    assert scope["stack"].versions == {"placement": "1", "activation": "1", "initialization": "1"}
    assert packed(scope["stack"])
    exec(claim, vars(module))
    # Logits of size two are far above ln V, and hardly any are at it.
    cells = [sample(Stack(width=16, depth=1, vocab=4, output_scale=scale), draws=32, seed=0) for scale in (2, 1e-3)]
    rows = [v for v in own_verdicts(cells) if v.claim == "mine.loss"]
    assert [row.verdict for row in rows] == ["holds", "undecided"]
    assert all(str(row.claimed) == "at least 1.386" for row in rows)


def test_a_judge_that_fails_is_named(own_names):
    about_l1 = Verdict(
        claim="L1", subject="all", verdict="holds", claimed="1", predicted=1.0, measured=1.0, interval=(0.0, 2.0),
        agreement="agrees", setting="here",
    )  # fmt: skip
    register_claim(replace(CLAIMS["L1"], id="own.other"), lambda cells: [about_l1])
    (row,) = [v for v in verdicts([sample(RELAXED, draws=32, seed=0)]) if v.claim == "own.other"]
    assert (row.part, row.verdict) == ("could not be judged", "undecided")
    assert str(row.note).startswith("its judge must return a list of verdicts on it, and returned [Verdict(claim='L1'")
    own_names()
    register_claim(replace(CLAIMS["L1"], id="own.fails"), lambda cells: cells[0]["nothing"])
    (row,) = [v for v in verdicts([sample(RELAXED, draws=32, seed=0)]) if v.claim == "own.fails"]
    assert str(row.note).startswith("its judge failed with KeyError: ") and "no quantity 'nothing'" in str(row.note)
