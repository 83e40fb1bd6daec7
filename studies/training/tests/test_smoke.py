"""The study runs by its command at the smallest size."""

from gradbounds.cli import main
from studies.__main__ import run


def test_smoke(blank_pictures, tmp_path, capsys):
    """Two widths for two steps; the study continues the folder, and the library refuses it in one line."""
    line = "training --width 8 16 --depth 1 --vocab 4 --tokens 2 --steps 2 --draws 4 --out".split()
    assert run([*line, str(tmp_path / "run")]) == run([*line, str(tmp_path / "run")]) == 0
    capsys.readouterr()
    for word in ("check", "figures", "runs"):
        more = ["--out", "no"] if word == "figures" else []
        assert main([word, str(tmp_path / "run"), *more]) == 2
        assert "read by python -m studies training in a checkout" in capsys.readouterr().err
