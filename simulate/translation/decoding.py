"""Translations by a trained model: beam search, of which greedy search is the narrowest, and their BLEU.

Source: Wu et al. (2016), section 7, for the length normalization; Post (2018) for BLEU with a signature.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simulate.counts import check_count
from simulate.translation.measurements import padded
from simulate.translation.model import Translator
from simulate.translation.parallel_text import BEGIN, END, PADDING, Ids, ParallelText

# Sentences that are translated together.
_TOGETHER = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How translations are searched for.

    Attributes:
        beam: hypotheses that are kept of each sentence; 1 is greedy search.
        length_penalty: a hypothesis of T words, its end among them, has the score Σ ln p/T^penalty.
        longer: a translation has at most so many words more than its source, its end among them.

    Raises:
        ValueError: a value is outside its range.
    """

    beam: int = 5
    length_penalty: float = 1.2
    longer: int = 50

    def __post_init__(self) -> None:
        check_count("beam", self.beam, 1)
        check_count("longer", self.longer, 1)
        penalty = self.length_penalty
        if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not 0 <= penalty < float("inf"):
            raise ValueError(f"length_penalty must be a finite number of at least 0, got {penalty!r}.")


@torch.no_grad()
def translations(model: Translator, sources: Sequence[Ids], search: Search) -> list[list[int]]:
    """The best hypothesis of every sentence, as ids without its two ends.

    Args:
        model: that translates, without dropout; it is as before in the end.
        sources: ids of each sentence, with an end.
        search: how.
    """
    training, fast = model.training, torch.backends.mha.get_fastpath_enabled()
    order = sorted(range(len(sources)), key=lambda k: len(sources[k]))
    best: dict[int, list[int]] = {}
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)  # another arithmetic than the one that was trained
    try:
        for start in range(0, len(order), _TOGETHER):
            places = order[start : start + _TOGETHER]
            device = next(model.parameters()).device
            batch = padded([sources[k] for k in places]).to(device)
            best |= dict(zip(places, _batch(model, batch, search), strict=True))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        model.train(training)
    return [best[k] for k in range(len(sources))]


def _batch(model: Translator, source: Tensor, search: Search) -> list[list[int]]:
    """Beam search of a batch of sentences (sentences, length), padded."""
    count, beam, vocab = len(source), search.beam, model.translation.vocab
    repeated = source.repeat_interleave(beam, 0)
    memory = model.encoded(source).repeat_interleave(beam, 0)
    most = ((source != PADDING).sum(1) + search.longer).tolist()
    words = torch.full((count, beam, 1), BEGIN, device=source.device)
    # At the beginning all hypotheses of a sentence are one.
    scores = torch.full((count, beam), -torch.inf, device=source.device)
    scores[:, 0] = 0.0
    ended: list[list[tuple[float, list[int]]]] = [[] for _ in range(count)]
    for length in range(1, max(most) + 1):
        logits = model.decoded(words.flatten(0, 1), memory, repeated)[:, -1]
        steps = logits.log_softmax(-1).unflatten(0, (count, beam))
        steps[..., [PADDING, BEGIN]] = -torch.inf
        sums = scores[..., None] + steps
        # As many hypotheses may end as go on.
        best, places = sums.flatten(1).topk(min(2 * beam, beam * vocab), 1)
        last = [length == limit for limit in most]
        for k in range(count):
            if len(ended[k]) >= beam or length > most[k]:
                continue
            ends = sums[k, :, END] if last[k] else None
            for rank, (score, place) in enumerate(zip(best[k].tolist(), places[k].tolist(), strict=True)):
                if ends is None and rank < beam and place % vocab == END and score > -torch.inf:
                    ended[k].append((score / length**search.length_penalty, words[k, place // vocab, 1:].tolist()))
            for hypothesis, score in enumerate(ends.tolist() if ends is not None else ()):
                if score > -torch.inf:
                    ended[k].append((score / length**search.length_penalty, words[k, hypothesis, 1:].tolist()))
        if all(len(hypotheses) >= beam or length >= limit for hypotheses, limit in zip(ended, most, strict=True)):
            break
        best = best.masked_fill(places % vocab == END, -torch.inf)
        scores, chosen = best.topk(beam, 1)
        places = places.gather(1, chosen)
        before = words.gather(1, (places // vocab)[..., None].expand(-1, -1, length))
        words = torch.cat([before, (places % vocab)[..., None]], -1)
    # Of a model that has numbers that are none, no hypothesis ends.
    return [max(hypotheses)[1] if hypotheses else [] for hypotheses in ended]


def bleu(model: Translator, text: ParallelText, search: Search) -> float:
    """BLEU, in percent, of translations of a text's sources against its lines.

    Raises:
        ValueError: sacrebleu is not installed, or the text has no lines.
    """
    return float(_metric().corpus_score(_lines(model, text, search), [list(text.lines)]).score)


def bleu_signature(text: ParallelText) -> str:
    """What `bleu` computes, in sacrebleu's words.

    Raises:
        ValueError: sacrebleu is not installed.
    """
    metric = _metric()
    metric.corpus_score(list(text.lines[:1]), [list(text.lines[:1])])
    return str(metric.get_signature())


def _lines(model: Translator, text: ParallelText, search: Search) -> list[str]:
    if text.decode is None or not text.lines:
        raise ValueError("text must have been read from files to be translated, and has no lines.")
    return [text.decode(ids) for ids in translations(model, text.sources, search)]


def _metric():  # type: ignore[no-untyped-def]
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError as error:
        raise ValueError("sacrebleu must be installed for BLEU: pip install 'gradbounds[text]'") from error
    return BLEU()
