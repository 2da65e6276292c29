"""Errors a user can mend. Each message is one sentence: what was found, what to do.

    PimonoError                 anything below; the front door prints it and exits with 2
    ├── SourceError             the input cannot be opened or has no known layout
    ├── ShardError              shards failed; the others are finished
    ├── EmptySelection          every session was dropped
    ├── EngineError             what should run the shards is not there
    ├── OutputError             the output folder cannot be used
    ├── TrainingInputError      rows, model or recipe cannot be trained on
    └── InferenceError          a model cannot be asked

A bug in this project is never one of these: it raises as it is.
"""


class PimonoError(Exception):
    """A problem with what the user gave us, told in one sentence."""


class SourceError(PimonoError):
    """The input is missing, unreadable or of no known layout."""


class ShardError(PimonoError):
    """Some shards could not be run; all others are finished and a rerun repeats only those."""


class EmptySelection(PimonoError):
    """Nothing was left after filtering."""


class EngineError(PimonoError):
    """The engine asked for is not installed, not reachable or not set up for this run."""


class OutputError(PimonoError):
    """The output folder holds something this project did not write."""


class TrainingInputError(PimonoError):
    """The rows, the model or the recipe cannot be trained on."""


class InferenceError(PimonoError):
    """A model cannot be asked: no such provider, no key, no price, or no room for the journal."""
