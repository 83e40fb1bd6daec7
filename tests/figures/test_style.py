"""What figures have in common: one legend for several panels."""

import pytest

from figures.style import legend_below, panels, style
from studies.warmup.figures import warmup_ends


def test_one_legend_needs_one_look():
    """Curves of one label that look different in two panels are refused; a label of one panel alone is listed."""
    with style():
        figure, axes = panels(2)
        axes[0].plot([1, 2], label="a", color="red")
        axes[1].plot([1, 2], label="b", color="blue")
        legend_below(figure)
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
        axes[1].plot([1, 2], label="a", color="blue")
        with pytest.raises(ValueError, match="^label 'a' must have one look in all panels"):
            legend_below(figure)


def test_a_kind_of_warm_up_has_its_look_in_both_panels():
    """Though one placement lacks runs of another kind."""
    run = {"optimizer": "adam", "peak": 0.1, "first": 8.0}
    kinds = [("post", 1, "a"), ("post", 1, "fixed"), ("post", 18, "b"), ("pre", 1, "a"), ("pre", 18, "b")]
    figure = warmup_ends([
        run | {"placement": placement, "warmup": warmup, "reading": reading, "final": float(warmup)}
        for placement, warmup, reading in kinds
    ])  # fmt: skip
    looks = [{bars.get_label(): bars[0].get_color() for bars in axis.containers} for axis in figure.axes]
    assert looks[1] == {label: looks[0][label] for label in ("no warm-up (a)", "warm-up 18 (b)")}
