"""The entry point of the program, for `gradbounds` and for `python -m gradbounds`."""

import signal
import sys
from types import FrameType

from gradbounds.shadowing import ShadowedError, check_own_packages, stranger


def main() -> int:
    """Run the command line; Ctrl-C ends the program with one line of text, even while libraries are being imported.

    A shadowed module is somebody's module with the name of a package of ours or of a library. SIGTERM, which Slurm and
    Kubernetes send before they kill, interrupts as Ctrl-C does, with an exit code of its own.
    """
    if unhandled := signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)
    try:
        check_own_packages()
        from gradbounds.cli import main

        return main()
    except Exception as error:
        if not (why := str(error) if isinstance(error, ShadowedError) else stranger()):
            raise
        print(why, file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("gradbounds: interrupted.", file=sys.stderr)
        return 128 + int(signal.SIGTERM if stop.args == (signal.SIGTERM,) else signal.SIGINT)
    finally:
        if unhandled:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def program() -> None:
    """Run the command line as a process, and end the process with the exit code of the command.

    A signal after the work is done is ignored: Python and torch take some tenths of a second to end.
    """
    signal.signal(signal.SIGTERM, _terminated)
    code = main()
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, signal.SIG_IGN)
    sys.exit(code)


def _terminated(number: int, _: FrameType | None) -> None:
    """Interrupt; a second SIGTERM does not disturb the saving after the first one.

    Raises:
        KeyboardInterrupt: with the signal's number.
    """
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    program()
