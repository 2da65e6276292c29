"""The options of `filter` that decide which rows are made; imports nothing heavy, so that `--help` is fast."""

import math
from dataclasses import MISSING, fields
from typing import Any, Literal

from pimono_sdpo.errors import OutputError
from pimono_sdpo.options import check_shares, option, options

Unit = Literal["session", "episode"]
RowUnit = Literal["session", "episode", "recovery"]
At = Literal["after", "before"]
SplitBy = Literal["repository", "session"]
EngineName = Literal["local", "ray"]
# The default of --min-worth, see `processors.keep`.
LEAST_WORTH = 0.45
# Options that score or choose episodes and sessions.
NOT_FOR_RECOVERIES = (
    *("min_score", "min_worth", "split_by", "history_chars", "reference_terms", "stage", "correction_judge"),
    *("row_judge", "max_samples"),
)


@options
class FilterOptions:
    """The options that decide which rows are made from a source."""

    unit: RowUnit = option(
        "One row per `episode` (one request and the work on it), per `session` (for its request with the "
        "strongest evidence, as in the reference run), or per `recovery` (a call that failed and the later one "
        "that worked, for SFT, DPO and SDPO).",
        default="episode",
        decides="row",
    )
    at: At = option(
        "Where the prompt of a recovery ends: `after` the failed call and its result, or `before` the call.",
        default="after",
        decides="row",
    )
    prompt_tokens: int = option(
        "Tokens of the prompt of a recovery, counted as four characters each.", default=4096, minimum=1, decides="row"
    )
    min_score: float = option("Drop rows with a lower score.", default=0.0, decides="row")
    min_worth: float = option(
        "Drop episodes with a lower probability of being worth training on; the best episode of a session "
        "is dropped only below 0.9 times this value. 0 keeps all episodes with evidence.",
        default=LEAST_WORTH,
        share=True,
        decides="row",
    )
    test_fraction: float = option(
        "Share of repositories whose rows go to the test split.", default=0.0, share=True, decides="row"
    )
    split_by: SplitBy = option(
        "What is never divided by the split: a `repository`, or a `session` for traces of one repository.",
        default="repository",
        decides="row",
    )
    history_chars: int = option(
        "Characters of earlier turns to put in front of each request.", default=0, minimum=0, decides="row"
    )
    reference_terms: bool = option(
        "Add the categories to the `reward_terms`, as in the reference run.", default=False, decides="row"
    )
    stage: list[str] = option(
        "Your own stage, as module:name of a Map or a Filter in the current folder; it runs on each "
        "scored row before --min-score; may be repeated.",
        default_factory=list,
        decides="row",
    )
    keep_identity: bool = option(
        "Keep the user and host names of the person who recorded a session; otherwise they are replaced. "
        "Secrets, personal e-mail addresses and paths to home folders are replaced either way.",
        default=False,
        decides="row",
    )
    correction_judge: str | None = option(
        "Chat model that decides whether each later message corrects the agent; the messages are sent "
        "to its provider.",
        default=None,
        shown="decided offline",
        decides="row",
    )
    row_judge: str | None = option(
        "Chat model that scores each row that is left from 0 to 100; rows up to 50 are dropped. Their "
        "redacted prompts and contexts are sent to its provider. Use --min-worth 0.3, so that it sees most rows.",
        default=None,
        shown="decided offline",
        decides="row",
    )
    judge_provider: str = option(
        "Provider of --row-judge and --correction-judge: hf, together, openai, chutes or the URL of a server.",
        default="hf",
        decides="row",
    )
    max_samples: int | None = option("Keep the best N rows.", default=None, minimum=1, shown="all", decides="output")
    dedupe: bool = option(
        "Keep only the best of duplicate rows, from forks, snapshots and equal prompts.",
        default=True,
        decides="output",
    )
    seed: int = option("Seed that decides which of equal scores --max-samples keeps.", default=42, decides="output")
    licence: str | None = option(
        "SPDX id of the licence of the traces, for the card.",
        default=None,
        shown="that of a dataset on the Hub",
        flag="--license",
        decides="output",
    )

    def __post_init__(self) -> None:
        """Check the values; raises OutputError."""
        if not math.isfinite(self.min_score):
            raise OutputError(f"--min-score {self.min_score} keeps or drops all; use a number.")
        check_shares(self)
        unused = [name for name in NOT_FOR_RECOVERIES if getattr(self, name) != _default(name)]
        if self.unit == "recovery" and unused:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
            raise OutputError(f"--unit recovery does not use {names}; leave them out.")
        if self.judge_provider != "hf" and not (self.correction_judge or self.row_judge):
            raise OutputError(
                "--judge-provider is the provider of --row-judge and --correction-judge; give one of them."
            )
        if self.max_samples is not None and self.max_samples < 1:
            raise OutputError(f"--max-samples {self.max_samples} keeps no row; use at least 1.")


def _default(name: str) -> Any:
    (field,) = (one for one in fields(FilterOptions) if one.name == name)
    return field.default_factory() if field.default_factory is not MISSING else field.default
