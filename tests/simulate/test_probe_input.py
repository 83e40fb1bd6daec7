"""Probing what cannot be probed: one clear line that names the user's object."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from simulate import probe
from simulate.modules.catalogue import BUILTINS, load_factory
from tests.helpers.probed_modules import one_module
from theory.configurations import stack_from_config


def bad(**changes):
    """A factory of which one thing is wrong."""

    def user_factory(width, depth):
        if "factory" in changes:
            raise KeyError("no such size")
        module, batch = one_module(width, depth)
        if "frozen" in changes:
            module.requires_grad_(False)

        def of(seed):
            x, loss = batch(seed)
            return x, changes.get("loss", loss)

        return changes.get("made", (module, of))

    return user_factory


@pytest.mark.parametrize(("changes", "message"), [
    ({"factory": True}, r"^factory '.*user_factory' must not fail, but raised KeyError: 'no such size' at width 6"),
    ({"made": nn.Linear(2, 2)}, r"^factory '.*factory' must return \(module, batch\), where .*, got Linear at width 6"),
    ({"loss": lambda y: y}, r"^loss of '.*user_factory' must be a scalar tensor, got \(2, 3, 6\) at width 6, depth 2"),
    ({"loss": lambda y: 1.0}, r"^loss of '.*user_factory' must be a scalar tensor, got float"),
    ({"loss": lambda y: y.nothing}, r"^loss of '.*user_factory' must not fail, but raised AttributeError"),
    ({"frozen": True}, r"^loss of '.*user_factory' must depend on parameters that require gradients"),
])  # fmt: skip
def test_the_user_s_object_is_named(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        probe(bad(**changes), widths=[6], depths=[2], seeds=1)
    if "factory" in changes:
        assert isinstance(caught.value.__cause__, KeyError), "the original error is kept"


def ends(width, depth):
    sys.exit(7)


def nowhere(width, depth):
    with torch.device("meta"):
        return one_module(width, depth)


def base(width, depth):
    raise BaseException("mine")  # noqa: TRY002 - what nobody should raise


@pytest.mark.parametrize(("factory", "message"), [
    (ends, r"^factory 'ends' must not fail, but called sys.exit\(7\) at width 6, depth 2"),
    (base, "^factory 'base' must not fail, but raised BaseException: mine at width 6, depth 2"),
    (nowhere, "^module and batch of 'nowhere' on 'cpu' must not fail, but raised NotImplementedError: Cannot copy out"),
])  # fmt: skip
def test_what_ends_python_or_is_nowhere(factory, message):
    with pytest.raises(ValueError, match=message):
        probe(factory, widths=[6], depths=[2], seeds=1)


def test_a_factory_by_its_file(tmp_path, monkeypatch):
    """As pytest takes a file; the module's name must be free."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_own_zoo.py").write_text("def it(width, depth):\n    return width\n")
    (tmp_path / "json.py").write_text("def it(width, depth):\n    return width\n")
    (tmp_path / "ending.py").write_text("raise SystemExit(3)\n")
    assert load_factory(f"{tmp_path}/my_own_zoo.py:it")(3, 1) == 3
    monkeypatch.delitem(sys.modules, "my_own_zoo")
    with pytest.raises(ValueError, match="but 'json' of .* (is another module|raised AttributeError)"):
        load_factory(f"{tmp_path}/json.py:loads")
    with pytest.raises(ValueError, match=r"^factory must be importable, but .* called sys.exit\(3\)"):
        load_factory(f"{tmp_path}/ending.py:it")


@pytest.mark.parametrize(("arguments", "message"), [
    ({"widths": []}, "^widths must have at least one value"),
    ({"depths": [0]}, "^depths must be an integer of at least 1, got 0"),
    ({"seeds": 0}, "^seeds must be an integer of at least 1, got 0"),
    ({"device": "tpu"}, "^device must be 'cpu', 'cuda' or 'cuda:N', got 'tpu'"),
    ({"device": "cuda:99"}, "^device must be "),
])  # fmt: skip
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        probe(one_module, **({"widths": [4], "depths": [2], "seeds": 1} | arguments))


def test_gpt2_is_the_one_that_its_configuration_describes():
    """And versions of the library that draw another one are named."""
    config = {"model_type": "gpt2", "n_embd": 128, "n_layer": 3, "n_head": 2, "vocab_size": 512}
    assert BUILTINS["gpt2"].stack(128, 3) == stack_from_config(config, tokens=16, embeddings="untied")[0]


@pytest.mark.parametrize(("version", "said"), [("5.14.1", "transformers 5.14.1 does not divide"), ("5.15.0", "")])
def test_a_library_that_draws_another_gpt2_is_named(monkeypatch, version, said):
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(__version__=version))
    assert BUILTINS["gpt2"].note().startswith(said)
    assert bool(BUILTINS["gpt2"].note()) == bool(said)


def test_a_library_that_cannot_be_imported_is_named_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match="transformers must be installed .*import of transformers halted"):
        BUILTINS["gpt2"].factory(64, 1)
