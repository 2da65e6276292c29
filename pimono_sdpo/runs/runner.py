"""Run a pipeline over the shards of a source: resumed, by any engine, past a shard that fails.

Work happens in a sibling folder `.NAME.partial`. Each shard ends with a small JSON that says what
it was made from; a rerun skips what is already there for the same input, code and options.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

from pimono_sdpo.errors import OutputError, ShardError
from pimono_sdpo.runs.manifests import made_from
from pimono_sdpo.runs.progress import Progress
from pimono_sdpo.runs.workers import ATTEMPTS, DONE, KINDS, Engine, Job, Outcome
from pimono_sdpo.stage import Stage
from pimono_sdpo.traces.sources import Shard

Json = dict[str, Any]


@dataclass(frozen=True)
class Finished:
    """All shards of a run: a record each, in their order, and which of them were run just now.

    `peak` is the most memory any process that ran a shard has held, in bytes.
    """

    records: dict[int, Json]
    fresh: frozenset[int]
    peak: int


def run_shards(
    shards: Mapping[int, Shard],
    stages: Sequence[Stage],
    work: Path,
    options: Json,
    progress: Progress,
    engine: Engine,
) -> Finished:
    """Run every shard that is not done yet; `shards` are known by their number in the source.

    The output does not depend on `engine`. Raises ShardError when shards failed, after all others
    have been finished.
    """
    _clear_strangers(work, shards)
    records: dict[int, Json] = {}
    jobs = []
    for index, shard in shards.items():
        job = Job(index, shard, tuple(stages), work, made_from(shard, stages, options))
        done = work / DONE / f"{index:05}.json"
        record = json.loads(done.read_text()) if done.exists() else {}
        if record.get("made_from") == job.made_from:
            records[index] = record
            progress.resumed(shard.sessions)
        else:
            # A record must never outlive the rows it speaks of.
            done.unlink(missing_ok=True)
            jobs.append(job)
    peak = 0
    failed: dict[int, Outcome] = {}
    for outcome in engine(jobs, progress.sessions) if jobs else ():
        peak = max(peak, outcome.peak)
        if outcome.record is None:
            failed[outcome.job.index] = outcome
        else:
            records[outcome.job.index] = outcome.record
            progress.shard()
    if failed:
        raise ShardError(_sentence(failed, len(shards), work))
    fresh = frozenset(job.index for job in jobs)
    return Finished(dict(sorted(records.items())), fresh, peak)


def _sentence(failed: dict[int, Outcome], count: int, work: Path) -> str:
    first = failed[min(failed)].problem
    return (
        f"{len(failed)} of {count} shards failed ({first}); what is finished stays in "
        f"`{work.name}`, and the same command run again repeats only what failed."
    )


def _clear_strangers(work: Path, shards: Mapping[int, Shard]) -> None:
    """Remove what a killed run left of shards that are none of this run's, and its attempts."""
    try:
        rmtree(work / ATTEMPTS, ignore_errors=True)
        (work / ATTEMPTS).mkdir(parents=True)
        for name in (*KINDS, DONE):
            (work / name).mkdir(exist_ok=True)
            for path in (work / name).iterdir():
                if not path.stem.isdigit() or int(path.stem) not in shards:
                    path.unlink()
    except OSError as error:
        raise OutputError(
            f"`{work}` cannot be written ({error.strerror}); give another folder."
        ) from error
