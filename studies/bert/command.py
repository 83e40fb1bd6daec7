"""`python -m studies bert`, as the dataclass of its flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from gradbounds.flags import Flag, WithJson, optional
from studies.committed import Checked


@dataclass(frozen=True, kw_only=True)
class Bert(Checked, WithJson):
    """Pre-train masked language models on your text with and without warm-up, and judge what the paper says of them."""

    text: Annotated[
        Path, Flag(help="text to learn from, UTF-8; Debian's dict-gcide, wordnet-base and perl-doc have free English")
    ]
    out: Annotated[Path, Flag(help="folder; a run that has finished there is never run again")]
    preset: Annotated[
        str, Flag(help="runs: small, paper (for a GPU), or a TOML file of the same form", metavar="NAME|FILE")
    ] = "small"
    tasks: Annotated[
        Path | None,
        optional("folder of .tsv files of passages in classes, to fine-tune the models on", "FOLDER", "none"),
    ] = None
    seeds: Annotated[int | None, optional("only the first so many seeds of the preset", "INT", "all")] = None
    known: Annotated[
        Path | None, optional("rows.json of another folder, or a folder of such files; not run again", "PATH", "none")
    ] = None
    device: Annotated[str, Flag(help="cpu, cuda or cuda:N")] = "cpu"
    dry_run: Annotated[bool, Flag(help="say how many runs are left and how long they take, and stop")] = False

    def found(self) -> Any:
        """What was found, or an exit code."""
        from studies.bert.reproduce import BertRequest, reproduce_bert

        return reproduce_bert(
            BertRequest(
                preset=self.preset,
                text=self.text,
                out=self.out,
                known=self.known,
                tasks=self.tasks,
                seeds=self.seeds,
                device=self.device,
            ),
            dry_run=self.dry_run,
        )
