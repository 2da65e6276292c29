"""What the training jobs take beside TRL's own arguments."""

from dataclasses import dataclass, field
from typing import Literal

MODES = Literal["prepare", "preflight", "smoke", "train", "card"]
MODES_WITH_ROWS = Literal["preflight", "smoke", "train", "card"]


@dataclass
class CommonArguments:
    """What every training job adds to TRL's own arguments."""

    mode: str = field(default="train", metadata={"help": "What to do, see above."})
    dataset: str | None = field(
        default=None, metadata={"help": "Rows to train on: a folder, or a Hub dataset id."}
    )
    eval_split: str | None = field(
        default=None,
        metadata={"help": "Rows of this split are scored before and after training, such as test."},
    )
    flavor: str | None = field(
        default=None,
        metadata={"help": "Flavor of HF Jobs to judge memory and cost by; this machine else."},
    )
    time_limit: str | None = field(
        default=None,
        metadata={
            "help": "Stop and publish before this time is over, such as 3h; TIME_LIMIT when left "
            "out, and what jobs get by default in a job."
        },
    )
    checkpoint_bucket: str | None = field(
        default=None,
        metadata={
            "help": "Private bucket (ns/name) that keeps checkpoints for a fresh machine; in a job "
            "that of --hub_model_id, with -checkpoints; none for no bucket."
        },
    )
    force: bool = field(
        default=False, metadata={"help": "Train although the preflight advises against it."}
    )
    license: str | None = field(
        default=None,
        metadata={"help": "Licence id for the model card; the base model's when left out."},
    )
    overwrite: bool = field(
        default=False, metadata={"help": "Replace what OUTPUT holds instead of going on with it."}
    )


@dataclass
class RecordedArguments(CommonArguments):
    """What SFT adds: its rows hold the answers to learn from."""

    mode: MODES_WITH_ROWS = field(default="train", metadata={"help": "What to do, see above."})
    dataset_config: str | None = field(
        default=None,
        metadata={"help": "Configuration of the dataset, such as steps: a subfolder, when local."},
    )
    test_suite: str | None = field(
        default=None,
        metadata={"help": "Suite (JSON) whose tasks must not be among the rows to train on."},
    )


@dataclass
class PairArguments(RecordedArguments):
    """What DPO adds: it may start from an adapter."""

    adapter: str | None = field(
        default=None,
        metadata={"help": "Adapter to go on from, a folder or a Hub id; it is the reference, too."},
    )


@dataclass
class JobArguments(CommonArguments):
    """What SDPO adds: where its rows come from, rewards, feedback, samples before the start."""

    mode: MODES = field(default="train", metadata={"help": "What to do, see above."})
    source: str | None = field(
        default=None,
        metadata={"help": "Traces to filter when there is no --dataset: a path or a Hub id."},
    )
    unit: Literal["session", "episode"] = field(
        default="session", metadata={"help": "What a row is made from (with --source)."}
    )
    min_score: float = field(
        default=0.0, metadata={"help": "Drop rows that score less (with --source)."}
    )
    test_fraction: float = field(
        default=0.0,
        metadata={"help": "Chance of a repository to be held out as split test (with --source)."},
    )
    max_samples: int | None = field(
        default=None, metadata={"help": "Keep the best N rows (with --source)."}
    )
    reward: Literal["trace_grounding", "verifiers"] = field(
        default="trace_grounding",
        metadata={"help": "What scores a completion; verifiers are named by --gate and --grade."},
    )
    gate: list[str] = field(
        default_factory=list,
        metadata={"help": "Verifiers that must pass, as for `pimono-sdpo rescore`."},
    )
    grade: list[str] = field(
        default_factory=list,
        metadata={"help": "Verifiers that count, with weights such as syntax=0.5."},
    )
    tools: Literal["pi", "repo_agent"] | None = field(
        default=None,
        metadata={"help": "Tools that the chat template declares to the model; none if left out."},
    )
    generations: int | None = field(
        default=None,
        metadata={"help": "Train for so many completions, rounded up to whole steps."},
    )
    feedback: Literal["rollout", "trace", "both", "none"] | None = field(
        default=None,
        metadata={
            "help": "What the teacher of a failed completion is told: what the verifiers say of "
            "it, the row's context, both or nothing; both with verifiers, else trace."
        },
    )
    feedback_tokens: int = field(
        default=256, metadata={"help": "Tokens of the verifiers' text; longer ones are cut."}
    )
    trace_template: str | None = field(
        default=None,
        metadata={
            "help": "Words around the row's context, with {feedback_raw}; TRL's feedback_template "
            "are those around the verifiers' text."
        },
    )
    eval_generations: int = field(
        default=4, metadata={"help": "Completions of each of these rows."}
    )
    preflight_rows: int = field(
        default=4,
        metadata={
            "help": "Rows of which completions are sampled before the first step; with 0, "
            "--mode preflight loads no weights."
        },
    )
