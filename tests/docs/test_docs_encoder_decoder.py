"""The page about encoder-decoders: its numbers are the committed evidence."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "encoder_decoder.md").read_text(encoding="utf-8").split())


def evidence(name):
    return json.loads((ROOT / "tests" / "evidence" / f"{name}.json").read_text(encoding="utf-8"))


def test_samples_of_the_simplified_model():
    found = evidence("encoder-decoders")
    assert not found["beyond"]
    uniform = [
        case["widest gradient"]["relative"] for name, case in found["cases"].items() if name.startswith("uniform")
    ]
    assert len(uniform) == 12
    assert f"with uniform attention is within {100 * max(uniform) + 0.05:.1f}% of the prediction" in PAGE
    of_queries = found["queries and keys"]
    assert f"{100 * of_queries['d = 1024']:.0f}% off at $d = 1024$ and {100 * of_queries['d = 4096']:.0f}% at" in PAGE


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
    assert (
        f"grows from {post[0]} to {post[1]} over the decoder's six layers and from {its_encoder[0]} to {its_encoder[1]}"
        in PAGE
    )
    assert f"it falls from {pre[0]} to {pre[1]}, and from {pre_encoder[0]} to {pre_encoder[1]} in the encoder" in PAGE
    last = [
        [f"{found['last W2'][f'{placement}, L = {depth}']:.2f}" for depth in (6, 8, 10, 12, 14)]
        for placement in ("post", "pre")
    ]
    assert f"the last norm is {', '.join(last[0])} at 6-6" in PAGE
    assert f"and {', '.join(last[1])} for Pre-LN" in PAGE


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
    assert "is 6% (Post-LN) and 8% (Pre-LN) in the decoder, 11% and 9% in the encoder" in PAGE
    untied = [
        round(100 * off[f"{p}, xavier, {part}, without tied output matrix"])
        for p, part in (("post", "encoder"), ("pre", "decoder"))
    ]
    assert untied == [4, 2]
    assert "(the encoder's 11% are 4% without it, the decoder's 8% are 2%)" in PAGE
    ratios = {
        p: [r for part in ("decoder", "encoder") for r in norms(found, f"{p}, pytorch, {part}, without nothing")[1]]
        for p in ("post", "pre")
    }
    assert [round(f(ratios["post"]), 1) for f in (min, max)] == [1.1, 1.9]
    assert [round(f(ratios["pre"]), 1) for f in (min, max)] == [2.4, 3.1]
    assert "1.1 to 1.9 times theory's in Post-LN and 2.4 to 3.1 times in Pre-LN" in PAGE
    pytorch = [value for case, value in off.items() if "pytorch" in case and "tied" in case]
    assert len(pytorch) == 4
    assert round(100 * max(pytorch)) == 6
    assert round(100 * off["pre, xavier, encoder, without label distribution"]) == 38


def test_queries_and_keys_of_the_papers_models():
    widest = {
        name: f"{100 * value:.0f}%" for name, value in evidence("fig3")["largest deviation of whole models"].items()
    }
    asked = {name: widest.pop(name) for name in ("WQ", "WK", "XQ", "XK") if name in widest}
    assert f"are up to {max(asked['WQ'], asked.get('WK', '0%'))} off" in PAGE
    assert f"{asked['XQ']} ($W^{{Q\\times}}$) and {asked['XK']} ($W^{{K\\times}}$)" in PAGE


def test_which_term_a_tied_output_matrix_makes():
    found = evidence("tied-output")
    tied, untied = found["pre, tied"], found["pre, untied"]

    def ratio(name):
        return [a / b for a, b in zip(tied[name], untied[name], strict=True)]

    def share(columns):
        return [100 * a / b for a, b in zip(columns["along the stream"], columns["W2"], strict=True)]

    assert "is {:.1f} and {:.1f} times the untied model's".format(*ratio("W2")) in PAGE
    assert "is {:.0f}% and {:.0f}% of it".format(*share(tied)) in PAGE
    assert "({:.0f}% and {:.0f}% untied)".format(*share(untied)) in PAGE
    assert "the other term {:.1f} and {:.1f} times the untied one".format(*ratio("rest")) in PAGE
    assert [round(x, 1) for x in ratio("each position by itself")] == [1.7, 1.7]
    assert [round(x, 1) for x in (*tied["error"], *untied["error"])] == [1.8, 1.8, 0.8, 0.8]
    assert [round(x, 1) for x in tied["cosine of streams"]] == [0.4, 0.4]
    assert round(50 * sum(tied["share along the stream"])) == 22
