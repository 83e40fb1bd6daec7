"""The local web server of the interactive page, which no other machine can reach, and the page as a file."""

import contextlib
import itertools
import multiprocessing
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gradbounds.explore.answers import ANSWERS, SIZES, NobodyWaitsError, answer, seconds_of_answer, short
from gradbounds.explore.page import page, prepared
from gradbounds.explore.questions import Question
from gradbounds.explore.samples import RunSamples, drawn
from gradbounds.json_output import json_text
from simulate.runs.files import write_whole
from theory.stack.documents import parsed

MOST_BYTES = 2**20
"""The largest size of a question in bytes."""

# Seconds that a client may take to send its question.
_PATIENCE = 20.0

_KINDS = (*ANSWERS, *SIZES, "compare", "sample", "cell")

# Seconds from which on an answer has a process of its own, so that it can be cancelled and nothing waits for it.
_SLOW = 3.0

_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Server(ThreadingHTTPServer):
    """A web server that answers the questions of one page, one after the other, for this machine only.

    Attributes:
        page: the served page, UTF-8.
        run: a run folder's samples; None without one.
    """

    daemon_threads = True
    request_queue_size = 128  # Python's default of 5 resets some of 20 connections that come at once

    def __init__(self, port: int, page: str, run: RunSamples | None = None) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.page, self.run = page.encode(), run
        # What is slow has a lock of its own, for which no other question waits.
        self.computing, self.slow, self.stepping, self.sampling = (threading.Lock() for _ in range(4))
        self.names = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}

    def handle_error(self, request: object, client_address: object) -> None:
        """Report an error of the server, unless the browser merely closed the connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def address(self) -> str:
        """The web address of the interactive page."""
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = _PATIENCE
    server_version, sys_version = "gradbounds", ""

    def do_GET(self) -> None:
        """Send the page."""
        if not self._is_foreign():
            if self.path == "/":
                self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
            else:
                self._refuse(HTTPStatus.NOT_FOUND, "no page has this path; the only one is /.")

    def do_POST(self) -> None:
        """Send an answer, or one line that says what is wrong with the question."""
        if self._is_foreign():
            return
        kind = self.path.removeprefix("/api/")
        if kind not in _KINDS or kind == self.path:
            self._refuse(HTTPStatus.NOT_FOUND, f"questions are /api/ and one of {', '.join(_KINDS)}.")
        elif self.headers.get("Content-Type", "").partition(";")[0] != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a question must be application/json.")
        elif not (length := self.headers.get("Content-Length", "")).isdecimal() or len(length) > 12:
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "a question must say its length.")
        elif int(length) > MOST_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a question has at most {MOST_BYTES} bytes.")
        else:
            self._answer(kind, self.rfile.read(int(length)))

    def _answer(self, kind: str, body: bytes) -> None:
        """Answer after earlier questions are answered, if the client still waits."""
        locks = {"first_step": self.server.stepping, "sample": self.server.sampling}
        locks |= dict.fromkeys((*SIZES, "compare"), self.server.slow)
        try:
            asked = parsed(body, "JSON")
            is_slow = seconds_of_answer(kind, asked) > _SLOW
            with locks.get(kind, self.server.slow if is_slow else self.server.computing):
                if self._is_gone():
                    self.close_connection = True
                    return
                if kind == "sample":
                    self._send_all(asked)
                    return
                text = json_text(self._found(kind, asked, is_slow=is_slow), indent=None)
        except NobodyWaitsError:
            self.close_connection = True
        except (ValueError, TypeError, ArithmeticError, MemoryError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error) or type(error).__name__)
        else:
            self._send(HTTPStatus.OK, text.encode(), "application/json")

    def _found(self, kind: str, asked: Any, *, is_slow: bool) -> dict[str, Any]:
        """Return one answer.

        Raises:
            ValueError: the question has no answer.
            NobodyWaitsError: nobody waits for it.
        """
        if kind == "cell":
            if self.server.run is None or not isinstance(asked, dict):
                raise ValueError("cell must be asked of a run folder: gradbounds explore RUN.")
            return self.server.run.cell(asked.get("cell"))
        computed = answer_apart if is_slow or kind == "first_step" else answer
        return computed(kind, asked, is_wanted=lambda: not self._is_gone())

    def _send_all(self, asked: Any) -> None:
        """Send samples as they are computed, one line of JSON each; the last line may be an error.

        Raises:
            ValueError: there is not even a first one.
            NobodyWaitsError: nobody waits for them.
        """
        self.close_connection = True
        with contextlib.closing(answers_apart("sample", asked, is_wanted=lambda: not self._is_gone())) as answers:
            first = next(answers)
            self._send_head(HTTPStatus.OK, "application/x-ndjson")
            with contextlib.suppress(ConnectionError):  # who asked has left
                for content in itertools.chain([first], self._until_wrong(answers)):
                    self.wfile.write(json_text(content, indent=None).encode() + b"\n")

    def _until_wrong(self, answers: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the answers; an error is yielded as an answer with its message."""
        try:
            yield from answers
        except ValueError as error:
            yield {"error": short(str(error))}

    def _is_gone(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        try:
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _is_foreign(self) -> bool:
        """Refuse requests from another page or with another name of this machine, and return whether this is one."""
        origins = {None, *(f"http://{name}" for name in self.server.names)}
        if self.headers.get("Host") in self.server.names and self.headers.get("Origin") in origins:
            return False
        self._refuse(HTTPStatus.FORBIDDEN, f"this page is {self.server.address} and no other.")
        return True

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self.close_connection = True
        self._send(status, json_text({"error": short(message)}).encode(), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        with contextlib.suppress(ConnectionError):  # who asked has left
            self._send_head(status, kind, **{"Content-Length": str(len(content))})
            self.wfile.write(content)

    def _send_head(self, status: HTTPStatus, kind: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in (_HEADERS | {"Content-Type": kind} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the questions are private."""


_MOST_PORTS = 65535


def serve(port: int | None, folder: Path | None = None) -> int:
    """Serve the interactive page until Ctrl-C is pressed, optionally with the samples of a run folder.

    Raises:
        ValueError: the port is not to be had, or the folder holds no samples.
    """
    if port is not None and not 0 < port <= _MOST_PORTS:
        raise ValueError(f"port must be an integer from 1 to {_MOST_PORTS}, got {port}.")
    run = None if folder is None else RunSamples(folder)
    try:
        server = Server(port or 0, page(run=None if run is None else run.about), run)
    except OSError as error:
        raise ValueError(f"port must be free, but {port} cannot be used: {error.strerror}.") from error
    print(f"The page is {server.address} on this machine alone, and Ctrl-C ends it.", flush=True)
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    return 0


def write(path: Path) -> int:
    """Write the interactive page as a file with its answers, which are computed again if another version made them.

    Raises:
        ValueError: the file cannot be written.
    """
    from gradbounds.explore.precomputed import answers

    known = prepared()
    content = page(known if known["given"] else answers()).encode()
    write_whole(path, content)
    print(f"Page    {path}, {len(content) / 1e6:.2g} MB, which opens without a network.")
    return 0


MOST_SECONDS = 120.0
"""The seconds after which a process ends, or four times its limit if that is more: estimates assume idle cores."""

_EVERY = 0.1


def answer_apart(
    kind: str, asked: Any, *, is_wanted: Callable[[], bool] = lambda: True, seconds: float | None = None
) -> dict[str, Any]:
    """Answer a question of the page in a separate process, which is killed if it is too slow or no longer needed.

    Raises:
        ValueError: what is wrong with the question, or that there was no time for it.
        NobodyWaitsError: it is not wanted any more.
    """
    (content,) = answers_apart(kind, asked, is_wanted=is_wanted, seconds=seconds)
    return content


def answers_apart(
    kind: str, asked: Any, *, is_wanted: Callable[[], bool] = lambda: True, seconds: float | None = None
) -> Generator[dict[str, Any], None, None]:
    """Yield the answers to a question of the page from a separate process; sampling yields one answer per block.

    Yields:
        One answer, or several.

    Raises:
        ValueError: what is wrong with the question, or that there was no time for it.
        NobodyWaitsError: it is not wanted any more.
    """
    if seconds is None:
        seconds = max(MOST_SECONDS, 4.0 * (Question.read(asked).seconds or 0.0))
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, kind, asked), daemon=True)
    process.start()
    there.close()
    end = time.monotonic() + seconds
    try:
        while True:
            while not here.poll(_EVERY):
                if not is_wanted():
                    raise NobodyWaitsError
                if time.monotonic() > end:
                    raise ValueError(f"the answer took more than {seconds:g} seconds, and was given up.")
            try:
                content, error = here.recv()
            except EOFError:
                raise ValueError("the process that answers ended, as one without memory does.") from None
            if error:
                raise ValueError(error)
            if content is None:
                return
            yield content
    finally:
        process.kill()
        process.join()
        here.close()


def _send(there: Connection, kind: str, asked: Any) -> None:
    # Send the answers and then None, or the message of an error.
    try:
        for content in drawn(Question.read(asked)) if kind == "sample" else (answer(kind, asked),):
            there.send((content, ""))
        there.send((None, ""))
    except (ValueError, TypeError, ArithmeticError, MemoryError) as problem:
        there.send((None, str(problem) or type(problem).__name__))
