"""The command line: it parses the arguments, runs the command, and returns the exit code.

0 fine, 1 a verdict changed or something differs, 2 bad input, 130 interrupted by Ctrl-C, 143 by SIGTERM.
"""

import codecs
import contextlib
import importlib
import io
import os
import re
import shlex
import shutil
import signal
import sys
import traceback
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

import gradbounds
from gradbounds.commands import Command
from gradbounds.commands.examples import EXAMPLES
from gradbounds.flags import WithJson, flag_text
from gradbounds.grid import FIELDS
from gradbounds.help_text import Captured, folded_help, some_boxes
from gradbounds.plain_text import PlainText, Unfailing, one_line, write_no_more
from simulate.runs.files import check_place
from theory.stack.registry import SYNONYMS, nearest

if TYPE_CHECKING:
    from gradbounds.result import Result

FINE, BAD_INPUT = 0, 2

# How torch and what is below it say that there is no memory.
_NO_MEMORY = re.compile(r"allocate memory|out of memory|bad_alloc|Storage size calculation overflowed")

_LONGEST_FLAG = 100

# What shows the flags of a network's fields, which --help leaves out.
_FIELDS_HELP = "--help-fields"

# The help of fewer columns never ends.
_NARROWEST = 40

# What stands in for a character that the terminal's encoding lacks.
_PLAIN = {"±": "+-", "•": "*", "‖": "||", "²": "^2", "×": "x", "≤": "<=", "–": "-", "…": "..."}


