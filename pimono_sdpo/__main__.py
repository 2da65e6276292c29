"""Start the command line, as the script `pimono-sdpo` or `python -m pimono_sdpo`, or a script of jobs/.

It imports nothing before Ctrl-C is handled, since the imports take most of the time before a program begins.
"""

# Unlike `signal`, it imports nothing.
import _signal  # type: ignore[import-not-found]
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

INTERRUPTED = "interrupted; run the same command again to resume"


def end_at_once() -> None:
    """Let Ctrl-C end the process without a traceback, unless it is ignored: before the imports of a program."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def start(program: "Callable[[], object]", name: str, interrupted: str = INTERRUPTED) -> None:
    """Run a program, see `console.run`; `interrupted` is the sentence after Ctrl-C."""
    try:
        from pimono_sdpo.program import run
    except KeyboardInterrupt:
        sys.stderr.write(f"{name}: {interrupted}.\n")
        sys.exit(130)
    run(program, name, interrupted)


def main() -> None:
    """Run the command line."""
    start(_run_command, "pimono-sdpo")


def _run_command() -> None:
    from pimono_sdpo.cli.command_line import app

    app()


if __name__ == "__main__":
    main()
