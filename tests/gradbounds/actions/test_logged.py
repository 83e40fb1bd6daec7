"""`gradbounds predict --logged`: step 1 of a log beside theory, and what explains it."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gradbounds import progress
from gradbounds.actions import logged, logged_causes, logged_theory
from gradbounds.actions.first_line import FirstLine, cost_of_batch, first_line
from gradbounds.actions.log_line import LogLine, read_log
from gradbounds.actions.logged import predict_logged
from gradbounds.actions.logged_as import Reading
from gradbounds.actions.logged_causes import Cause, combined_causes, multiplied
from gradbounds.actions.logged_layers import compare_with_theory, matrix_of, proportions_off
from gradbounds.budget import Budget, each_once
from gradbounds.cli import main
from gradbounds.described_network import Description
from gradbounds.result import deliver
from gradbounds.units import cpu_time
from tests.helpers.predicted_once import predicted_once  # noqa: F401  (a fixture)
from theory import Stack
from theory.first_step.noise_scale import noise_scale
from theory.mean_field.text_law import TextLaw, token_law

pytestmark = pytest.mark.usefixtures("predicted_once")
FIELDS = {
    "placement": "pre", "width": 1024, "depth": 4, "tokens": 8, "vocab": 1000, "mask": "causal", "init_std": 0.02,
    "depth_scaling": "depth", "output_scale": 1.0, "ffn_ratio": 2.0, "activation": "gelu",
}  # fmt: skip
BATCH = 60
LOGS = Path(__file__).parents[2] / "data" / "logs"
"""Of one GPT-2 with a gradient times 20 in `c_fc` of its second layer, written and exported as the loggers do."""
TINY = ("predict", "--width", "64", "--depth", "2", "--tokens", "4", "--vocab", "16", "--batch", "6", "--logged")


def line_of(**fields):
    return first_line(noise_scale(Stack(**FIELDS | fields)), BATCH, (), None)


@pytest.fixture(scope="module")
def healthy():
    return line_of()


def judged(tmp_path, loss, norm, text="distinct", fields=FIELDS, **apart):
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps({"step": 1, "loss": loss, "grad_norm": norm} | apart) + "\n")
    return predict_logged(fields, BATCH, Description(), file, text=text, patterns=None, max_time="1m")


def test_a_run_that_is_as_it_should_be(tmp_path, healthy):
    result = judged(tmp_path, healthy.loss + healthy.loss_deviation, healthy.norm - 1.9 * healthy.norm_deviation)
    assert (result.values["as_it_should_be"], result.alarm) == (True, False)
    assert re.match(r"Step 1 is as predicted\.\n\n\S+log\.jsonl: .*\nTheory: .*\n  loss .*\n  grad.*\n", str(result)), (
        "answer first"
    )
    assert "as predicted, though outside 95% of runs: the gradient norm is 0.9" in str(
        judged(tmp_path, healthy.loss, healthy.norm - 2.3 * healthy.norm_deviation)
    )


@pytest.mark.parametrize(
    ("loss", "norm", "cause"),
    [
        (1.0, BATCH * 8, f"the gradient is a sum over all {BATCH * 8} tokens"),
        (1.0, 8, "the gradient is a sum over the 8 tokens of a sequence"),
        (BATCH * 8, BATCH * 8, f"the loss is a sum over all {BATCH * 8} tokens"),
        (8, 8, "the loss is a sum over the 8 tokens of a sequence"),
        (1.0, 12, "the gradient is added up over 12 accumulation steps or devices"),
        (12, 12, "loss and gradient are added up over 12 accumulation steps or devices"),
        (12, 1.0, "the loss is added up over 12 accumulation steps or devices"),
        (1 / 6, 1.0, "the loss is divided once too often, by 6"),
        (1.0, 1 / 6, "the gradient is divided once too often, by 6"),
        (1 / math.log(2), 1.0, "the loss is in bits"),
        (1.0, 65536, "the gradient is multiplied by the loss scale 65536 of half precision"),
        (2**15, 2**15, "loss and gradient are multiplied by the loss scale 32768 of half precision"),
    ],
)
def test_planted_factors(tmp_path, healthy, loss, norm, cause):
    result = judged(tmp_path, healthy.loss * loss, healthy.norm * norm)
    assert (result.alarm, result.to_frame()["cause"][0]) == (True, cause) and f"  {cause}: loss" in str(result)
    causes = [line for line in str(result).splitlines() if line.startswith("  ") and ", gradient norm " in line]
    assert re.search(r" \(\d+ tested, (a text, then )?the likeliest first\):", str(result)) and 1 <= len(causes) <= 5


def test_numbers_that_the_log_states_apart(tmp_path, healthy):
    """A loss scale replaces the usual ones; auxiliary losses with a usual weight explain a larger loss."""
    scaled = judged(tmp_path, healthy.loss, 3000 * healthy.norm, loss_scale=3000)
    assert scaled.to_frame()["cause"][0] == "the gradient is multiplied by the loss scale 3000 of half precision"
    unscaled = judged(tmp_path, healthy.loss, 1024 * healthy.norm, loss_scale=1)
    assert not unscaled.to_frame()["cause"].str.contains("loss scale").any()
    for excess, terms in (
        (0.5, "0.01 times z_loss and 0.01 times load_balancing_loss"),
        (4.1, "0.01 times z_loss and 0.1 times load_balancing_loss"),
        (1.0, "0.1 times z_loss"),
    ):
        added = judged(tmp_path, healthy.loss + excess, healthy.norm, z_loss=10.0, load_balancing_loss=40.0)
        assert added.alarm and added.to_frame()["cause"][0] == f"the loss contains {terms}"


def test_a_log_without_steps_and_one_of_trained_weights(tmp_path, healthy):
    """A loss below theory's may be of a later step; one below half of ln V is of trained weights, in no other unit."""
    file = tmp_path / "log"

    def said(text):
        file.write_text(text)
        result = predict_logged(FIELDS, BATCH, Description(), file, text="distinct", patterns=None, max_time="1m")
        return result.values["as_it_should_be"], result.alarm, str(result)

    *at_start, text = said(f"loss: {healthy.loss} norm: {healthy.norm}")
    assert at_start == [True, False] and ", no step number." in text
    later = said(f"loss: {0.8 * healthy.loss} norm: {healthy.norm}")
    assert later[:2] == (None, False) and (
        "To decide, log the number of the step, because later steps have a smaller loss." in later[2].splitlines()[2]
    )
    below = 2.58 * healthy.loss_deviation  # labels do not depend on logits
    for loss, is_low in ((6.9077 - below - 0.01, True), (6.9077 - below + 0.01, False)):
        words = (
            f"The loss is {6.9077 - loss:.2g} below ln V = 6.908; losses of such random weights are at most "
            f"{below:.2g} below it. So the weights are trained, the loss is divided, the vocabulary is smaller, or the "
            "step is"
        )
        assert said(f"step: 1 loss: {loss}")[2].startswith(f"{words} later.\nStep 1: not as predicted") == is_low
    assert said(f"step: 1 loss: {0.8 * healthy.loss}")[:2] == (False, True)
    assert said(f"loss: {1.2 * healthy.loss}")[:2] == (False, True)
    tuned = said(f"step: 1 loss: {0.4 * math.log(1000)} norm: {healthy.norm}")
    assert (
        tuned[:2] == (None, False)
        and ("The loss is 0.4 times ln V, so the weights are trained. Initialization is not judged." in tuned[2])
        and ("Theory: " in text) != ("Theory: " in tuned[2])
    )


