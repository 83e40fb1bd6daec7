"""Draws: reproducible, named, refused when they make no sense."""

import dataclasses

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from simulate import Cell, TextWindows, read_windows, sample
from simulate.network.dense import DenseEngine
from simulate.network.random_streams import RandomStreams
from simulate.runs.inputs import network_inputs
from simulate.runs.sample import one_thread
from theory import Stack, predict

SMALL = Stack(width=8, depth=2, tokens=3, vocab=5)


def test_same_arguments_same_numbers_and_fewer_are_the_first_of_more():
    per_block = Cell(SMALL).draws_per_block
    many, few = sample(SMALL, draws=2 * per_block + 3, seed=4), sample(SMALL, draws=per_block + 1, seed=4)
    for name in many:
        np.testing.assert_array_equal(many[name][: per_block + 1], few[name])
    assert not np.array_equal(few["loss"], sample(SMALL, draws=per_block + 1, seed=5)["loss"])
    assert np.unique(many["loss"]).size == many.draws, "two draws are the same network"


def test_numbers_do_not_depend_on_torch_threads():
    before = torch.get_num_threads()
    one = sample(SMALL, draws=3, seed=0)["grad_sq_W1"]
    try:
        torch.set_num_threads(2)
        np.testing.assert_array_equal(one, sample(SMALL, draws=3, seed=0)["grad_sq_W1"])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_numpy_has_one_thread_meanwhile():
    def threads():
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        with one_thread():
            assert threads() <= {1}, "a library that does not tell has none here"
        assert threads() <= {2}


def test_draws_of_different_cells_and_blocks_have_seeds_of_their_own():
    cells = [
        Cell(dataclasses.replace(SMALL, width=width), dtype=dtype)
        for width in (8, 9)
        for dtype in ("float32", "float64")
    ]
    seeds = {cell.block_seed(seed, block) for cell in cells for seed in range(3) for block in range(50)}
    assert len(seeds) == 4 * 3 * 50
    # CPU generators look at 32 bits: within a cell even those must differ
    assert len({cells[0].block_seed(0, block) % 2**32 for block in range(10_000)}) == 10_000


def test_float64_and_float32_sample_the_same_law():
    """Means of 4000 draws each; false alarm 1e-5 per quantity."""
    single, double = sample(SMALL, draws=4000, seed=0), sample(SMALL, draws=4000, seed=0, dtype="float64")
    assert (single["loss"].dtype, double["loss"].dtype) == (np.float32, np.float64)
    for name in ("loss", "input_gradient_sq", "grad_sq_Wemb"):
        a, b = single[name], double[name]
        sem = np.hypot(a.std(), b.std()) / np.sqrt(4000)
        assert abs(a.mean() - b.mean()) < 4.5 * sem, name


def test_one_token_has_no_pairs_and_no_warning():
    samples = sample(Stack(width=8, depth=2, tokens=1, vocab=5), draws=3, seed=0)
    assert np.isnan(samples["token_correlation"]).all()
    assert np.isfinite(samples["grad_sq_WV"]).all()


