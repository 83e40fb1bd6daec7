"""Everything that has a device on a pretended GPU, in a process of its own, which `test_pretended_gpu` starts.

Its name keeps the suite from collecting it. Budgets are counts of operations, the same on every machine.
"""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from gradbounds.cli import main
from simulate.curvature import first_step
from simulate.network import random_streams, replays
from simulate.network.random_streams import RandomStreams
from simulate.runs.cell import Cell
from simulate.runs.sample import sample_blocks
from studies.training.cells import TrainingCell
from studies.training.train import train
from tests.helpers.device_counts import of_blocks, of_graphs, of_sampling, of_training
from tests.helpers.pretended_gpu import PretendedGpu
from theory import Stack

torch.set_num_threads(1)
# Forward-mode derivatives warn of torch's own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

# Eight tokens, of which products are NumPy's on a CPU.
SMALL = {"width": 16, "depth": 1, "tokens": 8, "vocab": 8}
ROWS = str([[int(j <= i) for j in range(8)] for i in range(8)])
KINDS = {
    "queries": {"query_key_scale": 1.0, "heads": 4, "kv_heads": 2, "rotary": 1.0, "mask": "given", "mask_rows": ROWS},
    "tied": {"placement": "pre", "embeddings": "tied", "mask": "causal", "window": 2},
    "zipf": {
        "labels": "zipf",
        "label_groups": 2,
        "loss_share": 0.5,
        "dropout": 0.1,
        "positions": "sinusoidal",
        "input_correlation": 0.3,
    },
    "source": {"placement": "pre", "source_tokens": 3, "query_key_scale": 1.0},
    "experts": {"depth": 2, "experts": 2, "ffn": "gated", "shared_ratio": 1.0, "dense_layers": 1},
    "rezero": {"placement": "rezero"},
}
WIDE = {
    "experts of sigmoids": {"experts": 3, "router_scores": "sigmoid", "router_norm": "sum", "shared_gate": "sigmoid",
                            "shared_ratio": 0.5},
    "tied queries": {"query_key_scale": 1.0, "query_key": "tied", "attention_scale": "linear"},
    "norms of queries": {"query_key_scale": 1.0, "heads": 2, "query_key_norm": "head", "logit_softcap": 5.0},
    "dropped attention": {"attention_dropout": 0.2, "dropout": 0.1, "output_projection": "random"},
    "gram": {"input_gram": str(np.eye(8).tolist()), "positions": "learned"},
    "tanh": {"normalization": "tanh", "activation": "gelu"},
    "rms": {"normalization": "rms", "ffn": "gated", "activation": "silu", "layout": "parallel"},
    "attention alone": {"branches": "attention", "label_smoothing": 0.1},
    "last position": {"loss_on": "last", "output_transform": "added", "sequences": 2},
    "two placements": {"depth": 2, "lower_placement": "pre", "lower_share": 0.5},
    "an epsilon": {"norm_epsilon": 0.1, "embedding_norm": "added", "embedding_scale": 2.0},
} | {f"placed {name}": {"placement": name} for name in
     ("peri", "output", "deepnorm", "scaled", "keel", "residual", "unnormed")}  # fmt: skip
ENGINES = ("dense", "conditioned")
evidence = pytest.mark.evidence


@pytest.fixture
def as_on_a_cpu(monkeypatch):
    """Seeds that do not hang on the device, and numbers that are drawn where they are needed."""
    monkeypatch.setattr(Cell, "block_seed", lambda self, seed, block: 5 + block)
    monkeypatch.setattr(Cell, "draws_per_block", 2)
    monkeypatch.setattr(random_streams, "AHEAD", 0)


def stays_on_its_device(engine, fields):
    """The numbers of a CPU to rounding, no wait in a layer, and no more calls for more draws."""
    stack = Stack(**SMALL | fields)
    here = sample_blocks(Cell(stack, engine), 0, [0])[0]
    with PretendedGpu() as gpu:
        there = sample_blocks(Cell(stack, engine, "cuda"), 0, [0])[0]
    assert set(here) == set(there)
    for name, values in here.items():
        np.testing.assert_allclose(there[name], values, rtol=2e-4, atol=1e-10, err_msg=name)
    assert gpu.launches > 50 * stack.depth  # it ran there
    # The copy of all quantities waits, for inputs that are made by the host one more.
    assert gpu.waits.total() <= 1 + ("correlation" in str(fields) or "gram" in str(fields)), gpu.waits
    return gpu


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_samples_stay_on_their_device(as_on_a_cpu, engine, fields):
    stays_on_its_device(engine, fields)


