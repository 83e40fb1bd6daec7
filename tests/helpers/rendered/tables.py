"""Tables of the pages that are made of committed results alone; `rendered_pages` puts them between their marks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from theory.stack import TITLES

ROOT = Path(__file__).parents[3]
TWO = {"post": "Post-LN", "pre": "Pre-LN"}
STATISTICS = (
    "break-even rate", "Hessian rate", "critical rate", "2/λ", "1/tr G", "1/rms change of logits", "1/|g|²", "1/d",
)  # fmt: skip
_ROUNDING = 1e-5
_ROWS = ROOT / "tests" / "evidence" / "text_spectra"
OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "muon": "Muon"}


def families() -> str:
    """The coefficient of the finite-width error of every family of stacks, with its standard error."""
    found = _committed("checks/data/large_width/coefficients.json")["families"]
    columns = {
        "all but queries and keys": ("uniform", "others"),
        "with a source": ("uniform, source", "others"),
        "random queries and keys: the rest": ("queries", "others"),
        "W^Q, W^K": ("queries", "queries"),
        "with a source: X^Q, X^K": ("queries, source", "queries of a source"),
    }
    said, rows = {"no norms": "Pre-LN without its norms", "unnormed": "no norm, branches over √L"}, []
    for norms, units in dict.fromkeys(tuple(name.split(", ")[:2]) for name in found):
        title = said[norms] if norms in said else TITLES[norms]
        numbers = [found.get(f"{norms}, {units}, {attention}", {}).get(kind) for attention, kind in columns.values()]
        rows.append(
            [title, units, *(_minus(f"{one['c']:.1f} ± {one['error']:.1f}") if one else "–" for one in numbers)]
        )
    return _table(["norms", "units", *columns], rows)


def pre_norm() -> str:
    """Pre-LN's law at one token: d times the mean and variance of the logarithm and what W2's mean is above theory."""
    found = _committed("tests/evidence/finite-width-pre.json")
    titles = {
        "mean of the logarithm": "mean of ln(W² of layer 1 / of layer L)", "variance of the logarithm": "its variance",
        "grad_sq_W2": "mean square of W², layer 1", "grad_sq_W1": "of W¹", "grad_sq_WV": "of W^V",
    }  # fmt: skip
    rows = []
    for depth in (2, 8, 32):
        cells = [found[f"d = {width}, L = {depth}"] for width in (64, 128, 256)]
        for name, title in titles.items():
            measured = [f"{c[name]['measured']:.2f} ± {c[name]['its standard error']:.2f}" for c in cells]
            rows.append([str(depth), title, *map(_minus, [*measured, f"{cells[0][name]['theory']:.2f}"])])
    return _table(["L", "d times", "d = 64", "128", "256", "theory"], rows)


def shares() -> str:
    """The share of the growth of Post-LN's decoder that each ingredient of the paper's model carries, largest first."""
    found = _committed("tests/evidence/fig3.json")["shares of growth, Post-LN"]
    # Without it the models are other models, whose growth the page speaks of by itself.
    found = {name: row for name, row in found.items() if name != "tied output matrix"}
    rows = []
    for name, row in sorted(found.items(), key=lambda item: -item[1]["share"]):
        share, sem, theory = (_percent(row[key]) for key in ("share", "share_sem", "share_predicted"))
        rows.append([name, f"{share} ± {sem}", theory])
    return _table(["without", "share of the growth, models", "theory"], rows)


def theory_of_critical_rates() -> str:
    """SGD's critical rate times d, where V/d is small, by depth."""
    found = _committed("tests/evidence/first-step-theory.json")
    rows = [
        [TWO[p], *(f"{rate:.3g}" for rate in rates)] for p, rates in found["d times the critical rate of SGD"].items()
    ]
    return _table(["$L$", *map(str, found["depths"])], rows)


