"""What has a device, on a pretended GPU, in a process of its own: the fixture answers for torch.cuda."""

from pathlib import Path

from tests.helpers.own_process import cases_on_a_pretended_gpu
from tests.mutants import ROOT, read_mutants, rotten


def test_every_planted_error_fits_its_file():
    """`make evidence PART=pretended-gpu` plants them."""
    found = read_mutants(Path(ROOT) / "tests" / "device_errors.toml")
    assert not rotten(found)
    assert len(found) >= 20


def test_nothing_leaves_the_device():
    done = cases_on_a_pretended_gpu(ROOT, "not evidence")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
