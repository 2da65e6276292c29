"""Run a program: a sentence for an error, the usual exit codes, and no control characters of names on the terminal."""

import errno
import logging
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, TextIO, cast
from urllib.parse import urlsplit

from pimono_sdpo.errors import EngineError, PimonoError
from pimono_sdpo.text import escape_controls, escape_line, is_this_machine

# 128 and the number of the signal: what shells report of a program that SIGINT (Ctrl-C) has ended, and of one that
# SIGPIPE has ended because the reader of its output, such as `head`, has read enough. Python ignores SIGPIPE, since it
# would also end a program whose network connection breaks.
INTERRUPTED, PIPE_CLOSED = signal.SIGINT + 128, signal.SIGPIPE + 128
# Advice for files that cannot be opened, by error number.
ADVICE = dict.fromkeys((errno.EACCES, errno.EPERM), "check its permissions") | {
    errno.ENAMETOOLONG: "use a shorter name"
}


class _EndAtOnce:
    """The handler of Ctrl-C during imports, in which a KeyboardInterrupt may be lost or turned into another error."""

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence

    def __call__(self, *_: object) -> None:
        with suppress(OSError):
            os.write(2, self.sentence.encode())
        os._exit(INTERRUPTED)


def run(program: Callable[[], object], name: str, interrupted: str) -> None:
    """Run a program; exit with the code of an error that a user can fix, with 130 after Ctrl-C.

    The program calls `allow_cleanup` when its imports are done. `interrupted` is the sentence after Ctrl-C.
    """
    # In the background of a shell script, Ctrl-C is ignored.
    if sys.stderr is None:
        # Otherwise the next file that is opened would get what libraries print.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if sys.stdout is None:
        _exit(2, f"{name}: The standard output is closed; send it to a file or to /dev/null.")
    is_default = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_DFL)
    if is_default:
        signal.signal(signal.SIGINT, _EndAtOnce(f"{name}: {interrupted}.\n"))
    try:
        try:
            program()
        finally:
            # Otherwise a closed pipe would only be noticed when the interpreter ends.
            sys.stdout.flush()
    except PimonoError as error:
        _exit(error.exit_code, f"{name}: {error}")
    except BaseException as error:
        causes = list(_find_causes(error))
        # Typer turns both into a SystemExit.
        if any(isinstance(cause, BrokenPipeError) for cause in causes) and _drop_closed():
            sys.exit(PIPE_CLOSED)
        unnamed = any(isinstance(cause, OSError) and cause.filename is None for cause in causes)
        if unnamed and (reason := _drop_unwritten()):
            _exit(2, f"{name}: Cannot write to the standard output: {reason}.")
        if any(isinstance(cause, KeyboardInterrupt) for cause in causes):
            _exit(INTERRUPTED, f"{name}: {interrupted}.")
        if isinstance(error, OSError) and error.errno in ADVICE:
            reason = f"{os.strerror(error.errno).lower()}; {ADVICE[error.errno]}"
            _exit(2, f"{name}: Cannot open `{str(error.filename)[-200:]}`: {reason}.")
        raise
    finally:
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def allow_cleanup() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from here on."""
    if isinstance(signal.getsignal(signal.SIGINT), _EndAtOnce):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def check_hub() -> None:
    """Raise EngineError if HF_ENDPOINT would get the token of the Hub unencrypted over the network."""
    address = urlsplit(os.environ.get("HF_ENDPOINT", ""))
    if address.scheme == "http" and not is_this_machine(address.hostname or ""):
        from huggingface_hub import get_token

        if get_token():
            raise EngineError(
                f"HF_ENDPOINT is `{address.geturl()}`: the token of the Hub would be sent unencrypted; use https."
            )


def _exit(code: int, sentence: str) -> None:
    with suppress(BrokenPipeError):
        sys.stderr.write(f"{escape_line(sentence)}\n")
    sys.exit(code)


def print_lines(*lines: str) -> None:
    """Print lines that contain the names of files or folders."""
    for line in lines:
        print(escape_line(line))  # noqa: T201


def _find_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that led to it, as a traceback shows them."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _drop_closed() -> bool:
    """Return whether the reader of stdout or stderr has gone; drop what is still buffered for it."""
    closed = []
    for descriptor in (1, 2):
        poll = select.poll()
        # Without any event to wait for, it returns errors alone.
        poll.register(descriptor, 0)
        if poll.poll(0):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            closed.append(descriptor)
    return bool(closed)


def _drop_unwritten() -> str:
    """Return why stdout takes no more, "" if it does; drop what is still buffered for it."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return str(error.strerror).lower()
    return ""


class _Printable:
    """A text stream on which control characters are shown as escapes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._stream.write(escape_controls(text))


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        # Warnings of others may have several lines.
        escape = escape_line if record.name.startswith(("pimono_sdpo", "processors", "cards")) else escape_controls
        return escape(super().format(record))


def escape_warnings() -> None:
    """Show control characters as escapes in warnings that Python prints because no handler is set up."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Formatter())


@contextmanager
def printable_output() -> Iterator[None]:
    """Show control characters as escapes on stdout and in warnings: names and texts of others may hold some."""
    escape_warnings()
    with redirect_stdout(cast(TextIO, _Printable(sys.stdout))):
        yield
