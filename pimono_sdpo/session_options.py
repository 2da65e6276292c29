"""The options that select recorded sessions; imports nothing heavy, so that `--help` is fast."""

from pimono_sdpo.options import argument, option, options


@options
class SourceOptions:
    """Which recorded sessions a command reads."""

    source: list[str] = argument(
        "One or more of: `claude`, `codex`, `copilot`, `droid`, `gemini`, `hermes`, `openclaw`, `opencode`, `pi`, "
        "`qwen`, `agentsview` for its database, or `all` for the sessions of all of them on this machine; a folder, "
        "file or glob of viewer-export parquet, session JSONL (also .gz, .zst) or agents' databases, parquet or JSONL "
        "with a column of OpenAI messages, a saved dataset, "
        "a Hub dataset id (ns/name, read at refs/convert/parquet), or files on the Hub "
        "(hf://datasets/ns/name[@rev]/path, hf://buckets/ns/name/path)."
    )
    project: str | None = option(
        "Read the session files whose recorded working directory or path contains this, in any case.",
        default=None,
        shown="all",
    )
    since: str | None = option(
        "Read the session files changed since a date (2026-05-31) or for days (7d).", default=None, shown="all"
    )
    exclude: list[str] = option(
        "Pattern of the paths of session files below the source to leave out, such as `*/agent-*`; may be repeated.",
        default_factory=list,
    )
    strict: bool = option(
        "Stop at the first session on which this package fails, and show where; otherwise such a session is "
        "rejected as `crashed`, and the exit code is 1. Write nothing either if an agent has written what its "
        "reader was not tested on.",
        default=False,
    )

    def choices(self) -> list[str]:
        """Return the given options that select session files."""
        names = ("project", "since", "exclude")
        return [f"--{name}" for name in names if getattr(self, name)]
