"""Everything that has a device on a pretended GPU, in a process of its own, which `test_pretended_gpu` starts.

Its name keeps the suite from collecting it. Counts of operations are the same on every machine.
"""

import numpy as np
import pytest
import torch

from gradbounds.cli import main
from simulate.network import random_streams, replays
from simulate.network.random_streams import RandomStreams
from simulate.runs.cell import Cell
from simulate.runs.sample import sample_blocks
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
ENGINES = ("dense", "conditioned")


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


def test_uniform_entries_stay_on_their_device(as_on_a_cpu):
    stays_on_its_device("dense", {"initialization": "xavier_uniform"})


@pytest.mark.parametrize("engine", ENGINES)
def test_more_draws_of_a_block_are_no_more_calls(as_on_a_cpu, monkeypatch, engine):
    few = stays_on_its_device(engine, KINDS["queries"])
    monkeypatch.setattr(Cell, "draws_per_block", 4)
    many = stays_on_its_device(engine, KINDS["queries"])
    assert (few.launches, few.waits.total()) == (many.launches, many.waits.total())


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


def test_a_sweep_runs_there(tmp_path, capsys):
    """Planned, sampled, stored and judged; the workers of one GPU share its memory."""
    sizes = "--width 16 --depth 1 --tokens 4 --vocab 8 --draws 64 --device cuda".split()
    with PretendedGpu() as gpu:
        assert main(["sweep", *sizes, "--out", str(tmp_path / "run")]) == 0
    assert gpu.launches > 200
    assert gpu.waits.total() <= 2  # two cells
    assert "cuda" in (tmp_path / "run" / "manifest.toml").read_text()