def test_the_lowest_loss_is_of_the_most_repetitive_known_text():
    """Tokens that repeat the previous one lower it, up to the root of how often two tokens are equal."""
    law, line = TextLaw.of_kind("english", 50257), FirstLine(10.85, 0.01, 10.0, 0.4, shared=1.0, own_logit=0.5)
    theory = logged_theory.Theory(Stack(vocab=50257), 512, Description(), law, None, Budget.of("1m", None))
    for is_free, kappa in ((False, law.across), (True, max(token_law("code", 50257).kappa_of_texts.values()))):
        deviation = logged_theory.at_repeats(theory.stack, line, kappa / law.across).loss_deviation
        below = math.log(50257) - theory.lowest_loss(line, is_free=is_free)
        assert below == pytest.approx(0.5 * kappa**0.5 + 2.58 * deviation) and 0.06 < below < 1.0


def test_planted_networks(tmp_path, healthy):
    """Another end, no scaling by the depth, and a padded vocabulary: each is what another network has."""
    for fields, cause in (
        ({"embeddings": "tied"}, "embeddings and output matrix are tied"),
        ({"depth_scaling": "none"}, "W^O and W2 are not scaled by the depth"),
    ):
        other = line_of(**fields)
        assert abs(math.log(other.norm / healthy.norm)) > 0.05 or abs(other.loss - healthy.loss) > 0.1
        assert judged(tmp_path, other.loss, other.norm).to_frame()["cause"][0] == cause
    padded = line_of(vocab=2048)
    assert judged(tmp_path, padded.loss, padded.norm).to_frame().loc[0, ["cause", "tried"]].tolist() == [
        "the vocabulary is padded to 2048", 3,  # 1024, 2048, 4096
    ]  # fmt: skip


def test_fine_groups_where_they_may_matter(tmp_path, healthy, monkeypatch):
    """A slow network is refined within 1% of the edge of what is predicted; a loss alone refutes an untied cause."""
    monkeypatch.setattr(logged_theory, "_SOON", 0.0)
    for norm, is_coarse in ((1.0, True), (math.exp(2.58 * healthy.norm_deviation / healthy.norm), False), (12.0, True)):
        assert (", quick estimate)" in str(judged(tmp_path, healthy.loss, norm * healthy.norm))) == is_coarse
    norms = judged(tmp_path, healthy.loss + 0.5, healthy.norm).to_frame().set_index("cause")["gradient_norm"]
    assert {words[:9] for words in norms.index[norms.isna()]} == {"all weigh", "W^O and W"}


@pytest.mark.parametrize("quick", [0.0, 0.01, 0.09])
@pytest.mark.parametrize("deviation", [0.02, 0.05, 0.2, 0.6])
def test_a_normal_norm_is_as_predicted(quick, deviation):
    """`--batch` prints the range by which `--logged` judges; a quick estimate's contains the fine one."""
    line = FirstLine(11.0, 0.1, 3.0, 3.0 * deviation, quick=quick)
    assert all(Cause("", line).explains(LogLine(None, norm)) for norm in line.norm_range)
    # The limits of a quick estimate, divided by the fine one.
    fine = [FirstLine(11.0, 0.1, norm, norm * deviation).norm_range for norm in (3.0 / (1.0 - quick), 3.0 / 1.01)]
    assert quick < 0.01 or (line.norm_range[0] < 1.0001 * fine[1][0] and fine[0][1] < 1.0001 * line.norm_range[1])


def test_how_long_it_takes_is_said_before(tmp_path, healthy, monkeypatch, capsys):
    """The announced cost with all causes and without them, on one line, without a terminal."""
    monkeypatch.setattr(progress, "LONG", 0.0)
    for norm in (healthy.norm, healthy.norm**2):
        judged(tmp_path, healthy.loss, norm)
        said = re.fullmatch(r"(.*) \(\S+ CPU s if the log is as predicted\): about .*\n", capsys.readouterr().err)
        assert said and said[1] == "predicting the first step"


def test_the_announced_cost_is_that_of_the_network_one_text_and_other_weights():
    stack = Stack(**FIELDS)
    theory = logged_theory.Theory(stack, BATCH, Description(), None, None, Budget.of("1m", None))
    others = [other for _, other, _ in logged_theory._other_weights(FIELDS, Description(), stack)]
    each = [cost_of_batch(network, None, None)[0].seconds for network in (stack, stack, *others)]
    words, whole, causes = theory.announced(FIELDS, LogLine(7.4), coarse=False)
    assert len(others) == 4 and (whole.seconds, causes.seconds) == pytest.approx((sum(each), sum(each[1:])))
    assert f"({cpu_time(each[0])} if the log is as predicted)" in words


