"""Rollouts shard by shard: what is finished is kept, and all of it becomes a folder with a report.

    work/spaces/                         what agents work in
    work/parts/MARK, NNNNN.parquet       finished shards, of exactly these tasks and options
    work/out/data/train-*.parquet        or test-*, as the suite says
    work/out/traces/RUN_ID.jsonl, report.json

A shard in which a run failed by a fault of ours counts as unfinished: run again, the journal
answers what it knows, and only what failed is asked.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pimono_sdpo import __version__, agent
from pimono_sdpo.agent.run import status_of
from pimono_sdpo.agent.verdicts import tree_of_task
from pimono_sdpo.errors import InferenceError
from pimono_sdpo.inference.chat import Chat
from pimono_sdpo.rollout_schema import ROLLOUT
from processors.rollouts.rollout import Roller, roll_out, work_of

STAGE = "rollouts"
SHARD_ROWS = 256
TOLD_REASONS = 5
SUMMED = (
    "n_steps", "n_tool_calls", "n_test_runs", "parse_errors", "loop_detections", "prompt_tokens",
    "completion_tokens",
)  # fmt: skip
Json = dict[str, Any]


@dataclass(slots=True)
class Progress:
    """How many rollouts are finished; every one is told to `done`, but those not run any more."""

    rows: int
    chat: Chat
    done: Callable[[Json, str], None]
    finished: int = 0
    failed: int = 0

    def __call__(self, row: Json) -> None:
        """Count a row and tell of it, with where the run stands, as `12/24`."""
        self.finished += 1
        self.failed += row["error"] is not None
        if row["error"] is None or not self.chat.stopped:
            self.done(row, f"{self.finished}/{self.rows}")


def run_shards(
    tasks: Sequence[Mapping[str, Any]],
    roller: Roller,
    work: Path,
    workers: int,
    done: Callable[[Json, str], None],
) -> tuple[Path, Json]:
    """Run all tasks with all seeds; return the folder of the rows, without a suite, and its report.

    Raises InferenceError when the model can no longer be asked; what is finished waits in `work`.
    """
    parts, out = work / "parts", work / "out"
    _only_these(parts, out, _mark(tasks, roller))
    rows = len(tasks) * roller.sampling.rollouts
    progress = Progress(rows, roller.chat, done)
    roller.done, roller.traces = progress, out / "traces"
    # Below `work`, where the next run finds what a killed one has left.
    roller.spaces = work / "spaces"
    shutil.rmtree(roller.spaces, ignore_errors=True)
    roller.spaces.mkdir()
    made = []
    for number, first in enumerate(range(0, rows, SHARD_ROWS)):
        of = range(first, min(first + SHARD_ROWS, rows))
        finished = parts / f"{number:05}.parquet"
        if finished.exists():
            progress.finished += len(of)
        else:
            found = roll_out(work_of(tasks, roller.sampling, of), roller, workers)
            if roller.chat.stopped and progress.failed:
                raise InferenceError(
                    f"{roller.chat.stopped.removesuffix('.')}; "
                    f"{progress.finished - progress.failed} of {rows} rollouts are finished, and "
                    "the same command goes on from there."
                )
            partial = finished.with_suffix(".partial")
            table = found.with_format("arrow")[:]
            pq.write_table(table.replace_schema_metadata(ROLLOUT.arrow_schema.metadata), partial)
            if not any(found["error"]):
                partial.replace(finished)
            else:
                finished = partial
        made.append(finished)
    shutil.rmtree(roller.spaces)
    report = _report(made, tasks, roller)
    split = tasks[0]["split"] or "train"
    (out / "data").mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(made):
        shutil.copyfile(part, out / "data" / f"{split}-{number:05}-of-{len(made):05}.parquet")
    (out / "report.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return out, report


def _mark(tasks: Sequence[Mapping[str, Any]], roller: Roller) -> str:
    """Tell the work: a shard of other tasks, options or repos is not of this run."""
    says = {
        "pimono_sdpo": __version__, "tasks": list(tasks), "rules": asdict(roller.rules),
        "repos": [tree_of_task(task) for task in tasks],
        "sampling": asdict(roller.sampling), "prices": repr(roller.chat.prices), "code": _code(),
    }  # fmt: skip
    return hashlib.sha256(json.dumps(says, sort_keys=True).encode()).hexdigest()


def _code() -> dict[str, str]:
    """Tell the code that made a shard: a version may be worked on."""
    files = [*Path(agent.__file__).parent.iterdir(), *Path(__file__).parent.glob("rollout*.py")]
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(files)
        if file.is_file()
    }


def _only_these(parts: Path, out: Path, mark: str) -> None:
    if (parts / mark).is_file():
        # What a killed run has copied there is copied again.
        shutil.rmtree(out / "data", ignore_errors=True)
        return
    for stale in (parts, out):
        if stale.exists():
            shutil.rmtree(stale)
    parts.mkdir(parents=True)
    (parts / mark).touch()


def _report(made: Sequence[Path], tasks: Sequence[Mapping[str, Any]], roller: Roller) -> Json:
    """Count what became of the rollouts; nothing here depends on time."""
    sums: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    verdicts: Counter[str] = Counter()
    cost: float | None = 0.0
    for row in _columns(made):
        sums.update({name: row[name] for name in SUMMED})
        ended[row["ended"]] += 1
        verdicts[status_of(row)] += 1
        if row["error"] is not None:
            errors[row["error"]] += 1
        cost = None if cost is None or row["cost"] is None else cost + row["cost"]
    judged = verdicts["PASS"] + verdicts["FAIL"]
    return {
        "pimono_sdpo": __version__,
        "stage": STAGE,
        "suite": tasks[0]["suite"],
        "split": tasks[0]["split"],
        "tasks": len(tasks),
        "rollouts": sum(verdicts.values()),
        "sampling": asdict(roller.sampling),
        "rules": asdict(roller.rules),
        "verdicts": dict(sorted(verdicts.items())),
        "pass_rate": verdicts["PASS"] / judged if judged else None,
        "ended": dict(sorted(ended.items())),
        "errors": dict(errors.most_common(TOLD_REASONS)),
        "sums": {name: sums[name] for name in SUMMED},
        "cost": cost,
    }


def _columns(made: Sequence[Path]) -> Iterator[Json]:
    """Yield the small columns of all rows."""
    names = [*SUMMED, "ended", "error", "tests_ok", "cost"]
    for path in made:
        with pq.ParquetFile(path) as parquet:
            for batch in parquet.iter_batches(columns=names):
                yield from batch.to_pylist()
