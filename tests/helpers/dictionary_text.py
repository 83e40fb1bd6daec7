"""Free English of Debian's packages dict-gcide and wordnet-base as one text; the user installs them."""

import gzip
import re
from pathlib import Path

GCIDE = Path("/usr/share/dictd/gcide.dict.dz")
WORDNET = [Path(f"/usr/share/wordnet/data.{part}") for part in ("adj", "adv", "noun", "verb")]


def missing() -> list[str]:
    """The packages that are not installed."""
    files = {"dict-gcide": [GCIDE], "wordnet-base": WORDNET}
    return [package for package, there in files.items() if not all(file.is_file() for file in there)]


def dictionary_text() -> bytes:
    """The dictionary without its notes in brackets and its pronunciations, then WordNet's glosses; UTF-8.

    docs/warmup.md has the same as a shell's command.
    """
    dictionary = b"\n".join(
        re.sub(rb"\\[^\\]*\\", b"", re.sub(rb"\[[^\]]*\]", b"", line))
        for line in gzip.decompress(GCIDE.read_bytes()).split(b"\n")
    )
    glosses = [
        line[line.rindex(b" | ") + 3 :] + b"\n"
        for file in WORDNET for line in file.read_bytes().removesuffix(b"\n").split(b"\n") if b" | " in line
    ]  # fmt: skip
    return (dictionary + b"".join(glosses)).decode("utf-8", "ignore").encode()
