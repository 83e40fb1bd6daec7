"""From arguments to an exit code: 0 fine, 1 a verdict changed or something differs, 2 bad input, 130 interrupted."""

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import tyro

import gradbounds
from gradbounds.commands import Command

FINE, BAD_INPUT, INTERRUPTED = 0, 2, 130

# What stands in for a character that the terminal's encoding lacks.
_PLAIN = {"±": "+-", "•": "*", "‖": "||", "²": "^2", "×": "x", "≤": "<=", "–": "-", "…": "..."}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; bad input is one line on stderr and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _print_what_can_be_encoded()
    if given in (["--version"], ["version"]):
        print(f"gradbounds {gradbounds.__version__}")
        return FINE
    try:
        command = parsed(given)
        code = FINE if command is None else command.run()
        sys.stdout.flush()  # so that a closed pipe shows here and not at the interpreter's end
        return code
    except ValueError as error:
        print(f"gradbounds: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("gradbounds: interrupted; draws that had landed stay in the run folder.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe, `head` say, has seen enough; the interpreter's own flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE


def parsed(arguments: list[str]) -> Any:
    """The command that the arguments name; None after help was printed.

    Raises:
        ValueError: they name none; tyro's box of several lines becomes one.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), _colours_as_asked():
            return tyro.cli(
                Command,
                prog="gradbounds",
                description="Is a mean-field statement about Transformers at initialization true, tight, and why?",
                args=arguments,
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitSubcommandPrefixes),
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            return None
        raise ValueError(_one_line(said.getvalue())) from None


@contextlib.contextmanager
def _colours_as_asked() -> Iterator[None]:
    """Help without colours where NO_COLOR is set (no-color.org), of which tyro does not know."""
    if not os.environ.get("NO_COLOR"):
        yield
        return
    before = os.environ.get("TERM", "dumb")
    os.environ["TERM"] = "dumb"
    try:
        yield
    finally:
        os.environ["TERM"] = before


def _print_what_can_be_encoded() -> None:
    """Let no character that an encoding lacks end a command: it becomes a plain one, or a question mark."""

    def plain(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        found = error.object[error.start : error.end]
        return "".join(_PLAIN.get(character, "?") for character in found), error.end

    codecs.register_error("plain", plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")


def _one_line(box: str) -> str:
    """The message of a box, with lines or plain, between its title and its first rule, as one sentence."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()]
    lines = [line for line in lines if line]
    rules = [k for k, line in enumerate(lines) if set(line) <= set("─-")]
    # Drawn with lines, the title stands in the first rule; plain, a rule of its own follows it.
    first = 2 if rules[:1] == [1] and "─" not in lines[0] else 1
    last = min((k for k in rules if k > first), default=len(lines))
    return " ".join(lines[first:last]).rstrip(".") + ". See gradbounds --help."
