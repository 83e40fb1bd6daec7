"""The page about encoder-decoders: its numbers are the committed evidence."""

import json
from pathlib import Path

import numpy as np

from tests.helpers.printed_numbers import says

ROOT = Path(__file__).parents[2]
PAGE = "encoder_decoder.md"


def evidence(name):
    return json.loads((ROOT / "tests" / "evidence" / f"{name}.json").read_text(encoding="utf-8"))


def test_samples_of_the_simplified_model():
    found = evidence("encoder-decoders")
    assert not found["beyond"]
    uniform = [
        case["widest gradient"]["relative"] for name, case in found["cases"].items() if name.startswith("uniform")
    ]
    assert len(uniform) == 12
    narrow, wide = (f"{100 * found['queries and keys'][f'd = {width}']:.0f}%" for width in (1024, 4096))
    within = f"{100 * max(uniform) + 0.05:.1f}%"
    assert says(PAGE, "uniform attention", within, narrow, "$d = 1024$", wide, "$d = 4096$")


def norms(found, case):
    rows = found["W2"][case]
    return rows["mean norm"], [norm / theory for norm, theory in zip(rows["mean norm"], rows["theory"], strict=True)]


def test_profiles_of_the_papers_models():
    found = evidence("fig3")
    ends = {
        case: [f"{norms(found, f'{case}, without nothing')[0][k]:.2f}" for k in (0, -1)]
        for case in ("post, xavier, decoder", "post, xavier, encoder", "pre, xavier, decoder", "pre, xavier, encoder")
    }
    post, its_encoder, pre, pre_encoder = ends.values()
    assert says(PAGE, "Fig. 3(a), Post-LN", *post, "decoder", *its_encoder, "encoder")
    assert says(PAGE, "Fig. 3(b), Pre-LN", *pre, *pre_encoder, "encoder")
    last = [
        [f"{found['last W2'][f'{placement}, L = {depth}']:.2f}" for depth in (6, 8, 10, 12, 14)]
        for placement in ("post", "pre")
    ]
    assert says(PAGE, "Fig. 3(c,d)", ", ".join(last[0]), "Post-LN", ", ".join(last[1]), "Pre-LN")


def test_theory_beside_the_papers_models():
    found = evidence("fig3")
    off = {}
    for case in found["W2"]:
        off[case] = max(abs(ratio - 1) for ratio in norms(found, case)[1])
    whole = [
        round(100 * off[f"{p}, xavier, {part}, without nothing"])
        for part in ("decoder", "encoder")
        for p in ("post", "pre")
    ]
    assert whole == [6, 8, 11, 9]
    assert says(PAGE, "6%", "Post-LN", "8%", "Pre-LN", "decoder", "11%", "9%", "encoder")
    untied = [
        round(100 * off[f"{p}, xavier, {part}, without tied output matrix"])
        for p, part in (("post", "encoder"), ("pre", "decoder"))
    ]
    assert untied == [4, 2]
    assert says(PAGE, "encoder", "11%", "4%", "decoder", "8%", "2%")
    ratios = {
        p: [r for part in ("decoder", "encoder") for r in norms(found, f"{p}, pytorch, {part}, without nothing")[1]]
        for p in ("post", "pre")
    }
    assert [round(f(ratios["post"]), 1) for f in (min, max)] == [1.1, 1.9]
    assert [round(f(ratios["pre"]), 1) for f in (min, max)] == [2.4, 3.1]
    assert says(PAGE, "1.1 to 1.9", "Post-LN", "2.4 to 3.1", "Pre-LN")
    pytorch = [value for case, value in off.items() if "pytorch" in case and "tied" in case]
    assert len(pytorch) == 4
    assert round(100 * max(pytorch)) == 6
    assert round(100 * off["pre, xavier, encoder, without label distribution"]) == 36


def test_queries_and_keys_of_the_papers_models():
    widest = {
        name: f"{100 * value:.0f}%" for name, value in evidence("fig3")["largest deviation of whole models"].items()
    }
    asked = {name: widest.pop(name) for name in ("WQ", "WK", "XQ", "XK") if name in widest}
    own = max(asked["WQ"], asked.get("WK", "0%"))
    assert says(PAGE, asked["XQ"], "$W^{Q\\times}$", asked["XK"], "$W^{K\\times}$", "tokens' own", own)


def test_queries_and_keys_as_models_widen():
    evidence_of_widths = evidence("query-widths")
    found = {name: case for name, case in evidence_of_widths.items() if name.startswith(("post", "pre"))}

    def off(how, name, kind):
        """Largest deviation of a mean over seeds in one model, in percent."""
        ratios = {role: np.mean(values) for role, values in found[name][how].items() if role.split()[1] in kind}
        return max(abs(round(100 * (ratio - 1))) for ratio in ratios.values())

    across, every = ("XQ", "XK"), ("XQ", "XK", "WQ", "WK")
    means, drawn = (max(off(how, name, across) for name in found) for how in ("products' means", "products drawn"))
    worst = max(found, key=lambda name: off("products drawn", name, every))
    assert worst == "pre, d = 1024"
    last = [f"{off(how, worst, every)}%" for how in ("products drawn", "products' means")]
    of_second = max(off("products drawn", name, ("W2",)) for name in found if name.startswith("post"))
    assert says(PAGE, f"{means}%", f"{drawn}%", f"{of_second}%", last[0], "Pre-LN", last[1], "five of the six")
    assert [name for name, nearer in evidence_of_widths["draws are nearer"].items() if not nearer] == [worst]


def test_growth_at_pytorchs_initialization():
    found = evidence("fig3")["W2"]
    tied, untied = (
        np.polyfit(range(6), np.log(found[f"post, pytorch, decoder, without {what}"]["mean norm"]), 1)[0]
        for what in ("nothing", "tied output matrix")
    )
    assert says(PAGE, "PyTorch", f"{untied:.2f}", f"{tied:.2f}")


def test_which_term_a_tied_output_matrix_makes():
    found = evidence("tied-output")
    tied, untied = found["pre, tied"], found["pre, untied"]

    def ratio(name):
        return [a / b for a, b in zip(tied[name], untied[name], strict=True)]

    def share(columns):
        return [100 * a / b for a, b in zip(columns["along the stream"], columns["W2"], strict=True)]

    whole, along, other = (
        [f"{one:.1f}" for one in ratio("W2")], [f"{one:.0f}%" for one in (*share(tied), *share(untied))],
        [f"{one:.1f}" for one in ratio("rest")],
    )  # fmt: skip
    assert says(PAGE, *whole, *along, *other)
    assert [round(x, 1) for x in ratio("each position by itself")] == [1.7, 1.7]
    assert [round(x, 1) for x in (*tied["error"], *untied["error"])] == [1.8, 1.8, 0.8, 0.8]
    assert [round(x, 1) for x in tied["cosine of streams"]] == [0.4, 0.4]
    assert round(50 * sum(tied["share along the stream"])) == 22