def test_the_error_of_an_estimated_norm_grows_with_the_distance_of_the_texts():
    """The root mean square of the estimates for usual texts, in three small networks, is near 0.07 of ln kappa."""
    gated = {"normalization": "rms", "ffn": "gated", "activation": "silu", "ffn_ratio": 2.0}
    tied = {"embeddings": "tied", "activation": "gelu", "depth_scaling": "depth"}
    size = {"width": 128, "depth": 2, "tokens": 16, "vocab": 2048, "heads": 2, "mask": "causal", "init_std": 0.02}
    size |= {"placement": "pre", "query_key_scale": 0.2, "embedding_scale": 0.02, "output_scale": 0.2}
    laws, errors = [TextLaw.zipf(logged_theory._exponent(kappa, 2048), 2048) for kappa in (0.005, 0.0104, 0.0214)], []
    for fields in (tied, gated, gated | {"embeddings": "tied"}):
        stack = Stack(**size | fields, output_projection="random")
        low, start, high = (
            first_line(noise_scale(stack, text=law, patterns=2, coarse=True), 32, (), law) for law in laws
        )
        for line, law in ((low, laws[0]), (high, laws[2])):
            times = law.across / laws[1].across
            errors += [math.log(logged_theory.at_repeats(stack, start, times).norm / line.norm) / math.log(times)]
    rms = (sum(error**2 for error in errors) / len(errors)) ** 0.5
    assert rms / 1.4 < logged_theory._OF_ESTIMATE < 1.4 * rms
    sure = replace(start, norm_deviation=0.0)
    wide = logged_theory.at_repeats(stack, sure, times)
    assert wide.norm_deviation == pytest.approx(logged_theory._OF_ESTIMATE * math.log(times) * wide.norm)


def test_the_proportions_of_matrices_tell_weights_from_texts():
    """Twice the deviation multiplies queries and keys by 3 to 8 next to values, and gated units by about 2."""
    gated = {"width": 128, "vocab": 64, "ffn": "gated", "activation": "silu", "depth_scaling": "none"}
    plain = Stack(**FIELDS | gated | {"query_key_scale": 0.2, "embedding_scale": 0.02, "output_projection": "random"})
    double = replace(plain, **{name: 2.0 * getattr(plain, name) for name in logged_theory._DEVIATIONS})
    squares, doubled = (noise_scale(stack, patterns=2).grad_sq(BATCH) for stack in (plain, double))
    names = {"self_attn.q_proj": "WQ", "self_attn.v_proj": "WV", "self_attn.o_proj": "WO", "mlp.up_proj": "W1"}

    def off(squares_of_log, times=1.0, roles=("WQ", "WV", "WO", "W1")):
        norms = {
            f"layers.{k}.{name}.weight": squares_of_log[role][k] ** 0.5 * (times if (k, role) == (1, "W1") else 1.0)
            for name, role in names.items() for k in range(4) if role in roles
        }  # fmt: skip
        return proportions_off(compare_with_theory(norms, squares)[0])

    assert off(squares) == pytest.approx((0.0, 0.4 / 0.6, 0.0), abs=1e-9)
    units, queries, furthest = off(doubled)
    assert 3.0 < math.exp(0.6 * queries - 0.4) < 8.0 and 1.7 < math.exp(0.17 * units) < 2.3
    assert off(squares, 20.0) == pytest.approx((math.log(20.0) / 4 / 0.17, 0.4 / 0.6, math.log(20.0) / 0.44))
    assert off(squares, roles=("WV",)) == pytest.approx((0.0,)) and off(squares, roles=()) == ()
    cause, log = Cause("", FirstLine(11.0, 0.02, 20.0, 2.0, matrices=off(doubled))), LogLine(11.0, 20.0)
    assert cause.distance(log) == pytest.approx(math.hypot(units, queries, furthest)) and not cause.explains(log)


def test_a_text_that_nobody_gave_is_the_first_cause(tmp_path):
    """Within known texts a log is undecided; beyond them, or where the text was given, it is wrong."""
    laws = [TextLaw.zipf(exponent, 1000) for exponent in (0.9, 1.8)]  # two words are equal with chances 0.017 and 0.32
    usual, many = (first_line(noise_scale(Stack(**FIELDS), text=law), BATCH, (), law) for law in laws)
    result = judged(tmp_path, usual.loss, usual.norm, None)
    assert result.values["as_it_should_be"] is None and not result.alarm
    assert re.match(r"Step 1: undecided: the gradient norm .*\nTo decide, repeat with --text FILE, .*\.\n", str(result))
    assert deliver(result, command="predict", out=None, as_json=True) == 3
    assert result.to_frame()["cause"][0].startswith("a text in which two tokens are equal with probability 0.01")
    assert (result.to_frame()["tried"] == 11).any()  # divisors of 60, of which one is the nearest
    for norm, text in ((2.4, None), (many.norm, None), (usual.norm, "zipf:1.5")):  # 2.7 if all words differ
        result = judged(tmp_path, usual.loss, norm, text)
        assert result.values["as_it_should_be"] is False and result.alarm
        assert not result.to_frame()["cause"].str.startswith("a text in which").any()
    fields = FIELDS | {
        "embeddings": "tied"
    }  # of which text has no rule; a norm of 480 equal tokens is 22 times as large
    tied = line_of(embeddings="tied")
    for times, fine in ((2.0, None), (0.5, None), (30.0, False), (0.03, False)):
        assert judged(tmp_path, tied.loss, times * tied.norm, None, fields).values["as_it_should_be"] is fine


@pytest.mark.parametrize(
    ("kappa", "sequences", "vocab", "named"), [
        (0.0062, 512, 50257, True), (0.0085, 512, 50257, True), (0.0214, 512, 50257, True), (0.03, 512, 50257, True),
        (0.26, 512, 50257, True), (0.45, 512, 50257, False), (0.003, 512, 50257, False),
        (0.0125, 512, 128256, True), (0.032, 512, 128256, False), (0.032, 2, 128256, True), (0.06, 2, 128256, False),
    ]
)  # fmt: skip
def test_the_text_that_would_explain_a_norm(kappa, sequences, vocab, named):
    """The chance that two tokens agree is found from the norm, with the nearest measured text.

    GPT-2's tokenizer reaches 0.29 with code. A batch of few sequences reaches more than its text.
    """

    def predicted(law):  # a text within 13% explains
        return FirstLine(10.97, 0.02, 160.0 * law.across**0.5, 8.0 * law.across**0.5, shared=1.0)

    causes = logged_theory.text_causes(
        Stack(vocab=vocab), None, predicted, LogLine(10.97, 160.0 * kappa**0.5), sequences
    )
    assert len(causes) == named
    for cause in causes:
        said = re.match(r".*probability (0\.\d+), like .* nearest measured text: (.+), (0\.\d+)\)", cause.words)
        assert float(said[1]) == pytest.approx(kappa, rel=0.05) and cause.is_usual == (
            float(said[1]) < 0.0215 or sequences == 2
        )
        assert (cause.text_off > 2.0) == (float(said[1]) > 0.02), "by the prior of texts"
        texts = token_law("english", vocab).kappa_of_texts | token_law("code", vocab).kappa_of_texts
        least = min(abs(math.log(value / kappa)) for value in texts.values())
        assert abs(math.log(float(said[3]) / kappa)) == pytest.approx(least, abs=0.03)


