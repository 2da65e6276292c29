"""The options of a push; imports nothing heavy, so that `--help` is fast."""

from dataclasses import fields

from pimono_sdpo.options import flag_of, option, options


@options
class PushOptions:
    """How a folder is pushed."""

    public: bool = option("Make a new dataset public; an existing one keeps its visibility.", default=False)
    allow_findings: bool = option("Push even if the second scanner reports a secret.", default=False)

    def flags(self) -> list[str]:
        """Return the command-line flags of the options that are set."""
        return [flag_of(option) for option in fields(PushOptions) if getattr(self, option.name)]


@options
class PushResult(PushOptions):
    """Where the result of a command is pushed, if anywhere."""

    push: str | None = option("Push the result to this dataset (ns/name), private if new.", default=None)
