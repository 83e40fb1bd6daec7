"""Tables kept by key: made once, again under another version, and whole."""

import numpy as np
import pandas as pd
import pytest

from studies.hessian.subjects import of_stack
from studies.table_cache import cached
from studies.translation_model import Translation
from theory import Stack


def test_a_table_is_made_once_for_a_key_and_a_version(tmp_path):
    tables = iter(pd.DataFrame({"value": [number]}) for number in range(3))
    asked = [({"stack": {}}, 1), ({"stack": {}}, 1), ({"stack": {}}, 2), ({"stack": {"depth": 3}}, 1)]
    found = [cached(tmp_path, key, version, lambda: next(tables)) for key, version in asked]
    assert [(int(table["value"].iloc[0]), new) for table, new in found] == [(0, True), (0, False), (1, True), (2, True)]
    assert len(list((tmp_path / "models").iterdir())) == 3


def test_a_flipped_bit_in_a_table_is_refused(tmp_path):
    """Or changes nothing, as one in what pandas notes; a table of an earlier version has no checksums and is read."""
    table = pd.DataFrame({"value": np.random.default_rng(0).normal(size=64)})
    cached(tmp_path, {}, 1, lambda: table)
    (file,) = (tmp_path / "models").iterdir()
    content, refused = file.read_bytes(), 0
    for at in range(0, len(content), 23):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        try:
            pd.testing.assert_frame_equal(cached(tmp_path, {}, 1, pytest.fail)[0], table)
        except ValueError as error:
            assert str(error) == f"out must contain complete tables, but {str(file)!r} is damaged; move it away."
            refused += 1
    assert refused > 512 // 23, "all flips in the numbers, and more"
    table.to_parquet(file, index=False)
    pd.testing.assert_frame_equal(cached(tmp_path, {}, 1, pytest.fail)[0], table)


def test_keys_hold_what_differs_from_defaults():
    """A field that is added later, with a default that is what was there before, makes no kept table another one."""
    assert of_stack(Stack(depth=3)).key == {"stack": {"depth": 3}}
    assert Translation(placement="pre", tied=False).non_default() == {"placement": "pre", "tied": False}