@evidence
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fields", WIDE.values(), ids=WIDE)
def test_more_samples_stay_on_their_device(as_on_a_cpu, engine, fields):
    stays_on_its_device(engine, fields)


def test_uniform_entries_stay_on_their_device(as_on_a_cpu):
    stays_on_its_device("dense", {"initialization": "xavier_uniform"})


@pytest.mark.parametrize("engine", ENGINES)
def test_more_draws_of_a_block_are_no_more_calls(as_on_a_cpu, monkeypatch, engine):
    few = stays_on_its_device(engine, KINDS["queries"])
    monkeypatch.setattr(Cell, "draws_per_block", 4)
    many = stays_on_its_device(engine, KINDS["queries"])
    assert (few.launches, few.waits.total()) == (many.launches, many.waits.total())


# Of a Post-LN layer with mean attention, and of what is drawn ahead: one call for normals and one for labels.
@pytest.mark.parametrize(("engine", "launches", "doubles"), [("dense", 54, 0), ("conditioned", 129, 75)])
def test_what_a_layer_and_a_block_may_take(engine, launches, doubles):
    found = of_sampling(engine)
    assert found["launches a layer"] <= launches
    assert found["doubles a layer"] <= doubles
    assert found["waits a layer"] == 0
    assert found["waits beside"] <= 1
    assert of_blocks(engine, 3) == {"launches a block": 2, "waits a block": 0}


@pytest.mark.parametrize("fields", [{}, {"placement": "pre", "query_key_scale": 1.0}], ids=["post", "queries"])
def test_graphs_have_the_same_numbers_by_fewer_launches(monkeypatch, fields):
    """Of layers that come again, from the second on; equal, since they are the same operations."""
    cell, found = Cell(Stack(**SMALL | {"depth": 5} | fields), "conditioned", "cuda"), []
    for calls in (2, 1000):
        monkeypatch.setattr(replays, "CALLS_BEFORE", calls)
        with PretendedGpu() as gpu:
            found.append((sample_blocks(cell, 0, [0])[0], gpu))
    (by_graphs, few), (one_by_one, many) = found
    assert by_graphs.keys() == one_by_one.keys()
    for name, values in one_by_one.items():
        np.testing.assert_array_equal(by_graphs[name], values, err_msg=name)
    assert few.kernels["graph"] > 10
    assert few.launches < 0.75 * many.launches


def test_what_a_layer_by_graphs_may_take():
    found = of_graphs()
    assert found["launches a layer"] <= 57
    assert found["waits a layer"] == 0


def test_what_has_no_place_in_a_graph_is_called_as_it_is(monkeypatch):
    monkeypatch.setattr(replays, "CALLS_BEFORE", 2)
    with PretendedGpu():
        rows = torch.ones(3, device="cuda")
        graphs = replays.Replays(rows.device)

        def waiting(numbers):
            return (numbers + float(numbers[0]),)

        for _ in range(4):
            assert graphs.call(waiting, rows)[0].cpu().tolist() == [2.0, 2.0, 2.0]
        assert graphs.call(lambda numbers: (2.0 * numbers,), rows)[0].cpu().tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(("engine", "launches", "doubles", "waits"), [
    ("dense", 147, 0, 0),
    ("conditioned", 423, 144, 8),  # one wait for a use of a matrix, of which there are 8
])  # fmt: skip
def test_what_a_step_of_training_may_take(engine, launches, doubles, waits):
    found = of_training(engine)
    assert found["launches a step"] <= launches
    assert found["doubles a step"] <= doubles
    assert found["waits a step"] <= waits
    assert found["waits beside"] <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_numbers_do_not_hang_on_the_batch(monkeypatch, engine):
    """Drawn ahead in pieces so small that a block goes through many."""
    monkeypatch.setattr(random_streams, "AHEAD", 3000)
    monkeypatch.setattr(Cell, "draws_per_block", 2)
    cell = Cell(Stack(**SMALL | {"dropout": 0.2}), engine, "cuda")
    with PretendedGpu():
        together = sample_blocks(cell, 0, range(3))
        alone = [sample_blocks(cell, 0, [block])[0] for block in range(3)]
    for one, other in zip(together, alone, strict=True):
        for name, values in one.items():
            np.testing.assert_allclose(values, other[name], rtol=1e-4, atol=1e-10, err_msg=name)
    assert together[0]["loss"][0] != together[1]["loss"][0]


