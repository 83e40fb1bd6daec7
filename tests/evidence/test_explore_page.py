"""The page of `gradbounds explore` in a browser: what a control does, what an address restores, how fast it answers."""

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gradbounds.explore.page import page
from gradbounds.explore.precomputed import answers
from gradbounds.explore.server import Server
from tests.helpers.evidence_file import record
from theory import Stack, predict

pytestmark = pytest.mark.evidence

SCRIPT = Path(__file__).parents[1] / "helpers" / "explore_page.js"


def browser() -> str:
    """Chromium, if node finds playwright-core too (NODE_PATH names the folder of an `npm install playwright-core`)."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None or shutil.which("node") is None:
        pytest.skip("needs chromium and node")
    if subprocess.run(["node", "-e", "require('playwright-core')"], capture_output=True).returncode:
        pytest.skip("needs playwright-core: npm install playwright-core, and its node_modules as NODE_PATH")
    return chromium


def test_the_page_in_a_browser(tmp_path):
    chromium = browser()
    file = tmp_path / "page.html"
    few = answers(models=("gpt2",), depths=(6,), widths=(512,), placements=("post", "pre"), choices=False)
    file.write_text(page(few), encoding="utf-8")
    with Server(0, page()) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            line = ["node", str(SCRIPT), chromium, server.address, file.as_uri(), str(tmp_path)]
            seen = subprocess.run(line, capture_output=True, text=True, timeout=900)
            own = server.address.rstrip("/")
        finally:
            server.shutdown()
            thread.join()
    assert seen.returncode == 0, seen.stderr
    found = json.loads(seen.stdout)
    table = pd.read_csv(tmp_path / "page.csv")
    norms = table[table["quantity"] == "grad_W2"].sort_values("layer")["predicted"]
    off = float(np.abs(norms.to_numpy() / predict(Stack())["grad_sq_W2"] ** 0.5 - 1).max())
    found["csv"] = {"rows": len(table), "columns": list(table), "off": off}
    only_own = set(found.pop("requests")) <= {own, "null"}
    found["requests_outside"] = not only_own
    found["latency"]["load_average"] = round(os.getloadavg()[0], 1)
    record("explore-page", found)
    assert found["control"]["moves_numbers"] and found["control"]["moves_curve"]
    assert found["address_restores"] and found["back_restores"]
    assert off < 1e-12
    assert "width 64, depth 2" in found["of_a_config"]
    assert found["command_of_a_config"] == "gradbounds predict --config config.json"
    assert found["errors"] == [] and found["dialogs"] == 0 and only_own
    assert all(case["images"] == 0 and case["seconds"] < 60 for case in found["hostile"].values())
    assert "no field is called nofield" in found["hostile"]["unknown field"]["message"]
    assert "letters" in found["hostile"]["1 MB"]["message"]
    assert found["file"]["asked"] == ["null"] and "loss" in found["file"]["first_line"]
    assert "--width 77" in found["file"]["not_in_it"]
    assert found["cancelled"] == "Cancelled."
    assert found["beyond_390_pixels"] <= 0
    assert found["latency"]["median_ms"] < 1000