@pytest.mark.parametrize(("norm", "first"), [(1.35, "the gradient is added up over 2 "), (1.15, "a text in which ")])
def test_a_text_unlike_the_counted_texts_is_no_first_cause(norm, first):
    """It is printed, after a cause that explains the log exactly, and the log stays undecided."""
    log, start = LogLine(10.97, norm * 10.0), FirstLine(10.97, 0.02, 10.0, 0.4, shared=1.0)
    texts = logged_theory.text_causes(
        Stack(vocab=50257), (0.0075, start), lambda law: multiplied(start, 1.0, (law.across / 0.0075) ** 0.5), log
    )
    assert len(texts) == 1 and ("code explains the log, nearest measured" in texts[0].words) == (norm > 1.2)
    near = Cause("the gradient is added up over 2 steps", replace(start, norm=norm * 10.4))
    causes = [near, *(replace(near, words=f"the norm is of one device's gradient, over {k}") for k in range(3))]
    verdict, _, *rows = logged._off_lines(Cause("", start), log, [*causes, *texts], ["repeat"])
    assert verdict.endswith("\nTo decide, repeat.") and f", gradient norm {10.4 * norm:.2f} +- 0.40" in rows[norm < 1.2]
    assert [row.startswith("  a text in") for row in rows[:3]] == [norm < 1.2, False, norm > 1.2] and first in rows[0]
    assert "one device's gradient, one device with the whole batch has the predicted norm" in rows[-1]
    theory = SimpleNamespace(
        stack=Stack(vocab=50257), batch=BATCH, squares={}, coarsen=lambda *_: None, texts=lambda *_: texts,
        others=lambda *_: [], with_texts=lambda *_: [], lowest_loss=lambda *_, **__: 0.0,
        with_fall=lambda _, __, line, ___: line,
    )  # fmt: skip
    exact, likely = replace(start, norm=log.norm), [("at a", 0.0), ("at b", 2.4), ("at c", 2.5)]  # 2.45 for 1/20
    theory.with_texts = lambda *_: [Cause(words, exact, text_off=off) for words, off in likely]
    is_fine, (verdict, *lines), ranked = logged._judged(
        theory, Cause("", start), Reading(log), compare_with_theory({}, {})[0], {}, (), is_free=True
    )
    assert is_fine is None and ("decide, test the other causes, then repeat with --text" in verdict) == (norm > 1.2)
    assert len(ranked) > 6 and [any(f"  {words}: loss" in line for line in lines) for words, _ in likely] == [
        True, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize(("loss", "norm", "lower", "first"), [
    (10.85, 2.0 * 1.371, 0.0, "the gradient is added up over 2 accumulation steps or devices"),
    (10.85, 2.9, 0.0, "the gradient is added up over 2 accumulation steps or devices (2 to 4 with other texts)"),
    (10.65, 2.0 * 1.371, 0.2, "the gradient is added up over 2 accumulation steps or devices"),
    (10.93, 1.371, 0.0, "all weights have twice their standard deviation"),
])  # fmt: skip
def test_a_factor_and_a_text_at_once(loss, norm, lower, first):
    """A log that is off by both names the factor with its texts once; its number is a range if the text decides it.

    A text whose tokens repeat the previous one has a lower loss.
    """
    law, start = (
        TextLaw.of_kind("english", 50257),
        FirstLine(10.85, 0.01, 10.0, 0.4, shared=1.0, own_logit=lower / 0.05),
    )
    theory = logged_theory.Theory(Stack(vocab=50257), 512, Description(), law, None, Budget.of("1m", None))
    double = Cause("all weights have twice their standard deviation", replace(start, loss=10.93))
    log, healthy = LogLine(loss, 10.0 * norm), Cause(", next to", start)
    texts = theory.with_texts(healthy, [double], Reading(log), {})
    alone = Cause("the gradient is added up over 4 accumulation steps or devices", replace(start, norm_deviation=9.0))
    lines = logged._off_lines(healthy, log, texts, [])
    printed = [line for line in lines if line.startswith(f"  {first}, with a text (--text FILE) in which two tokens ")]
    kappa = re.search(r" equal with probability (0[.\d]+):", printed[0])[1]
    assert 0.006 < float(kappa) < 0.0075 * 1.5**2 and ", next to (" in lines[1] and len(printed) == 1
    by_itself = theory.with_texts(healthy, [], Reading(log), {alone.kind: alone})
    assert not any(logged_causes.WITH_TEXT in each.words for each in by_itself if each.kind == alone.kind)
    assert [each.kind for each in by_itself].count(alone.kind) == 1


def test_a_range_is_of_one_number_and_a_text_needs_no_cause():
    """Two numbers of a cause change together, so that one range would not describe it."""
    line = FirstLine(10.85, 0.01, 20.0, 0.4)
    of_devices = "the norm counts {0} times the parameters that {0} devices share"
    pairs = [(kappa, Cause(of_devices.format(count), line)) for kappa, count in ((0.01, 4), (0.02, 8))]
    (one,) = logged_causes.nearest_with_texts(pairs, LogLine(10.85, 20.0), {})
    assert one.words.startswith(f"{of_devices.format(4)}, with a text (--text FILE) in which")
    (plain,) = logged_causes.nearest_with_texts(pairs, LogLine(10.85, 20.0), {pairs[0][1].kind: pairs[1][1]})
    assert plain.words == of_devices.format(8)
    sums = [(kappa, Cause(f"sum over {count} in 5.14.1", line)) for kappa, count in ((0.01, 4), (0.02, 8))]
    (plain,) = logged_causes.nearest_with_texts(sums, LogLine(10.85, 20.0), {sums[0][1].kind: sums[0][1]})
    assert plain.words == "sum over 4 in 5.14.1 (4 to 8 with other texts)" and plain.kind == sums[0][1].kind
    law, start = TextLaw.of_kind("english", 50257), FirstLine(10.85, 0.01, 10.0, 0.4, shared=1.0)
    theory = logged_theory.Theory(Stack(vocab=50257), 512, Description(), law, None, Budget.of("1m", None))
    log = LogLine(10.85, 10.0 * (0.0257 / law.across) ** 0.5)
    texts = theory.with_texts(Cause("", start), [Cause("all weights have half", start)], Reading(log), {})
    assert [each.explains(log) for each in texts if "50304" in each.words or "have half" in each.words] == [True], (
        "a padded vocabulary is no nearer than the text alone, while other weights count although they are not either"
    )
    assert logged_theory.at_repeats(Stack(vocab=50257), start, 40.0).loss_deviation == pytest.approx(
        (2.0 * (10.85 - math.log(50257))) ** 0.5
    )


def test_twice_the_deviation_is_twice_the_initializer_range_and_codes_share_one_prior(monkeypatch):
    config = {"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 256, "vocab_size": 512}
    of, double = (Description(config=config | {"initializer_range": std}) for std in (0.02, 0.04))
    others = {words: other for words, other, _ in logged_theory._other_weights({}, of, of.read({})[0])}
    assert others["all weights have twice their standard deviation"] == double.read({})[0]
    theory = logged_theory.Theory(of.read({})[0], 64, of, None, None, Budget.of("1m", None))
    monkeypatch.setattr(theory, "line", lambda *_: FirstLine(7.0, 0.1, 1.0, 0.1))
    assert {cause.codes for cause in theory.others({}, LogLine(9.0), []) if cause.kind == logged_causes.DRAWN_BY} == {
        sum(words.startswith(logged_causes.DRAWN_BY) for words in others)
    }


def test_the_loss_varies_more_with_a_text_that_repeats_more():
    """In sampled Llamas it varied up to 2.9 times as much as with English text, for 5 times as many repeats."""
    law, start = TextLaw.of_kind("english", 50257), FirstLine(10.85, 0.01, 10.0, 0.4, shared=1.0)
    texts = logged_theory.text_causes(
        Stack(vocab=50257), (law.across, start), lambda text: multiplied(start, 1.0, (text.across / law.across) ** 0.5),
        LogLine(10.88, 13.71),
    )  # fmt: skip
    assert [0.015 < text.line.loss_deviation < 0.0286 for text in texts] == [True]
    refuted = law.across, replace(start, matrices=(3.0,))  # by the matrices of a log, for any text
    assert not logged_theory.text_causes(Stack(vocab=50257), refuted, lambda _: texts[0].line, LogLine(10.88, 13.71))
    far, known = replace(texts[0].line, matrices=(3.0,)), (law.across, replace(start, matrices=(0.1,)))
    # They count next to the known text alone.
    assert [(0.1,)] == [
        cause.line.matrices
        for cause in logged_theory.text_causes(Stack(vocab=50257), known, lambda _: far, LogLine(10.88, 13.71))
    ]


@pytest.mark.parametrize(("own_logit", "runs"), [(1.5, 0.04), (1.5, 0.2), (0.0, 0.04)])
def test_tokens_that_repeat_the_previous_one_lower_the_loss_of_tied_embeddings(own_logit, runs):
    """Up to the frequency of one token, indents explain a lower loss, because logits prefer a position's own token."""

    def predicted(law):
        return FirstLine(10.86, 0.01, 160.0 * law.across**0.5, 8.0 * law.across**0.5, own_logit=own_logit)

    law, log = TextLaw.of_kind("english", 50257), LogLine(10.86 - 1.5 * runs, 160.0 * 0.0125**0.5)
    causes = logged_theory.text_causes(Stack(vocab=50257), (law.across, predicted(law)), predicted, log)
    assert [cause.is_fitted for cause in causes] == [True] * (own_logit > 0.0 and runs < 0.05)
    assert all(" 0.0124 and 4.0% of tokens repeat the previous one (usual" in cause.words for cause in causes)


def test_a_fine_tuning_run_gets_the_check_of_units_alone(tmp_path, healthy):
    """A loss of trained weights is not judged; one that a unit makes that small is named as such."""
    tuned = judged(tmp_path, 0.3 * math.log(FIELDS["vocab"]), 40 * healthy.norm, None)
    assert (tuned.values["as_it_should_be"], tuned.alarm) == (None, False)
    assert not tuned.to_frame()["cause"].str.contains("a text|drawn by|tied").any()
    assert re.search(
        r"Tested \d+ other units and sums: in none would it be the loss of untrained weights\.", str(tuned)
    )
    assert "so the weights are trained, unless loss and gradient are averaged over 2.5 times as many tokens" in str(
        judged(tmp_path, 0.4 * healthy.loss, 0.4 * healthy.norm)
    )
    divided = judged(tmp_path, healthy.loss / 4, healthy.norm / 4)
    assert divided.alarm and "  loss and gradient are divided once too often, by 4: loss " in str(divided)


def test_planted_norms(tmp_path, healthy):
    """A norm that was clipped, or squared; and what nothing explains."""
    for norm, words in ((0.5, "clipped at 0.5"), (healthy.norm**2, "the norm is squared")):
        causes = judged(tmp_path, healthy.loss, norm).to_frame()
        assert healthy.norm > 0.5 and causes.query("explains")["cause"].str.contains(words).any()
    result = judged(tmp_path, healthy.loss - 3.0, healthy.norm)
    none = re.search(r" tested causes explains these numbers.\nTested: .*\nNext: ", str(result))
    assert none and not result.to_frame()["explains"].any()


@pytest.mark.parametrize("fields", [
    {"depth_scaling": "depth"}, {"placement": "peri"}, {"normalization": "rms", "embedding_scale": 1.0},
])  # fmt: skip
def test_the_logit_of_a_positions_own_token_is_the_change_of_the_loss(fields):
    """The loss falls by it for each share of tokens that repeat the previous one; the twin predicts both losses."""
    law, of = TextLaw.zipf(1.0, 512), {"embeddings": "tied", "mask": "causal", "embedding_scale": 0.1, "init_std": 0.05}
    of |= {"placement": "pre", "width": 128, "depth": 3, "tokens": 8, "vocab": 512, "output_scale": 0.5}
    none, often = (
        noise_scale(Stack(**of | fields), text=replace(law, own_labels=share * law.frequencies), patterns=2)
        for share in (0.0, 4.0)
    )
    own = (none.loss - often.loss) / (4.0 * law.across)
    assert logged_theory._own_logit(none.stack, none) == pytest.approx(own, rel=0.02) and own > 0.1
    assert logged_theory._own_logit(replace(none.stack, output_transform="added"), none) == 0.0


def test_a_line_names_one_cause_and_the_measurement_that_decides():
    """At most five, the likeliest first; a text is among them, and both factors of all weights are one cause."""
    log, line = LogLine(11.0, 20.0), FirstLine(11.0, 0.02, 20.0, 2.0)
    words = ("the gradient is added up over 2 steps", "the norm is squared", "all weights have twice X", "a text",
             "embeddings are untied", "all weights have half their standard deviation")  # fmt: skip
    causes = [Cause(word, replace(line, norm=20.0 + 0.1 * k)) for k, word in enumerate(words)]
    *rows, _, apart = logged._off_lines(Cause("", replace(line, norm=10.0)), log, causes, [])
    printed = [row.partition(": loss")[0].strip() for row in rows[2:]]  # without the squared norm, 50 times rarer
    assert printed[0] == "a text" and sorted(printed) == sorted(words[k] for k in (0, 2, 3, 4, 5))
    many = [Cause(f"cause {letter}", line) for letter in "abcdefghi"]
    many += [Cause("a text", line, is_fitted=True, text_off=5.0)]
    *_, fifth = logged._off_lines(Cause("", replace(line, norm=10.0)), log, many, [])
    assert fifth.startswith("  a text: loss")
    weights = [Cause(f"all weights have {word} their standard deviation", line).kind for word in ("half", "twice")]
    assert weights[0] == weights[1] and Cause("a", line, 3, codes=2).surprise(log) == pytest.approx(
        Cause("a", line).surprise(log) + 2.0 * math.log(6.0)
    )
    assert "norms of dL/dWQ and dL/dWK divided by that of dL/dWV are 3 to 8 times (a third to an eighth of) " in apart


def test_printed_causes_are_sorted_by_nearness_with_a_test_that_tells_them_apart():
    log, healthy = LogLine(11.0, 92.8), Cause("nothing", FirstLine(11.0, 0.02, 11.4, 2.2))
    causes = [
        Cause(words, FirstLine(11.0, 0.02, norm, 0.4 * norm), is_fitted=words.startswith("the norm counts"))
        for words, norm in (("the gradient is added up over 8 steps", 180.0), ("the norm is squared", 129.0),
                            ("the norm counts 64 times the parameters that 64 devices share", 92.0))
    ]  # fmt: skip
    *_, first, second, third, harm, apart = logged._off_lines(healthy, log, causes, [])
    assert "the gradient is added up, AdamW's step stays the same except for epsilon, clipping at norm 1 acts" in harm
    assert "norm of 0.063 on, and SGD without clipping moves 16 times as far; if the norm counts 64 times" in harm
    assert "devices share, only the log is wrong, unless clipping uses the logged norm; if the norm is squared," in harm
    harms = {
        "the loss is multiplied by the loss scale 1024 of half precision": "only the log is wrong.",
        "the gradient is multiplied by the loss scale 8 of half precision": "unless clipping uses the logged norm.",
        "the loss is a sum over all 64 tokens": "Does it change training? If the loss is a sum, AdamW's step stays the",
        "the loss is a sum, but the gradient is a mean": "and SGD without clipping moves 16 times as far.",
    }
    for words, said in harms.items():
        assert said in logged._harm_lines([replace(causes[0], words=words)], 11.375)[0]
    silent = ("weights are initialized by X, and the gradient is added up", "the loss contains 0.01 times aux",
              "the gradient of WO in layer 1 is 5 times its prediction")  # fmt: skip
    assert not logged._harm_lines([replace(causes[0], words=words) for words in silent], 11.375)
    assert ("over 8" in first, "counts 64" in second, "squared" in third) == (True, True, True)
    assert "halve the norm; if the norm is squared, twice the loss gives 4 times the norm; if shared" in apart


def test_a_verdict_names_the_codes_that_draw_other_weights():
    notes, log = Description(like="llama-3-8b").read({})[1], LogLine(11.0, 92.8)
    causes = [Cause("weights are initialized by Megatron-LM (megatron)", FirstLine(11.0, 0.02, 46.4, 5.0))]
    also = combined_causes(causes, Reading(log), Stack(**FIELDS), BATCH)
    assert sum(cause.tried for cause in also) == 3 * 11, "of the loss, the gradient or both, by the divisors of 60"
    assert [cause.words.partition(", and ")[2] for cause in also if cause.explains(log)] == [
        "the gradient is added up over 2 accumulation steps or devices"
    ]
    assert "Next, without a new run: add --drawn-by megatron if it draws your weights." in logged._off_lines(
        Cause("nothing", FirstLine(11.0, 0.02, 11.4, 2.2)), log, [*causes, *also], []
    )
    # At the logged rate, these weights lower the loss by 0.3, and Megatron's by 1.
    both = [Cause(words, FirstLine(11.0, 0.02, 92.8, 5.0, fall=fall))
            for words, fall in ((causes[0].words, 1.0), ("the gradient is added up over 8 steps", 0.3))]  # fmt: skip
    _, _, *rows, left, _ = logged._off_lines(
        Cause("", FirstLine(11.0, 0.02, 11.4, 2.2, fall=0.04)), replace(log, fall=0.3, rate=1e-6), both, []
    )
    assert (left, *(row.partition(": loss")[0] for row in rows[:2])) == (
        f"If step 1 had the logged rate, the fall leaves only: {both[1].words}.",
        *(f"  {each.words}" for each in both[::-1]),
    )  # fmt: skip
    sentence, row = logged._code_lines(notes, [*causes, *also], log)
    assert sentence.endswith("If other code draws them, add --drawn-by megatron or torchtitan.") and (
        row.endswith("does not explain the log; loss 11, gradient norm 46.4 (log: 2 times)")
    )


def test_another_draw_of_a_models_weights(tmp_path, capsys):
    file, log = tmp_path / "config.json", tmp_path / "log.csv"
    file.write_text(json.dumps({"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 256, "vocab_size": 512}))
    line = ["predict", "--config", str(file), "--tokens", "8", "--batch", "24", "--patterns", "2", "--text", "zipf:1"]
    assert main([*line, "--embeddings", "untied", "--drawn-by", "olmo", "--json"]) == 0
    drawn = json.loads(capsys.readouterr().out)
    log.write_text(f"step,loss,grad_norm\n0,{drawn['loss']},{drawn['gradient_norm']}\n1,1,1\n")
    asked = [*line, "--embeddings", "untied", "--drawn-by", "megatron", "--logged", str(log)]
    assert main([*asked, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["as_it_should_be"], said["causes"][0]["cause"]) == (
        False, "weights are initialized by OLMo's code (olmo)",
    )  # fmt: skip
    assert main(asked) == 1 and ", next to a prediction with --drawn-by megatron (" in capsys.readouterr().out
    assert main([*asked[:-2], "--compare", "embedding_scale=1"]) == 0 and (
        "arguments:\n    --embedding-init-method-std 1  # documented" in capsys.readouterr().out
    )
    assert main(["predict", "--config", str(file), "--tokens", "8", "--patterns", "2", "--logged", str(log)]) in (0, 1)
    assert re.search(r"at 64 sequences of 8 tokens.*, as on the card", capsys.readouterr().out)


def test_a_long_log_is_read_at_its_beginning(tmp_path):
    file = tmp_path / "log"
    with file.open("wb") as long:
        long.write(b"1 11.0 2.5\n" * 2**17 + b"\xff")
        long.truncate(2**30)
    assert read_log(file) == LogLine(11.0, 2.5, 1)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "logged must be a readable log, got"),
        (b"", "is empty"),
        (b"\x00\x01\xff", "is not UTF-8 text"),
        (b"step,accuracy\n1,0.5\n", "logged must have a loss"),
        (b"step,loss,norm\n1,nan,2.5\n", "logged must have positive finite numbers, got loss nan at step 1 in"),
        (b"1 11.0 inf\n", "logged must have positive finite numbers, got norm inf at step 1 in"),
        (b'{"step": 10, "loss": 9.0}\n', "logged must begin at step 0 or 1, got step 10 first"),
    ],
)
def test_bad_logs_are_one_line(tmp_path, capsys, content, error):
    file = tmp_path / "log"
    if content is not None:
        file.write_bytes(content)
    assert main([*TINY, str(file)]) == 2
    said = capsys.readouterr().err
    assert error in said and said.count("\n") == 1


def test_norms_of_single_matrices(tmp_path, healthy):
    """A matrix of one layer that is four times too large is found, a fused one is as long as its parts together."""
    squares = noise_scale(Stack(**FIELDS)).grad_sq(BATCH)
    roles = {"self_attn.v_proj": "WV", "mlp.fc1": "W1", "mlp.fc2": "W2"}
    text = [f"step: 1 loss: {healthy.loss} grad_norm: {healthy.norm}"]
    text += [
        f"model.layers.{k}.{name}.weight: {(4.0 if (name, k) == ('mlp.fc2', 2) else 1.0) * squares[role][k] ** 0.5}"
        for name, role in roles.items()
        for k in range(4)
    ]
    text += ["layers.1.rotary.weight: 0.5", "step: 2 loss: 3.0", "layers.0.mlp.fc1.weight: 99"]
    (tmp_path / "log").write_text("\n".join(text))
    log, limits = tmp_path / "log", {"patterns": None, "max_time": "1m"}
    result, quick = (
        predict_logged(FIELDS, BATCH, Description(), log, is_quick=is_quick, **limits) for is_quick in (0, 1)
    )
    assert "layers" not in quick.tables and "\nA quick estimate does not judge norms of single matrices: " in str(quick)
    layers = result.to_frame("layers").set_index(["role", "layer"])["ratio"]
    assert (
        len(layers) == 12
        and layers["W2", 3] == pytest.approx(4.0)
        and (layers.drop(("W2", 3)).to_numpy() == pytest.approx(1.0))
    )
    said = ("Furthest from the median: dL/dW2 of layer 3", "Parameters not compared: layers.1.rotary.weight.",
            "read from model.layers.*.mlp.fc2.weight (4)")  # fmt: skip
    assert [words for words in said if words not in str(result)] == []
    figure = result.plot()
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[2].lines}
    assert lines["W2"] == pytest.approx([1.0, 1.0, 4.0, 1.0]) and "not as predicted" in figure.get_suptitle()
    fused, _ = compare_with_theory({"h.0.attn.c_attn.weight": 5.0}, {"WQ": [9.0], "WK": [0.0], "WV": [16.0]})
    assert fused["ratio"].tolist() == [1.0]


@pytest.mark.parametrize(("times", "off"), [(0.3, True), (1.5, False), (3.0, True)])
def test_a_matrix_that_the_whole_norm_hides(tmp_path, healthy, times, off):
    """It is off where loss and norm are as they should be; beyond twice or half the median's ratio."""
    squares = noise_scale(Stack(**FIELDS)).grad_sq(BATCH)
    text = [f"step: 1 loss: {healthy.loss} grad_norm: {healthy.norm}"]
    text += [
        f"layers.{layer}.mlp.fc2.weight: {(times if layer == 2 else 1.0) * squares['W2'][layer] ** 0.5}"
        for layer in range(4)
    ]
    (tmp_path / "log").write_text("\n".join(text))
    result = predict_logged(FIELDS, BATCH, Description(), tmp_path / "log", patterns=None, max_time="1m")
    assert (result.alarm, result.values["as_it_should_be"]) == (off, not off)
    assert (
        ("Step 1 is as predicted." in str(result))
        != off
        == (
            f"except dL/dW2 of layer 3: its ratio logged / predicted is {times:.3g} times the median ratio."
            in str(result)
        )
    )


@pytest.mark.parametrize(
    ("name", "matrix"),
    [
        ("transformer.h.11.attn.c_proj.weight", (11, ("WO",))),
        ("transformer.h.0.mlp.c_proj.weight", (0, ("W2",))),
        ("gpt_neox.layers.2.attention.dense.weight", (2, ("WO",))),
        ("bert.encoder.layer.1.intermediate.dense.weight", (1, ("W1",))),
        ("bert.encoder.layer.1.output.dense.weight", (1, ("W2",))),
        ("bert.encoder.layer.1.attention.output.dense.weight", (1, ("WO",))),
        ("layers.3.feed_forward.w3.weight", (3, ("W1",))),
        ("grad_norm/layers.3.feed_forward.w1.weight", (3, ("WG",))),
        ("gradients/transformer.h.0.attn.c_attn.weight", (0, ("WQ", "WK", "WV"))),
        ("grad_2.0_norm/model.layers.2.mlp.down_proj.weight", (2, ("W2",))),
        ("l2_norm/grad/model.transformer.blocks.5.attn.Wqkv.weight", (5, ("WQ", "WK", "WV"))),
        ("grad/transformer.blocks.5.ff_out.weight.norm", (5, ("W2",))),
        ("layers.1.attention.wo.weight_grad_norm", (1, ("WO",))),
        ("grad_2.0_norm_model.layers.0.mlp.fc1.weight_step", (0, ("W1",))),
        ("grads/layers_4/attention/query/kernel", None),
        ("grads/layers_4/attention/query", (4, ("WQ",))),
        ("layers.1.attention.q_norm.weight", None),
        ("layers.3.attention_norm.weight", None),
        ("model.layers.3.self_attn.q_proj.bias", None),
        ("lm_head.weight", None),
    ],
)
def test_names_of_matrices(name, matrix):
    assert matrix_of(name) == matrix


WHOLE = ("tensorboard_wide.csv", "wandb_history.csv", "wandb_history.jsonl")


@pytest.fixture(scope="module")
def of_gpt2():
    """Theory's squared norms for the network of the logs, and what is said of any of them."""

    def judged(name):
        config = Description(config=LOGS / "config.json")
        given = {"embeddings": "untied", "tokens": 16}
        return predict_logged(given, 8, config, LOGS / name, text=None, patterns=2, max_time="1m")

    return judged


@pytest.mark.parametrize("name", [*WHOLE, "tensorboard_tags.csv", "tensorboard_tags", "wandb_panel.csv"])
def test_foreign_logs_say_the_same(name):
    """Of several ways out of two loggers each has the numbers of the first step, under the same names."""
    known, line = read_log(LOGS / WHOLE[0]), read_log(LOGS / name)
    assert line.step == 0 and (line.loss, line.norm) == (
        (None, None) if "panel" in name else pytest.approx((known.loss, known.norm))
    )
    assert len(line.parameters) == {"tensorboard_tags": 3, "tensorboard_tags.csv": 6, "wandb_panel.csv": 6}.get(
        name, 3 * 12 + 5
    )
    for parameter, norm in line.parameters.items():
        assert norm == pytest.approx(known.parameters[parameter.replace("gradients_", "gradients/")])


def test_a_planted_scale_in_a_foreign_log(of_gpt2):
    """The matrix is named, its cause is the first, names are shown that were read and that were not."""
    result = of_gpt2(WHOLE[0])
    layers = result.to_frame("layers").set_index(["role", "layer"])["ratio"]
    assert (
        len(layers) == 12
        and layers["W1", 2] == pytest.approx(20, rel=0.2)
        and layers.drop(("W1", 2)).between(0.8, 1.25).all()
        and result.alarm
        and (result.to_frame()["cause"][0].startswith("the gradient of W1 in layer 2 is "))
    )
    said = ("Furthest from the median: dL/dW1 of layer 2", "read from gradients/transformer.h.*.mlp.c_fc.weight (3)",
            "Parameters not compared: ", "gradients/transformer.h.*.ln_1.bias (3)")  # fmt: skip
    assert [words for words in said if words not in str(result)] == []


def test_a_log_of_matrices_alone(of_gpt2):
    result = of_gpt2("wandb_panel.csv")
    assert (result.values["as_it_should_be"], result.alarm) == (None, False)
    said = ("no loss, no gradient norm, at step 0.", "Only the norms of single matrices are compared with theory",
            "Furthest from the median: dL/dW1 of layer 2")  # fmt: skip
    assert [words for words in said if words not in str(result)] == []


def test_names_that_are_not_gradients():
    """Where some names say that they are gradients, weights of the same log are not taken for them."""
    norms = {
        "gradients/h.0.mlp.c_fc.weight": 3.0,
        "weights/h.0.mlp.c_fc.weight": 99.0,
        "gradients/h.1.mlp.c_fc.weight": 0.0,
        "gradients/h.2.mlp.c_fc.weight": 5.0,
    }
    table, unmatched = compare_with_theory(norms, {"W1": [9.0, 9.0, math.nan]})
    # Invalid norms come first, as of many names only some are printed; theory lacks the last one's norm.
    assert (table["ratio"].tolist(), unmatched) == ([1.0], [
        "gradients/h.1.mlp.c_fc.weight, which is 0", "weights/h.0.mlp.c_fc.weight", "gradients/h.2.mlp.c_fc.weight",
    ])  # fmt: skip


def test_bad_folders(tmp_path):
    (tmp_path / "log.csv").write_text("step,loss\n0,11.0\n")
    for path, error in (
        (tmp_path, "have files with columns Step and Value in a folder"),
        (LOGS.parent, "be a log, or a folder of CSV files with a tag each"),
    ):
        with pytest.raises(ValueError, match=f"logged must {error}"):
            read_log(path)


def test_the_next_loss_contradicts_weights_whose_first_step_is_as_predicted(tmp_path, capsys):
    """The loss falls as AdamW lowers it, or the log is undecided; a warm-up may begin with rate 0."""
    file, log = tmp_path / "config.json", tmp_path / "log.jsonl"
    file.write_text(json.dumps({"model_type": "gpt2", "n_layer": 1, "n_head": 4, "n_embd": 256, "vocab_size": 512}))
    line = ["predict", "--config", str(file), "--tokens", "32", "--batch", "64", "--text", "zipf:1"]
    assert main([*line, "--learning-rate", "1e-4", "--optimizer", "adam", "--json"]) == 0
    change = json.loads(capsys.readouterr().out)["learning_rate"][0]["loss_change"] / 1e-4
    log.write_text('{"step": 1, "loss": 6.25}')
    with each_once():
        drawn = predict_logged(
            {"tokens": 32}, 64, Description(config=file), log, text="zipf:1", patterns=None, max_time=None
        ).values
        for times, rate, is_fine, printed in (
            (1.0, 1e-4, True, False), (4.0, 1e-4, False, True), (0.0, 1e-4, True, True),
            (1.0, 1e-7, True, False), (4.0, 1e-7, True, False), (0.0, 1e-7, True, False),
        ):  # fmt: skip
            log.write_text(
                f"step: 1 loss: {drawn['loss']} grad_norm: {drawn['gradient_norm']} lr: {rate}\n"
                f"step: 2 loss: {drawn['loss'] + times * change * rate}"
            )
            assert main([*line, "--logged", str(log)]) == (0 if is_fine else 3)
            said = capsys.readouterr().out
            assert said.startswith(
                "Step 1 is as predicted." if is_fine else "Step 1: undecided: loss and gradient norm"
            )
            assert ("+- " in said.partition("for AdamW at the logged rate 0.0001: ")[2]) == printed


@pytest.mark.parametrize(
    ("deviation", "spread", "is_open"), [(0.26, 0.9, False), (0.275, 0.9, True), (0.275, 0.0, False)]
)
def test_texts_that_differ_too_much_acquit_nothing(deviation, spread, is_open):
    """A factor of 2 that is within 99% of runs of a kind of text is not seen."""
    healthy, theory = Cause("", FirstLine(11.0, 0.02, 10.0, 10.0 * deviation)), SimpleNamespace(spread=spread)
    lines = logged._open_lines(healthy, theory, LogLine(11.0, 20.0))
    assert [line.partition(", ")[0] for line in lines] == [
        "Step 1: undecided: such texts differ so much that a norm of twice or half the prediction is not seen.\n"
        "To decide"
    ] * is_open and not logged._open_lines(healthy, theory, LogLine(11.0))
