"""From arguments to an exit code.

0 fine, 1 a verdict changed or something differs, 2 bad input, 130 interrupted by Ctrl-C, 143 by SIGTERM.
"""

import codecs
import contextlib
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from typing import Any

import tyro

import gradbounds
from gradbounds.commands import Command
from gradbounds.commands.examples import EXAMPLES
from gradbounds.commands.flags import WithJson
from gradbounds.help_text import Captured, grouped

FINE, BAD_INPUT = 0, 2

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
        code = FINE if command is None else _run(command, given[0])
        sys.stdout.flush()  # so that a closed pipe shows here and not at the interpreter's end
        return code
    except ValueError as error:
        print(f"gradbounds: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt as stop:
        print("gradbounds: interrupted; draws that had landed stay in the run folder.", file=sys.stderr)
        # By Ctrl-C, or by the signal that gradbounds.__main__ names; a shell counts from 128.
        return 128 + int(stop.args[0] if stop.args else signal.SIGINT)
    except BrokenPipeError:
        # The reader of a pipe, `head` say, has seen enough; the interpreter's own flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE


def _run(command: Any, name: str) -> int:
    """Exit code; with `--json` one object is printed, by the command itself or from what it tells."""
    run: Callable[[], int] = command.run
    table = getattr(command, "what", command)  # of `reproduce` the experiment that is repeated
    if not (isinstance(table, WithJson) and table.json):
        return run()
    from gradbounds.json_output import one_object

    with one_object(name):
        return run()


def parsed(arguments: list[str]) -> Any:
    """The command that the arguments name; None after help was printed.

    Raises:
        ValueError: they name none; tyro's box of several lines becomes one.
    """
    _check_compared(arguments)
    complaint, shown = io.StringIO(), Captured()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(shown), _colours_as_asked():
            return tyro.cli(
                Command,
                prog="gradbounds",
                description="Is a mean-field statement about Transformers at initialization true, tight, and why?",
                args=arguments,
                registry=_whole_numbers(),
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitSubcommandPrefixes),
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            print(grouped(shown.getvalue()))
            _print_examples(arguments)
            return None
        raise ValueError(_one_line(complaint.getvalue(), arguments)) from None


def _check_compared(arguments: Sequence[str]) -> None:
    """Refuse `--compare` given twice, of which the first would be dropped in silence.

    Raises:
        ValueError: it stands there twice.
    """
    if (times := sum(word.partition("=")[0] == "--compare" for word in arguments)) > 1:
        raise ValueError(f"--compare must be given once, with its values behind it, got it {times} times.")


def _print_examples(arguments: Sequence[str]) -> None:
    """Below a command's help, two ways to call it."""
    if arguments and arguments[0] in EXAMPLES:
        print("\nexamples:")
        for line in EXAMPLES[arguments[0]]:
            print(f"  {line}")


def _whole_numbers() -> tyro.constructors.ConstructorRegistry:
    """Integers as people write them: 1e6 and 1_000_000 too."""
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def whole(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
        if info.type is not int:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1, metavar="INT", instance_from_str=lambda words: _whole(words[0]),
            is_instance=lambda value: isinstance(value, int), str_from_instance=lambda value: [str(value)],
        )  # fmt: skip

    return registry


def _whole(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        try:
            number = Decimal(word)
        except InvalidOperation:
            number = Decimal("nan")
        if not number.is_finite() or number.adjusted() > 30 or number != number.to_integral_value():
            raise ValueError(f"it must be an integer, such as 512 or 1e6, got {word!r}") from None
        return int(number)


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
        lacking = error.object[error.start : error.end]
        return "".join(_PLAIN.get(character, "?") for character in lacking), error.end

    codecs.register_error("plain", plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")


def _one_line(box: str, arguments: Sequence[str] = ()) -> str:
    """The message of a box, with lines or plain, between its title and its first rule, as one sentence.

    Args:
        box: what tyro prints.
        arguments: that were given, of which one may be a known word misspelled.
    """
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()]
    lines = [line for line in lines if line]
    rules = [k for k, line in enumerate(lines) if set(line) <= set("─-")]
    # Drawn with lines, the title stands in the first rule; plain, a rule of its own follows it.
    first = 2 if rules[:1] == [1] and "─" not in lines[0] else 1
    last = min((k for k in rules if k > first), default=len(lines))
    # "None" among choices is a flag left out, which nobody types.
    message = re.sub(r"'None', |, 'None'(?=[,)])", "", " ".join(lines[first:last])).rstrip(".")
    return f"{message}.{_suggestion(lines, arguments)} See gradbounds --help."


def _suggestion(lines: Sequence[str], arguments: Sequence[str]) -> str:
    """The nearest word there is for one that there is not."""
    text = " ".join(lines)
    if "Perhaps you meant:" in lines:
        flag = next((line.split()[0] for line in lines[lines.index("Perhaps you meant:") :] if line[:2] == "--"), "")
        return f" Did you mean {flag}?" if flag and flag not in arguments else ""
    commands = re.search(r"(?:Available subcommands: |Expected one of \{)([a-z, -]+)", text)
    if commands is None or not arguments:
        return ""
    close = get_close_matches(arguments[0], commands[1].replace("- ", "-").split(", "), n=1)
    return f" Did you mean {close[0]}?" if close else ""