def test_numbers_drawn_ahead_have_their_law(monkeypatch):
    """Means and variances of 30000 within 5 standard errors, no number twice, and each request another part."""
    monkeypatch.setattr(random_streams, "AHEAD", 1000)
    with PretendedGpu():
        streams = RandomStreams(range(5), 2, "cuda")
        normals = torch.cat([streams.normal(7, 3, dtype=torch.float64).cpu() for _ in range(143)], 1).numpy()
        uniform = torch.cat([streams.uniform(3000, dtype=torch.float32).cpu() for _ in range(1)], 1).numpy()
        scaled = streams.fill_normal(torch.empty(10, 50, device="cuda"), 3.0).cpu().numpy()
    count = normals.size
    assert count == len(np.unique(normals)) == 30030
    assert abs(normals.mean()) < 5 * count**-0.5
    assert abs(normals.var() - 1) < 5 * (2 / count) ** 0.5
    assert abs(uniform.mean() - 0.5) < 5 * (12 * uniform.size) ** -0.5
    assert 2.5 < scaled.std() < 3.5


def trained_there(monkeypatch, **how):
    rest = {"steps": 1, "learning_rate": 0.01, "draws": 2, "seed": 0} | how
    fields = rest.pop("fields", {})
    run = partial(train, Stack(**SMALL | fields), **rest)
    monkeypatch.setattr(TrainingCell, "block_seed", lambda self, seed, block: 5 + block)
    here = run()
    with PretendedGpu() as gpu:
        there = run(device="cuda")
    for name in here:
        np.testing.assert_allclose(there[name], here[name], rtol=2e-3, atol=1e-7, err_msg=name)
    assert gpu.launches > 150


@pytest.mark.parametrize("engine", ENGINES)
def test_training_stays_on_its_device(as_on_a_cpu, monkeypatch, engine):
    trained_there(monkeypatch, engine=engine)


@evidence
@pytest.mark.parametrize("how", [
    {"optimizer": "polar", "momentum": 0.9, "engine": "dense"}, {"optimizer": "polar", "engine": "conditioned"},
    {"optimizer": "adam", "momentum": 0.9}, {"batch": "fresh", "engine": "conditioned"},
    {"text": "lighthouse", "engine": "conditioned", "batch": "fresh"}, {"fields": {"placement": "rezero"}},
])  # fmt: skip
def test_more_training_stays_on_its_device(as_on_a_cpu, monkeypatch, how):
    trained_there(monkeypatch, **how)


def test_a_sweep_runs_there(tmp_path, capsys):
    """Planned, sampled, stored and judged; the workers of one GPU share its memory."""
    sizes = "--width 16 --depth 1 --tokens 4 --vocab 8 --draws 64 --device cuda".split()
    with PretendedGpu() as gpu:
        assert main(["sweep", *sizes, "--out", str(tmp_path / "run")]) == 0
    assert gpu.launches > 200
    assert gpu.waits.total() <= 2  # two cells
    assert "cuda" in (tmp_path / "run" / "manifest.toml").read_text()


@evidence
def test_the_first_step_stays_on_its_device():
    stack = Stack(**SMALL | {"depth": 1, "query_key_scale": 1.0})
    (here,) = first_step.sampled_steps(stack, ("adam",), seed=3).values()
    with PretendedGpu() as gpu:
        (there,) = first_step.sampled_steps(stack, ("adam",), seed=3, device="cuda").values()
    for name in ("gain", "curvature", "hessian", "break_even_rate"):
        assert getattr(there, name) == pytest.approx(getattr(here, name), rel=1e-9)
    assert gpu.launches > 300


