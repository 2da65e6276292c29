"""Errors that a user can fix. Each message is one sentence: what is wrong, and what to do.

The command line prints a PimonoError and exits with its `exit_code`. Bugs in this project are other exceptions.
"""

from importlib.util import find_spec


class PimonoError(Exception):
    """A problem with the user's input or environment, described in one sentence."""

    exit_code = 2


class SourceError(PimonoError):
    """The input is missing, unreadable or has an unknown layout."""


class ShardError(PimonoError):
    """Some shards failed; the others are finished, and a rerun repeats only the failed ones."""


class EmptySelection(PimonoError):
    """No rows are left after filtering."""


class SessionsCrashed(PimonoError):
    """A bug in this package dropped some sessions; the rows of all others are written."""

    exit_code = 1


class EngineError(PimonoError):
    """The requested engine, or an extra, is not installed, not reachable or not set up for this run."""


class OutputError(PimonoError):
    """The output folder cannot be used, for example because something else wrote it."""


class TrainingInputError(PimonoError):
    """The rows, the model or the recipe cannot be used for training."""


class OwnCodeError(PimonoError):
    """The user's own stage, reward or verifier is missing or does not work."""


class InferenceError(PimonoError):
    """A model cannot be called: unknown provider, no key, no price, or no space for the journal."""


def require_extra(extra: str, module: str, what: str) -> None:
    """Raise EngineError if the module of an extra that `what` needs is not installed."""
    if find_spec(module) is None:
        raise EngineError(
            f'{what} needs the extra `{extra}`: run `pip install ".[{extra}]"` in a checkout, or for a tool '
            f'`uv tool install ".[{extra}]"` or `pipx install --force ".[{extra}]"`.'
        )
