"""Tables kept by key: made once, again under another version, and whole."""

import pandas as pd

from gradbounds.table_cache import cached
from studies.hessian.subjects import of_stack
from studies.translation_model import Translation
from theory import Stack


def test_a_table_is_made_once_for_a_key_and_a_version(tmp_path):
    tables = iter(pd.DataFrame({"value": [number]}) for number in range(3))
    asked = [({"stack": {}}, 1), ({"stack": {}}, 1), ({"stack": {}}, 2), ({"stack": {"depth": 3}}, 1)]
    found = [cached(tmp_path, key, version, lambda: next(tables)) for key, version in asked]
    assert [(int(table["value"].iloc[0]), new) for table, new in found] == [(0, True), (0, False), (1, True), (2, True)]
    assert len(list((tmp_path / "models").iterdir())) == 3


def test_keys_hold_what_differs_from_defaults():
    """A field that is added later, with a default that is what was there before, makes no kept table another one."""
    assert of_stack(Stack(depth=3)).key == {"stack": {"depth": 3}}
    assert Translation(placement="pre", tied=False).non_default() == {"placement": "pre", "tied": False}