@evidence
def test_the_gauss_newton_matrix_stays_on_its_device():
    """What is mixed inside torch.func is counted and not refused."""
    from simulate.curvature.problems import stack_problem
    from studies.hessian.operators import extreme_eigenvalues

    make = partial(stack_problem, Stack(**SMALL | {"source_tokens": 2}), seed=2, dtype=torch.float64)
    here = extreme_eigenvalues(make(), "gauss-newton", seed=0)[1]
    with PretendedGpu() as gpu:
        there = extreme_eigenvalues(make(device="cuda"), "gauss-newton", seed=0)[1]
    assert there == pytest.approx(here, rel=1e-3)
    assert gpu.launches > 300


@evidence
def test_a_probe_stays_on_its_device():
    from checks.models.one_report import one_report
    from simulate.modules.coordinates import coordinate_steps
    from simulate.modules.probe import probe
    from tests.helpers.probed_modules import one_module

    run = partial(probe, one_module, widths=[4, 8], depths=[2], seeds=2)
    steps = partial(coordinate_steps, one_module, lambda module: torch.optim.Adam(module.parameters(), lr=1e-2),
                    widths=[4, 8], depths=[2], steps=2, seeds=1)  # fmt: skip
    module, batch = one_module(8, 2)
    x, loss = batch(0)
    here = run().frame, steps().to_frame(), one_report(module, x, loss).to_frame()
    with PretendedGpu() as gpu:
        there = run(device="cuda").frame, steps(device="cuda").frame
        there += (one_report(module.to("cuda"), x.to("cuda"), loss).to_frame(),)
    pd.testing.assert_frame_equal(there[0], here[0], rtol=1e-4)
    for mine, other in zip(here[1:], there[1:], strict=True):
        pd.testing.assert_frame_equal(other, mine, rtol=1e-4, atol=1e-6)
    assert gpu.launches > 50


def report_there(module, inputs, loss):
    """A report of the CPU, and one of the device with a loss there and with one on the host."""
    from checks.models.one_report import one_report
    from simulate.modules.factories import moved

    here = one_report(module, inputs, loss)
    with PretendedGpu() as gpu:
        module = module.to("cuda")
        there = [one_report(module, moved(inputs, "cuda"), of) for of in (loss, lambda y: loss(moved(y, "cpu")))]
    assert gpu.launches > 50
    for report in there:
        assert [str(alarm) for alarm in report.alarms] == [str(alarm) for alarm in here.alarms]
        pd.testing.assert_frame_equal(report.layers, here.layers, rtol=1e-3, atol=1e-6)
    return here


@evidence
def test_reports_stay_on_their_device():
    from tests.helpers.single_modules import GLOBAL, HEALTHY, LOCAL, OF_TRANSFORMERS, planted

    for name in HEALTHY:
        if name not in OF_TRANSFORMERS:
            torch.manual_seed(11)
            assert not report_there(*HEALTHY[name](32, 4)).alarms, name
    for fault, (kind, families, _) in (LOCAL | GLOBAL).items():
        torch.manual_seed(12)
        alarms = report_there(*planted(families[0], fault, 2, 32, 4)).alarms
        assert any(kind in str(alarm) for alarm in alarms), fault


@evidence
def test_steps_stay_on_their_device():
    from tests.helpers.parametrized_models import BREACHES, HEALTHY, adam, check, transformer

    cases = [
        *HEALTHY.values(),
        (transformer, adam, "mup", "rate of one matrix"),
        (transformer, adam, "mup", "root of d_k"),
    ]
    assert {case[3] for case in cases if len(case) > 3} <= set(BREACHES)
    for case in cases:
        here = check(*case, seeds=2)
        with PretendedGpu() as gpu:
            there = check(*case, seeds=2, device="cuda")
        assert gpu.launches > 50
        assert [str(alarm) for alarm in there.alarms] == [str(alarm) for alarm in here.alarms]
        pd.testing.assert_frame_equal(there.table, here.table, atol=0.02)


@evidence
def test_fig3_runs_there(tmp_path, capsys):
    from studies.__main__ import run as study
    from tests.helpers.parallel_text import write

    files = [str(file) for file in write(tmp_path)]
    sizes = "--width 16 --ffn-width 16 --heads 2 --depth 2 3 4 --vocab 40 --batch-tokens 150 --seeds 1 --pairs 8"
    command = ["fig3", "--source", files[0], "--target", files[1], "--initialization", "xavier"]
    with PretendedGpu() as gpu:
        assert study([*command, *sizes.split(), "--device", "cuda", "--out", str(tmp_path / "run")]) in (0, 1)
    assert gpu.launches > 1000