def main(arguments: Sequence[str] | None = None, *, commands: Any = Command, program: str = "gradbounds") -> int:
    """Run one command; invalid input ends with one line on stderr and exit code 2.

    Args:
        arguments: arguments as typed; None means those of this process.
        commands: the union of dataclasses that the first word chooses from.
        program: name of the program, as typed before the arguments.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    _print_what_can_be_encoded()
    with contextlib.redirect_stderr(Unfailing(sys.stderr)):
        code = _code(given, commands, program)
        sys.stderr.flush()
    return code


def _code(given: list[str], commands: Any, program: str) -> int:
    # Run one command and print its error, if any; return the exit code.
    command = None
    try:
        if given in (["--version"], ["version"]):
            print(f"gradbounds {gradbounds.__version__}", flush=True)
            return FINE
        given = _imported(given)
        command = parsed(given, commands, program)
        with contextlib.redirect_stdout(PlainText(sys.stdout)):
            code = FINE if command is None else _run(command, given[0])
            sys.stdout.flush()  # so that a closed pipe shows here and not at the interpreter's end
        return code
    except KeyboardInterrupt as stop:
        folder = getattr(getattr(command, "what", command), "out", None)
        kept = "; draws that were saved stay in the run folder" if folder is not None else ""
        print(f"{program}: interrupted{kept}.", file=sys.stderr)
        # By Ctrl-C, or by the signal that gradbounds.__main__ names; a shell counts from 128.
        return 128 + int(signal.SIGTERM if stop.args == (signal.SIGTERM,) else signal.SIGINT)
    except BrokenPipeError:
        # The reader of a pipe, `head` say, has seen enough; the interpreter's own flush must not complain.
        write_no_more(sys.stdout)
        return FINE
    except Exception as error:
        if not (complaint := _failed_calculation(error, given) or _complaint(error)):
            raise
        print(f"{program}: {_with_flags(one_line(complaint), given, command)}", file=sys.stderr)
        Unfailing(sys.stdout).flush()  # of a full disk this is the second try, and the last
        return BAD_INPUT


def _failed_calculation(error: Exception, given: list[str]) -> str:
    """Return the message for a failed factorization or a number that is not finite; "" for other errors.

    The error of numpy and scipy is a ValueError and torch's a RuntimeError, of one name: torch is not loaded for it.
    """
    if not isinstance(error, FloatingPointError) and "LinAlgError" not in type(error).__name__:
        return ""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [name for name in frames if name.partition(".")[0] in ("gradbounds", "theory", "simulate", "checks")]
    words = str(error).strip().rstrip(".") or type(error).__name__
    return (
        f"the calculation failed for the network of `gradbounds {shlex.join(given)}`: in {ours[-1]}, {words}. Less "
        "extreme numbers may avoid it; if your numbers are usual, please report this line."
    )


def _complaint(error: Exception) -> str:
    # Return the message for an error that the user can correct; "" for an error of this program.
    words = str(error) or type(error).__name__
    if isinstance(error, ValueError):
        return words
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(words)):
        return f"not enough memory ({words}); use a smaller network, fewer tokens or fewer draws."
    if isinstance(error, RecursionError):
        return "input is nested too deeply; reduce its nesting."
    if isinstance(error, OSError):
        what = "output" if error.filename is None else repr(error.filename)
        return f"{what} cannot be used: {error.strerror or words}."
    if isinstance(error, ArithmeticError):
        return f"numbers are too extreme: the calculation ends in {type(error).__name__}, {words}."
    return ""


def _with_flags(message: str, arguments: Sequence[str], command: Any) -> str:
    """Replace field names in a message by flags: "output_scale must ..." becomes "--output-scale must ...".

    With a file, whose keys are spelled like fields, only flags that were given are replaced.
    """
    table = getattr(command, "what", command)
    given = {word.partition("=")[0][2:].replace("-", "_") for word in arguments if word.startswith("--")}
    names = {name for name in given if "_" in name}
    if not given & {"file", "config", "preset"}:
        names |= {name for name in vars(table) if "_" in name} if table is not None else set()
        if table is None or hasattr(table, "stack") or hasattr(table, "grid"):
            names |= {name for name in FIELDS if "_" in name}
    flags = {name: f"--{name.replace('_', '-')}" for name in names}
    # What stands in quotes is what somebody wrote.
    message = re.sub(r"(?<![\w./'\"-])[a-z_]+(?![\w./'\"=-])", lambda word: flags.get(word[0], word[0]), message)
    # The flags that another one requires.
    message = re.sub(
        r"(?<=requires )[a-z_]+(?: or [a-z_]+)*(?=, )",
        lambda words: flag_text(words[0]) if all(hasattr(table, name) for name in words[0].split(" or ")) else words[0],
        message,
    )
    # The one that the message is about, of several values in the plural.
    about = re.match(r"([a-z]+?)s?(?= must | requires? | cannot be combined )", message)
    return f"--{about[1]}{message[about.end() :]}" if about and about[1] in given else message


def _imported(arguments: Sequence[str]) -> list[str]:
    """Import the modules of `--import MODULE`, which register names, and return the other arguments.

    Raises:
        ValueError: a module cannot be imported, or none is named.
    """
    rest, words = [], iter(arguments)
    for word in words:
        flag, equals, name = word.partition("=")
        if flag != "--import":
            rest.append(word)
            continue
        if not (name := name if equals else next(words, "")) or name.startswith("-"):
            raise ValueError("import must be followed by the name of a module, as in --import mine.")
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # a user's module may fail in any way, or end Python in silence
            raise ValueError(
                f"import must name a module that can be imported, but {name!r} raised {type(error).__name__}: "
                f"{str(error).rstrip('.')}."
            ) from error
    return rest


def _run(command: Any, name: str) -> int:
    # Run a command, deliver its result if it returns one, and return its exit code.
    table = getattr(command, "what", command)  # a study may have its flags in `what`
    out = getattr(table, "out", None)
    if out is not None and not getattr(command, "dry_run", False):
        check_place(out)
    as_json = isinstance(table, WithJson) and table.json
    with contextlib.redirect_stdout(io.StringIO()) if as_json else contextlib.nullcontext():
        result: int | Result = command.run()  # nothing stands beside the object
    if isinstance(result, int):
        return result
    from gradbounds.result import deliver

    return deliver(result, command=name, out=out, as_json=as_json, strict=getattr(table, "strict", True))


def parsed(arguments: list[str], commands: Any = Command, program: str = "gradbounds") -> Any:
    """Parse the command-line arguments into a command; return None if help was printed.

    Raises:
        ValueError: the arguments are not valid; tyro's message of several lines becomes one line.
    """
    _check_flags(arguments, program)
    fields = _FIELDS_HELP in arguments
    arguments = ["--help" if word == _FIELDS_HELP else word for word in arguments]
    complaint, shown = io.StringIO(), Captured()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(shown), _terminal_for_help():
            return tyro.cli(
                commands,
                prog=program,
                description="Predict and measure gradients of Transformers before their first training step. "
                "Every command accepts --import MODULE, which imports a module that registers names.",
                args=arguments,
                registry=_whole_numbers(),
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitSubcommandPrefixes),
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            print(folded_help(some_boxes(shown.getvalue(), fields)))
            if not fields and arguments[0] in EXAMPLES:
                print("\nexamples:", *EXAMPLES[arguments[0]], sep="\n  ")
            return None
        raise ValueError(_one_line(complaint.getvalue(), arguments, program)) from None


def _check_flags(arguments: Sequence[str], program: str) -> None:
    """Check for arguments that tyro accepts by mistake.

    tyro accepts `--compare` twice and drops the first; it accepts an empty path, which would mean the current folder.

    Raises:
        ValueError: there is such an argument.
    """
    for word in arguments:
        # tyro looks for flags like it, which takes seconds.
        if len(flag := word.partition("=")[0]) > _LONGEST_FLAG and flag.startswith("--"):
            raise ValueError(f"Unrecognized options: {word}. See {program} --help.")
    for flag, name in [
        *zip(arguments, arguments[1:], strict=False),
        *(word.split("=", 1) for word in arguments if "=" in word),
    ]:
        if flag == "--out" and not name:
            raise ValueError(f"{flag} must be a path, got ''; write '.' for the current folder.")
    if (times := sum(word.partition("=")[0] == "--compare" for word in arguments)) > 1:
        raise ValueError(f"--compare must be given once, followed by all its values, got it {times} times.")


def _whole_numbers() -> tyro.constructors.ConstructorRegistry:
    # Return a registry that reads integers as people write them, including 1e6 and 1_000_000.
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
        number = Decimal(word)
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite() or number.adjusted() > 300 or number != number.to_integral_value():
        raise ValueError(f"it must be an integer, such as 512 or 1e6, got {word!r}")
    return int(number)


def _terminal_for_help() -> contextlib.AbstractContextManager[Any]:
    # Set up the terminal for help: no colours if NO_COLOR is set (no-color.org), and a minimum width.
    from unittest.mock import patch  # parsing loads it anyway

    changed = {"TERM": "dumb"} if os.environ.get("NO_COLOR") else {}
    if shutil.get_terminal_size().columns < _NARROWEST:
        changed["COLUMNS"] = str(_NARROWEST)
    return patch.dict(os.environ, changed)


def _print_what_can_be_encoded() -> None:
    # Replace characters that the output encoding lacks by plain ones or question marks.

    def plain(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return "".join(_PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end

    codecs.register_error("plain", plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")


def _one_line(box: str, arguments: Sequence[str] = (), program: str = "gradbounds") -> str:
    """Extract the message of tyro's error box as one sentence.

    Args:
        box: the text that tyro prints, with or without drawn lines.
        arguments: the given arguments, one of which may be a misspelled word.
        program: the program's name.
    """
    lines = [text for line in box.splitlines() if (text := line.strip("│╭╮╰╯ "))]
    rules = [k for k, line in enumerate(lines) if set(line) <= set("─-")]
    # Drawn with lines, the title stands in the first rule; plain, a rule of its own follows it.
    first = 2 if rules[:1] == [1] and "─" not in lines[0] else 1
    last = min((k for k in rules if k > first), default=len(lines))
    # "None" among choices is a flag left out, which nobody types.
    message = re.sub(r"'None', |, 'None'(?=[,)])", "", " ".join(lines[first:last])).rstrip(".")
    # Of a flag that may be left out what counts is why its own kind refuses the word.
    message = re.sub(
        r"no type matching .* could be instantiated from .* - <class '[\w.]+'>: |(?<=Unrecognized) or misplaced"
        r"| \(applied to [^)]*\) Arguments are applied .* can matter",
        "",
        message,
    )
    command = next((f" {word}" for word in arguments[:1] if word in EXAMPLES), "")
    return f"{message}.{_suggestion(lines, arguments)} See {program}{command} --help."


def _suggestion(lines: Sequence[str], arguments: Sequence[str]) -> str:
    text = " ".join(lines)
    unknown = re.search(r"options: --([\w-]+)", text)
    if unknown and arguments[0] == "predict" and (name := SYNONYMS.get(unknown[1].replace("-", "_"))):
        return f" Did you mean --{name.replace('_', '-')}?"
    several = re.search(rf"--({'|'.join(FIELDS).replace('_', '-')}) ([^ -]\S*(?: [^ -]\S*)+)", " ".join(arguments))
    if several and "options: " in text and arguments[0] == "predict":
        return f" Give several values as --compare {several[1].replace('-', '_')}={several[2].replace(' ', ',')}."
    if "Perhaps you meant:" in lines:
        flag = next((line.split()[0] for line in lines[lines.index("Perhaps you meant:") :] if line[:2] == "--"), "")
        return f" Did you mean {flag}?" if flag and flag not in arguments else ""
    if choice := re.search(r"invalid choice '(.+?)' for argument .*Expected one of \((.*?)\)", text):
        return nearest(choice[1], re.findall(r"'(.+?)'", choice[2]))
    commands = re.search(r"(?:Available subcommands: |Expected one of \{)([a-z, -]+)", text)
    return nearest(arguments[0], commands[1].replace("- ", "-").split(", ")) if commands and arguments else ""