def exponents_of_critical_rates() -> str:
    """Theory's exponents of the critical rate in the width, the depth, the tokens and the classes."""
    found = _committed("tests/evidence/first-step-theory.json")["exponents"]
    heads = next(iter(found.values()))
    rows = [
        [title, *(_minus(f"{line[head]:.2f}") if head in line else "–" for head in heads)]
        for title, line in found.items()
    ]
    return _table(["", *(f"${head[0]}${head[1:]}" for head in heads)], rows)


def exponents_in_the_depth() -> str:
    """Theory's exponents of the critical rate in the depth with random queries, by placement and optimizer."""
    found = _committed("tests/evidence/first-step-depth.json")["exponents and standard errors"]
    heads = [(optimizer, span) for optimizer in found for span in next(iter(found[optimizer].values()))]
    rows = [
        [title, *(_minus("{:.2f} ± {:.2f}".format(*found[optimizer][title][span])) for optimizer, span in heads)]
        for title in found["sgd"]
    ]
    names = {"sgd": "SGD", "adam": "signs", "polar": "polar"}
    return _table(["", *(f"{names[optimizer]}, $L$ {span.partition(', ')[2]}" for optimizer, span in heads)], rows)


def coefficients_of_first_steps() -> str:
    """The coefficient of the finite-width error of g·u and u'Gu of every family, with its standard error."""
    found = _committed("checks/data/large_width/first_steps.json")["families"]
    named, rows = {"gain": "$g\\cdot u$", "curvature": "$u^\\top Gu$"}, []
    columns = [(optimizer, name) for optimizer in ("sgd", "adam", "polar") for name in named]
    for family, row in found.items():
        placement, ffn, attention, inputs = family.split(", ")
        numbers = [_minus("{:.1f} ± {:.1f}".format(*row[optimizer][name])) for optimizer, name in columns]
        rows.append([f"{TITLES[placement]}, {ffn}, {attention}, {inputs}", *numbers])
    titles = {"sgd": "SGD", "adam": "signs", "polar": "polar"}
    return _table(["", *(f"{titles[optimizer]}, {named[name]}" for optimizer, name in columns)], rows)


def first_steps_of_families() -> str:
    """First steps of models of transformers over theory, with standard errors: g·u, u'Gu and the change of logits."""
    found, ends, wide = (
        _committed(f"tests/evidence/configuration-steps{kind}.json")["models"] for kind in ("", "-tied", "-wide")
    )
    widths = {"256": found | {f"{family}, tied": one for family, one in ends.items()}} | wide
    columns = [("gain", "512"), *(("curvature", width) for width in widths), ("change", "512")]
    rows = []
    for name, optimizer in (
        (name, optimizer) for name, one in widths["256"].items() for optimizer in one["optimizers"]
    ):
        cells = []
        for number, width in columns:
            row = widths[width].get(name, {"optimizers": {}})["optimizers"].get(optimizer)
            cells.append("–" if row is None else f"{row[number]['ratio']:.3f} ± {row[number]['sem']:.3f}")
        rows.append([name, {"sgd": "SGD", "adam": "Adam", "polar": "polar"}[optimizer], *cells])
    titles = {"gain": "$g\\cdot u$", "curvature": "$u^\\top Gu$", "change": "change of the logits"}
    return _table(["class", "", *(f"{titles[number]}, $d={width}$" for number, width in columns)], rows)


def first_steps_over_theory() -> str:
    """A first step of the classes of torch.optim over theory, with standard errors."""
    found, rows = _committed("tests/evidence/first-step.json")["over theory"], []
    for optimizer, settings in found.items():
        for setting, numbers in settings.items():
            cells = ["{:.3f} ± {:.3f}".format(*numbers[name]) for name in ("gain", "curvature", "change")]
            rows.append([OPTIMIZERS[optimizer], setting, *cells])
    return _table(["", "network", "$g\\cdot u$", "$u^\\top Gu$", "change of the logits"], rows)


