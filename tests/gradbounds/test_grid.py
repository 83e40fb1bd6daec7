"""Grids: products, ranges, fields that move together, and every way of getting them wrong."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from gradbounds.cli import main, parsed
from gradbounds.commands.sweep import Sweep
from gradbounds.described_network import Description, changed_values
from gradbounds.flags import given as given_fields
from gradbounds.grid import FIELDS, field_name, field_values, stacks
from gradbounds.recipe import PRESETS, Recipe, preset, read_recipe
from gradbounds.units import seconds_of
from theory import Stack
from theory.configurations import PUBLISHED, published, stack_from_config


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("64:4096:x2", [64, 128, 256, 512, 1024, 2048, 4096]),
        ("64:100:x2", [64]),
        ("2:10:+4", [2, 6, 10]),
        ("8:8:x2", [8]),
        ("16:64:x1.41421356", [16, 23, 32, 45, 64]),
        (["8", "16:32:x2", 32], [8, 16, 32]),
        (7, [7]),
    ],
)
def test_ranges(given, values):
    assert field_values("width", given) == values


def test_ranges_of_numbers():
    assert field_values("output_scale", "0.1:0.5:+0.1") == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert field_values("output_scale", ["1:100:x10"]) == [1.0, 10.0, 100.0]
    assert field_values("output_scale", ["sqrt-width", "1"]) == ["sqrt-width", 1.0]
    assert field_values("branch_scale", "0:1:+0.5") == [0.0, 0.5, 1.0]


def test_a_field_is_left_to_its_own_by_that_word():
    """In flags and files, alone and beside numbers; 0 is a number, and no other field knows the word."""
    assert field_values("branch_scale", ["own", "0", 0.5]) == [None, 0.0, 0.5]
    recipe = parsed(["sweep", "--placement", "pre", "--branch-scale", "own", "0:1:+0.5"]).recipe()
    assert [stack.branch_scale for stack in recipe.stacks()] == [None, 0.0, 0.5, 1.0]
    assert Description().compared({"branch_scale": 0.5}, ["branch_scale=own"]) == Stack()
    assert changed_values(["branch-scale=0"]) == {"branch_scale": 0.0}
    with pytest.raises(ValueError, match="^branch_scale must be numbers, ranges .*, 'own', got 'none'"):
        field_values("branch_scale", "none")
    with pytest.raises(ValueError, match="^tanh_scale must be numbers, ranges like 64:4096:x2 or 2:10:.2, got 'own'"):
        field_values("tanh_scale", "own")
    flags = parsed(["predict", "--branch-scale", "own", "--residual-scale", "0"]).stack
    assert given_fields(flags) == {"branch_scale": None, "residual_scale": 0.0}


@pytest.mark.parametrize("model", PUBLISHED)
def test_the_grid_of_a_published_model_is_its_network(model):
    network, _ = stack_from_config(like=model)
    assert list(stacks(Description(like=model).grid({}))) == [network]
    assert next(stacks(Description(like=model).grid({"depth": ("2", "4")}))) == replace(network, depth=2)


def assert_alike(stacks, others):
    for stack, other in zip(stacks, others, strict=True):
        assert {name: value for name, value in vars(stack).items() if not isinstance(value, float)} == {
            name: value for name, value in vars(other).items() if not isinstance(value, float)
        }
        numbers = [name for name, value in vars(stack).items() if isinstance(value, float)]
        assert [getattr(stack, name) for name in numbers] == pytest.approx([getattr(other, name) for name in numbers])


def test_a_sweep_takes_a_models_network():
    """Flags change its fields; at other widths it is what a file of that width has."""
    words = ["--like", "pythia-1.4b", "--width", "256", "512", "--depth", "2"]
    smaller = [
        stack_from_config(
            published("pythia-1.4b") | {"hidden_size": d, "num_hidden_layers": 2, "intermediate_size": 4 * d}
        )
        for d in (256, 512)
    ]
    networks = [replace(network, tokens=16) for network, _ in smaller]
    assert_alike(parsed(["sweep", *words]).recipe().stacks(), networks)
    assert_alike(
        parsed(["sweep", *words, "--vocab", "64", "128", "--zip", "width,vocab"]).recipe().stacks(),
        [replace(network, vocab=vocab) for network, vocab in zip(networks, (64, 128), strict=True)],
    )
    assert_alike([Description(like="pythia-1.4b").read({"width": 256, "depth": 2})[0]], networks[:1])
    with pytest.raises(
        ValueError, match="^--config and --like cannot be combined with --preset deep, which define their own networks"
    ):
        parsed(["sweep", "--preset", "deep", *words]).run()


@given(st.integers(2, 500), st.integers(1, 12), st.integers(2, 5))
def test_a_geometric_range_reaches_its_end(first, steps, factor):
    values = field_values("width", f"{first}:{first * factor**steps}:x{factor}")
    assert values == [first * factor**k for k in range(steps + 1)]


@given(st.floats(0.01, 10), st.floats(0.001, 1), st.integers(1, 200))
def test_an_arithmetic_range_reaches_its_end(first, step, count):
    values = field_values("output_scale", f"{first!r}:{first + step * count!r}:+{step!r}")
    assert len(values) == len(set(values))
    assert values[0] == first
    assert math.isclose(values[-1], first + step * count, rel_tol=1e-6)


def test_products_and_defaults():
    assert list(stacks({})) == [Stack(), Stack(placement="pre")]
    grid = {"width": [8, 16], "depth": [1, 2], "placement": "pre", "vocab": "width"}
    found = {(s.width, s.depth, s.vocab) for s in stacks(grid)}
    assert found == {(8, 1, 8), (8, 2, 8), (16, 1, 16), (16, 2, 16)}
    assert [s.output_scale for s in stacks({"width": [4, 16], "output_scale": "sqrt-width", "placement": "post"})] == [
        2,
        4,
    ]


def test_zipped_fields_move_together():
    grid = {"placement": "post", "width": "8:32:x2", "vocab": [2, 3, 4], "depth": [1, 5], "zip": [["vocab", "width"]]}
    assert {(s.width, s.vocab, s.depth) for s in stacks(grid)} == {
        (8, 2, 1), (16, 3, 1), (32, 4, 1), (8, 2, 5), (16, 3, 5), (32, 4, 5),
    }  # fmt: skip


@given(st.data())
def test_any_grid_of_good_values_has_the_size_of_its_product(data):
    values = {
        "placement": st.sampled_from(["post", "pre"]),
        "width": st.integers(2, 9),
        "depth": st.integers(1, 9),
        "tokens": st.integers(1, 9),
        "vocab": st.integers(2, 9),
        "output_scale": st.floats(0.1, 10),
    }
    names = data.draw(st.lists(st.sampled_from(sorted(values)), unique=True))
    grid = {name: data.draw(st.lists(values[name], min_size=1, max_size=3, unique=True)) for name in names}
    found = list(stacks(grid))
    assert len(found) == math.prod(map(len, grid.values())) * (1 if "placement" in grid else 2)
    assert len(set(found)) == len(found)
    for name, some in grid.items():
        assert {getattr(s, name) for s in found} == set(some)


@given(
    st.dictionaries(st.sampled_from(sorted(FIELDS)), st.lists(st.text() | st.floats() | st.integers(-5, 5), max_size=3))
)
def test_any_grid_at_all_is_stacks_or_one_clear_error(grid):
    try:
        for number, stack in enumerate(stacks(grid)):
            assert isinstance(stack, Stack)
            if number > 20:
                break
    except ValueError as error:
        assert "\n" not in str(error).split("got")[0]
        assert " must " in str(error)


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name):
    recipe = preset(name)
    found = recipe.stacks()
    assert {s.placement for s in found} == {"post", "pre"}
    assert recipe.draws >= 32, "fewer give no verdict"
    for fixed in ("width", "depth"):
        if name != {"width": "deep", "depth": "wide"}[fixed]:
            assert len({getattr(s, fixed) for s in found}) >= 3, "enough for an exponent"


def swept(*arguments):
    return parsed(["sweep", *arguments]).recipe()


def test_a_file_is_what_its_flags_are(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        'draws = 5\nseed = 7\ndtype = "float64"\ntext = "words.txt"\n'
        '[grid]\nwidth = "8:32:x2"\nvocab = [2, 3, 4]\nzip = [["width", "vocab"]]\n'
    )
    from_file = read_recipe(file)
    line = ["--width", "8:32:x2", "--vocab", "2", "3", "4", "--zip", "width,vocab", "--draws", "5", "--seed", "7"]
    flags = swept(*line, "--dtype", "float64", "--text", str(tmp_path / "words.txt"))
    assert from_file.stacks() == flags.stacks()
    assert from_file.text == flags.text == str(tmp_path / "words.txt")
    assert (from_file.draws, from_file.seed, from_file.dtype) == (flags.draws, flags.seed, flags.dtype)


def test_flags_change_a_file_and_a_preset(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text("draws = 5\n[[grid]]\nwidth = 8\n[[grid]]\nwidth = 16\ndepth = 2\n")
    recipe = swept("--file", str(file), "--tokens", "3", "--seed", "9")
    assert [(s.width, s.depth, s.tokens) for s in recipe.stacks()] == [(8, 6, 3), (8, 6, 3), (16, 2, 3), (16, 2, 3)]
    assert (recipe.draws, recipe.seed) == (5, 9)
    changed = swept("--file", str(file), "--width", "32", "--placement", "post").stacks()
    assert [(s.width, s.depth) for s in changed] == [(32, 6), (32, 2)]
    assert {s.tokens for s in swept("--preset", "quick", "--tokens", "2").stacks()} == {2}
    assert Sweep().recipe() == preset("quick")
    assert Sweep(draws=3).recipe().draws == 3
    assert swept("--width", "8") == Recipe(grid=({"width": ("8",)},))


def test_a_run_is_sampled_again_from_its_manifest(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(["sweep", "--width", "8", "--depth", "1:3:+1", "--seed", "4", "--draws", "3", "--out", str(one)]) == 0
    assert main(["sweep", "--file", str(one / "manifest.toml"), "--out", str(two)]) == 0
    (a,), (b,) = (list((run / "blocks").iterdir()) for run in (one, two))
    assert a.read_bytes() == b.read_bytes()


def test_hyphens_and_underscores_name_the_same_field():
    for spelled in ("query-key-scale", "query_key_scale"):
        line = ["sweep", "--width", "8", "16", f"--{spelled}", "0", "1", "--zip", f"width,{spelled}"]
        (grid,) = parsed(line).recipe().grid
        assert [(s.width, s.query_key_scale) for s in stacks({**grid, "placement": "post"})] == [(8, 0.0), (16, 1.0)]
    assert (field_name("query-key-scale"), field_name("a-b")) == ("query_key_scale", "a-b")


def test_durations_of_every_unit():
    assert [seconds_of(text) for text in ("7", "7s", "7m", "7h", "7d")] == [7, 7, 420, 25_200, 604_800]
    with pytest.raises(ValueError, match="must be a positive duration such as 90s"):
        seconds_of("soon")
