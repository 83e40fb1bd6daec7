"""The study runs by its command at the smallest size."""

from studies.__main__ import run


def test_smoke(parallel_files, blank_pictures, tmp_path, capsys):
    """A model of each placement on a small text: verdicts, tables and the figure."""
    source, target = map(str, parallel_files)
    size = "--width 8 --ffn-width 8 --heads 2 --vocab 40 --depth 2 3 --batch-tokens 200 --batches 1 --seeds 1 --pairs 8"
    size += " --initialization xavier"
    out = tmp_path / "run"
    run(["fig3", "--source", source, "--target", target, "--out", str(out), *size.split(), "--check"])
    assert (out / "fig3.png").exists(), list(out.iterdir())
    assert "Committed verdicts" in capsys.readouterr().out