def first_steps_of_many_classes() -> str:
    """U'Gu over theory where classes outnumber coordinates, by optimizer."""
    found = _committed("tests/evidence/first-step-vocab.json")["over theory"]
    titles = {"sgd": "SGD", "normalized": "normalized", "adam": "Adam", "polar": "polar", "muon": "Muon"}
    rows = []
    for setting, by_optimizer in found.items():
        cells = ["{:.3f} ± {:.3f}".format(*by_optimizer[name]["curvature"]) for name in titles]
        rows.append([setting, *cells])
    return _table(["$u^\\top Gu$", *titles.values()], rows)


def rates_over_the_critical_one() -> str:
    """Medians of the other two rates over the critical one, with the least and the most, and what the search took."""
    found, rows = _committed("tests/evidence/first-step.json")["over the critical rate"], []
    for optimizer, title in OPTIMIZERS.items():
        for placement, name in TWO.items():
            one = found[placement][optimizer]
            ends = [f"{one[key]:.2g}" for key in ("break even", "least break even", "most break even")]
            rows.append(
                [f"{title}, {name}", f"{one['hessian']:.2f}", "{} ({} to {})".format(*ends), f"{one['passes']:g}"]
            )
    return _table(["", "Hessian rate", "break-even rate", "forward passes"], rows)


def break_even_rates_of_modules() -> str:
    """The search for the break-even rate beside a grid of rates, least and most over the networks that have one."""
    found, rows = _committed("tests/evidence/first-step-modules.json")["break-even"], []
    for module, by_optimizer in found.items():
        for optimizer, one in by_optimizer.items():
            ratios = one["search over grid"]
            ends = f"{min(ratios):.3f} to {max(ratios):.3f}" if ratios else "–"
            passes = "–" if one["passes"] is None else f"{one['passes']:g}"
            with_one = f"{one['networks'] - one['none']} of {one['networks']}"
            rows.append(
                [module.replace("nn.", "`nn.").replace(",", "`,"), OPTIMIZERS[optimizer], with_one, ends, passes]
            )
    return _table(["module", "", "networks that have one", "search over grid", "forward passes"], rows)


def critical_rates_of_modules() -> str:
    """SGD's critical rate of encoders that are Stacks, over theory, with standard errors."""
    found = _committed("tests/evidence/first-step-modules.json")["critical rate of SGD over theory"]
    return _table(list(TWO.values()), [[f"{found[name]['ratio']:.3f} ± {found[name]['sem']:.3f}" for name in TWO]])


def quadratic_range() -> str:
    """How far the quadratic model describes the loss along a first step, over the critical rate."""
    found = _committed("tests/evidence/first-step-range.json")["median, least, most over the critical rate"]
    rows = []
    for setting, by_optimizer in found.items():
        ends = [by_optimizer[name][what] for name in OPTIMIZERS for what in ("change", "loss")]
        title = setting if "L = " in setting else f"{setting}, L = 2"
        rows.append([title, *("{:.2g} ({:.2g} to {:.2g})".format(*one) for one in ends)])
    return _table(["", *(f"{title}, {what}" for title in OPTIMIZERS.values() for what in ("change", "loss"))], rows)


def published_rates() -> str:
    """The first step of Adam from translation models, beside the rates of the papers; a row for each network."""
    content, rows = _committed("tests/evidence/first-step-translation.json"), []
    for placement, networks in content["models"].items():
        for one in networks:
            rates = [one[name] for name in ("critical rate", "Hessian rate", "break-even rate", "loss")]
            numbers = [*rates, *one["losses at the published rates"]]
            rows.append([TWO[placement], *("none" if number is None else f"{number:.3g}" for number in numbers)])
    losses = [f"loss at {rate:g}" for rate in content["published rates"]]
    return _table(["", "critical rate", "Hessian rate", "break-even rate", "loss before", *losses], rows)


def _committed(path: str) -> Any:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |".replace("|  |", "| |"), "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _interval(value: Sequence[float]) -> str:
    return f"{value[0]:.2f} [{value[1]:.2f}, {value[2]:.2f}]"


def _percent(value: float) -> str:
    return _minus(f"{100 * value:.0f}%".replace("-0%", "0%"))


def _minus(text: str) -> str:
    return text.replace("-", "−")