def test_repeated_words_share_their_embedding_and_labels_are_the_next_words(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("a b a c b a d")
    windows = read_windows(path, tokens=3, vocab=6)
    cell = Cell(Stack(width=8, depth=1, tokens=3, vocab=6), text=windows)
    x, labels, _ = network_inputs(cell, DenseEngine(RandomStreams([0], 40), torch.float64))
    seen = set()
    for inputs, label in zip(x, labels.numpy(), strict=True):
        (row,) = [i for i, ids in enumerate(windows.ids) if (ids[1:] == label).all()]
        words = windows.ids[row, :-1]
        seen.add(row)
        for i in range(3):
            for j in range(3):
                assert torch.equal(inputs[i], inputs[j]) == (words[i] == words[j])
    assert seen == {0, 1}
    by_path = sample(cell.stack, draws=4, seed=0, text=path)
    by_windows = sample(cell.stack, draws=4, seed=0, text=windows)
    np.testing.assert_array_equal(by_path["loss"], by_windows["loss"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"draws": 0}, "^draws must be an integer of at least 1, got 0"),
        ({"draws": 2.5}, "^draws must be an integer"),
        ({"draws": True}, "^draws must be an integer"),
        ({"seed": -1}, "^seed must be an integer of at least 0, got -1"),
        ({"engine": "magic"}, "^engine must be 'auto' or 'conditioned' or 'dense' or 'gram', got 'magic'"),
        ({"dtype": "int8"}, "^dtype must be 'float32' or 'float64', got 'int8'"),
        ({"device": "tpu"}, "^device must be 'cpu', 'cuda' or 'cuda:N', got 'tpu'"),
        ({"device": "cuda:x"}, "^device must be"),
        ({"device": "cpu:1"}, "^device must be"),
        ({"device": 3}, "^device must be 'cpu', 'cuda' or 'cuda:N', got 3"),
        ({"device": torch.device("meta")}, r"^device must be 'cpu', 'cuda' or 'cuda:N', got device\(type='meta'\)"),
        ({"text": "missing.txt"}, "^text must be a readable file"),
        ({"text": b"words"}, "^text must be the path of a text, or gb.TextWindows, got b'words'"),
        (
            {"text": TextWindows(ids=np.zeros((2, 9), int), digest="", source="")},
            r"^text must have windows of tokens \+ 1 = 4 ids, got 9",
        ),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        sample(SMALL, **({"draws": 2, "seed": 0} | arguments))


def test_a_device_of_torch_is_its_name():
    plain, of_torch = (sample(SMALL, draws=1, seed=0, device=one) for one in ("cpu", torch.device("cpu")))
    assert of_torch.cell.key == plain.cell.key
    np.testing.assert_array_equal(of_torch["loss"], plain["loss"])


def test_cuda_where_there_is_none():
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    with pytest.raises(ValueError, match=rf"^device must be one that this machine has \({count} CUDA devices found\)"):
        sample(SMALL, draws=1, seed=0, device=f"cuda:{count}")


@pytest.mark.gpu
def test_gpu_samples_the_same_law():
    """Means of 4096 draws each, of every quantity in every layer; false alarm 7e-6 each, of some thirty."""
    stack = Stack(width=32, depth=2, tokens=4, vocab=16)
    cpu, gpu = (sample(stack, draws=4096, seed=0, device=device) for device in ("cpu", "cuda"))
    assert set(cpu) == set(gpu)
    for name in cpu:
        sem = np.hypot(cpu[name].std(0), gpu[name].std(0)) / 64
        assert (abs(cpu[name].mean(0) - gpu[name].mean(0)) <= 4.5 * sem + 1e-6).all(), name


@pytest.mark.parametrize("engine", ["dense", "conditioned"])
def test_block_sizes_follow_memory(engine):
    widths = {"dense": (16, 64, 256, 1024, 4096), "conditioned": (16, 1024, 4096, 2**14, 2**20)}[engine]
    sizes = [Cell(Stack(width=width, depth=12), engine).draws_per_block for width in widths]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 64
    assert sizes[-1] == 1
    assert all(size & (size - 1) == 0 for size in sizes)


def test_a_text_is_named_by_what_it_holds():
    """Two files of one name are two cells; one file under two names is one."""
    stack, ids = Stack(width=8, depth=1, tokens=2, vocab=4), np.array([[0, 1, 2], [2, 3, 0]])
    first, other, moved = (
        Cell(stack, text=TextWindows(ids=ids, digest=digest, source=source)).name
        for digest, source in (("a", "words.txt"), ("b", "words.txt"), ("a", "moved.txt"))
    )
    assert first == moved
    assert first != other


def test_what_a_notebook_shows():
    """One line each, tables of layers, and a near name where there is none."""
    stack = Stack(width=8, depth=2, tokens=2, vocab=4)
    predicted, drawn = predict(stack), sample(stack, draws=3, seed=0)
    assert repr(predicted).startswith("<Prediction of Stack(width=8, depth=2, tokens=2, vocab=4): ")
    assert repr(drawn).startswith("<Samples of Stack(width=8, depth=2, tokens=2, vocab=4): 3 draws of ")
    for table in (predicted._repr_html_(), drawn._repr_html_()):
        assert table.count("<tr") == 2 + 3
    frame = predicted.to_frame()
    np.testing.assert_array_equal(frame.loc[1:, "grad_sq_W2"], predicted["grad_sq_W2"])
    assert frame.loc[0, "loss"] == predicted["loss"]
    assert np.isnan(frame.loc[0, "grad_sq_W2"])
    assert np.isnan(frame.loc[1, "loss"])
    for mapping in (predicted, drawn):
        with pytest.raises(KeyError, match="no quantity 'grad_sq_W3' here. Did you mean grad_sq_W"):
            mapping["grad_sq_W3"]
