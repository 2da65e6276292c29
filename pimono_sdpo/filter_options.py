"""The options of `filter` that decide which rows are made; imports nothing heavy, so that `--help` is fast."""

from dataclasses import MISSING, fields
from typing import Any, Literal

from pimono_sdpo.errors import OutputError
from pimono_sdpo.options import check_values, option, options

Unit = Literal["session", "episode"]
RowUnit = Literal["session", "episode", "recovery"]
At = Literal["after", "before"]
SplitBy = Literal["repository", "session"]
EngineName = Literal["local", "ray"]
RankBy = Literal["worth", "score"]
# Why a session or a request gives no row, by the `drop_reason` of the rejects; the first ones concern whole sessions.
NO_REQUEST = {
    "no_messages": "nobody says anything in the session",
    "unknown_harness": "an agent that is not read wrote the session",
    "no_prompt": "nobody asks for anything that can be understood",
}
REASONS = {
    **NO_REQUEST,
    "no_evidence": "nothing is known to have gone wrong",
    "only_a_slip": "the only failures are slips that were put right at once",
    "expected_failure": "the failure was meant to happen, such as a test before its code",
    "no_information": "the failure does not say what went wrong",
    "service_outage": "a service did not answer",
    "permission_not_granted": "the user had not given a permission or a key",
    "hardly_worth_it": "its worth is below --min-worth",
    "below_min_score": "its score is below --min-score",
    "duplicate_session": "a better row has the same messages",
    "near_duplicate_prompt": "a better row has nearly the same request",
    "over_max_samples": "--max-samples keeps better rows",
    "crashed": "a bug stopped the work on the session",
}
# Options that score or choose episodes and sessions.
NOT_FOR_RECOVERIES = (
    *("min_score", "min_worth", "split_by", "history_chars", "reference_terms", "stage", "judge", "judge_provider"),
    *("max_samples", "rank_by"),
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
    min_score: float = option("Drop rows with a lower score; the others are ranked by it.", default=0.0, decides="row")
    min_worth: float | None = option(
        "Drop rows with a lower worth: log2(1 + failures that the agent caused) + 2 x the probability of a "
        "correction; 2 is a sure correction, or three such failures.",
        default=None,
        minimum=0,
        shown="keep all",
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
    judge: str | None = option(
        "Model that decides whether each later message corrects the agent, and answers three questions about each "
        "row: a name on the Hub or a folder, run on this machine with transformers. The probabilities of its answers "
        "are in the column `judged`.",
        default=None,
        shown="decided by rules",
        decides="row",
    )
    judge_provider: str | None = option(
        "Send the redacted texts to --judge at this provider instead: hf, together, openai, chutes or the URL of a "
        "server.",
        default=None,
        shown="on this machine",
        decides="row",
    )
    max_samples: int | None = option("Keep the best N rows.", default=None, minimum=1, shown="all", decides="output")
    rank_by: RankBy | None = option(
        "Column that orders the rows and decides which ones --max-samples keeps: `worth`, or `score` as in the "
        "reference run; equal rows by score, then by --seed.",
        default=None,
        shown="worth; score with --min-score",
        decides="output",
    )
    dedupe: bool = option(
        "Keep only the best of duplicate rows, from forks, snapshots and equal prompts.",
        default=True,
        decides="output",
    )
    seed: int = option("Seed that decides the order of equal rows.", default=42, decides="output")
    licence: str | None = option(
        "SPDX id of the licence of the traces, for the card.",
        default=None,
        shown="that of a dataset on the Hub",
        flag="--license",
        decides="output",
    )

    def __post_init__(self) -> None:
        """Check the values; raises OutputError."""
        check_values(self)
        if self.min_worth is not None and 0 < self.min_worth < 1:
            raise OutputError(
                f"--min-worth {self.min_worth:g} is a probability of an earlier version, which worth is not any more; "
                "leave it out to keep all rows with evidence, or use 1 for one own failure, 2 for three of them."
            )
        unused = [name for name in NOT_FOR_RECOVERIES if getattr(self, name) != _default(name)]
        if self.unit == "recovery" and unused:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
            raise OutputError(f"--unit recovery does not use {names}; leave them out.")
        if self.judge_provider and not self.judge:
            raise OutputError("--judge-provider is where --judge MODEL is asked; give both.")

    @property
    def ranked_by(self) -> RankBy:
        """The column by which rows are ranked."""
        return self.rank_by or ("score" if self.min_score else "worth")


def _default(name: str) -> Any:
    (field,) = (one for one in fields(FilterOptions) if one.name == name)
    return field.default_factory() if field.default_factory is not MISSING else field.default
