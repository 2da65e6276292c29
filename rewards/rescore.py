"""Score stored completions with a rubric: the same rows with the verdicts beside them.

reads   what `rewards.completions` opens
writes  DIR/data/scored-NNNNN.parquet with all columns and those of VERDICT, DIR/report.json

A row that cannot be judged, such as one without a spec, says why in `rejected` and is counted.

Done in slices of SLICE rows, each by several threads: verifiers mostly wait for programs that they
have started. A run that is killed goes on behind its last finished slice.
"""

import inspect
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, List, Value
from datasets.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
    logging,
)

from pimono_sdpo import __version__
from pimono_sdpo.errors import OutputError, SourceError
from pimono_sdpo.runs.folders import LOCK, REPORT, only_run, publish_folder, remove
from pimono_sdpo.runs.progress import Progress
from pimono_sdpo.stage import source_hash
from rewards.answers import text_of
from rewards.completions import one_each, open_completions
from rewards.verifiers.rubric import Rubric, Status, Verifier

SLICE = 256
STATUSES: tuple[Status, ...] = get_args(Status)
VERDICT = Features(
    {
        "reward": Value("float64"),
        "passed": Value("bool"),
        "verifier": List(Value("string")),
        "status": List(Value("string")),
        "verifier_score": List(Value("float64")),
        "category": List(Value("string")),
        "feedback": List(Value("string")),
        "metrics": List(Value("string")),
        "rejected": Value("string"),
    }
)
REASONS = 10
COUNTED = ("reward", "verifier", "status", "category", "rejected")
Json = dict[str, Any]


def rubric_of(gates: Sequence[str], graded: Sequence[str]) -> Rubric:
    """Build a rubric from names: a module of `rewards.verifiers`, or `package.module:function`.

    A graded one may carry its weight, `syntax=0.5`. Raises OutputError for what is none.
    """
    if not gates and not graded:
        raise OutputError(
            "No verifier is named; give --gate or --grade, such as --gate tool_calls."
        )
    weighed = []
    for given in graded:
        name, _, weight = given.partition("=")
        try:
            weighed.append((verifier_of(name), float(weight or 1.0)))
        except ValueError as error:
            raise OutputError(f"The weight of `{given}` is no number; give such as 0.5.") from error
    if any(not weight > 0 for _, weight in weighed):
        raise OutputError("A weight is not positive; leave that verifier out.")
    if any(math.isinf(weight) for _, weight in weighed):
        raise OutputError("A weight is infinite; give a number such as 0.5.")
    return Rubric(tuple(map(verifier_of, gates)), tuple(weighed))


def verifier_of(name: str) -> Verifier:
    """Import a verifier by its name; raises OutputError when there is none."""
    module, _, function = name.partition(":")
    where = module if function else f"rewards.verifiers.{module}"
    try:
        found = getattr(import_module(where), function or "verify", None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise
        found = None
    if not callable(found) or inspect.isbuiltin(found):
        raise OutputError(
            f"There is no verifier `{name}`; give a module of rewards.verifiers, such as "
            "tool_calls, or package.module:function."
        )
    try:
        inspect.signature(found).bind("", {})
    except (TypeError, ValueError) as error:  # other arguments, or none that can be told
        raise OutputError(
            f"`{name}` is no verifier; give a function of a completion and a spec, which returns "
            "a VerifierResult."
        ) from error
    verifier: Verifier = found
    return verifier


def rescore(row: Json, rubric: Rubric) -> Json:
    """Return the columns of VERDICT for one row."""
    if row["verifier_spec"] is None:
        return _rejected("the row has no `verifier_spec`")
    if row["completion"] is None:
        return _rejected("the row has no completion")
    if not _readable(row["completion"]):
        return _rejected("the completion is neither text nor messages")
    spec = row["verifier_spec"]
    try:
        spec = json.loads(spec) if isinstance(spec, str) else spec
    except (ValueError, RecursionError):
        spec = None
    if not isinstance(spec, dict):
        return _rejected("`verifier_spec` is no JSON object")
    try:
        result = rubric(text_of(row["completion"], "assistant"), spec)
    except ValueError as refused:  # what verifiers say of a spec that they cannot judge by
        return _rejected(str(refused))
    return {**result.to_row(), "rejected": None}


def _readable(completion: Any) -> bool:
    return isinstance(completion, str) or (
        isinstance(completion, list) and all(isinstance(turn, dict) for turn in completion)
    )


def _rejected(why: str) -> Json:
    empty: Json = {name: [] for name in VERDICT}
    return {**empty, "reward": None, "passed": False, "rejected": why}


def rescore_dataset(source: str, out: Path, rubric: Rubric, workers: int = 1) -> Json:
    """Score every completion of `source` into the folder `out`, under a bar; return the report.

    What is written does not depend on `workers`, the number of threads that judge.
    Raises SourceError, EmptySelection or OutputError; then `out` is as it was.
    """
    with _quiet():
        rows = open_completions(source)
        rows = rows.remove_columns([name for name in VERDICT if name in rows.column_names])
        return _rescore(source, rows, out, rubric, workers)


def _rescore(source: str, rows: Dataset, out: Path, rubric: Rubric, workers: int) -> Json:
    verifiers = [*rubric.gates, *(verifier for verifier, _ in rubric.graded)]
    made_from = {
        "rows": rows._fingerprint,
        "gates": [_name(gate) for gate in rubric.gates],
        "graded": [[_name(verifier), weight] for verifier, weight in rubric.graded],
        "code": [source_hash(verifier) for verifier in verifiers],
    }
    starts = range(0, rows.num_rows, SLICE)
    with only_run(out.resolve()) as work:
        parts = _parts(work, made_from)
        with Progress(rows.num_rows, len(starts), "rescore", "row") as progress:
            for number, start in enumerate(starts):
                part = parts / f"scored-{number:05}.parquet"
                stored = rows.select(range(start, min(start + SLICE, rows.num_rows)))
                if part.exists():
                    progress.resumed(stored.num_rows)
                    continue
                temporary = part.with_suffix(".tmp")
                pq.write_table(_scored(stored, rubric, workers, progress), temporary)
                temporary.replace(part)
                progress.shard()
        report = _report(parts, made_from)
        if not report["rows"] or sum(report["rejected"].values()) == report["rows"]:
            remove(work, LOCK)
            why = next(iter(report["rejected"]), "there is no completion in any row")
            raise SourceError(f"None of the rows of `{source}` can be judged: {why.rstrip('.')}.")
        finished = work / "out"
        finished.mkdir(exist_ok=True)
        (finished / REPORT).write_text(json.dumps(report, indent=2) + "\n")
        parts.replace(finished / "data")
        publish_folder(finished, out.resolve())
        remove(work, LOCK)
    return report


def _scored(stored: Dataset, rubric: Rubric, workers: int, progress: Progress) -> pa.Table:
    """Return the stored rows, one for each completion, with their verdicts."""
    rows = one_each(stored)
    features = Features({**rows.features, **VERDICT})
    if not rows.num_rows:
        progress.sessions(stored.num_rows)
        return features.arrow_schema.empty_table()
    of_each = 1 if rows.num_rows == stored.num_rows else 0
    verdicts = []
    for verdict in _judged(rows, rubric, workers):
        verdicts.append(verdict)
        progress.sessions(of_each)
    scored = rows.map(
        lambda _, at: verdicts[at],
        with_indices=True,
        features=features,
        keep_in_memory=True,
        load_from_cache_file=False,
        new_fingerprint=f"{0:016}",
    )
    progress.sessions(0 if of_each else stored.num_rows)
    return scored.data.table


def _judged(rows: Dataset, rubric: Rubric, workers: int) -> Iterator[Json]:
    """Yield the verdicts in order of the rows."""
    pool = ThreadPoolExecutor(workers)
    try:
        yield from pool.map(lambda row: rescore(row, rubric), rows)
    finally:
        # Who interrupts does not wait for the rest.
        pool.shutdown(cancel_futures=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what `datasets` shows and says off the screen: there is one bar, and one sentence."""
    shown, verbosity = not are_progress_bars_disabled(), logging.get_verbosity()
    disable_progress_bars()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            enable_progress_bars()


def _parts(work: Path, made_from: Json) -> Path:
    """Return the folder of finished slices, empty unless they were made from the same."""
    parts, mark = work / "parts", work / "made_from.json"
    told = json.dumps(made_from, sort_keys=True)
    if (work / "out" / "data").exists():
        # Killed while the result was given its name.
        (work / "out" / "data").replace(parts)
    if parts.exists() and not (mark.exists() and mark.read_text() == told):
        for path in parts.iterdir():
            path.unlink()
    mark.write_text(told)
    parts.mkdir(exist_ok=True)
    return parts


def _report(parts: Path, made_from: Json) -> Json:
    rewards: list[float | None] = []
    verdicts: dict[str, Counter[str]] = {}
    categories, rejected = Counter[str](), Counter[str]()
    for part in sorted(parts.glob("*.parquet")):
        table = pq.read_table(part, columns=[*COUNTED])
        rewards += table.column("reward").to_pylist()
        for row in table.to_pylist():
            for name, status in zip(row["verifier"], row["status"], strict=True):
                verdicts.setdefault(name, Counter())[status] += 1
            rejected.update(filter(None, [row["rejected"]]))
            categories.update(filter(None, row["category"]))
    told = dict(rejected.most_common(REASONS))
    others = rejected.total() - sum(told.values())
    judged = [reward for reward in rewards if reward is not None]
    return {
        "pimono_sdpo": __version__,
        "rows": len(rewards),
        "judged": len(judged),
        "passed": sum(reward == 1.0 for reward in judged),
        "mean_reward": sum(judged) / len(judged) if judged else None,
        "rejected": told | ({"other reasons": others} if others else {}),
        "verdicts": {n: {s: verdicts[n][s] for s in STATUSES} for n in sorted(verdicts)},
        "categories": dict(sorted(categories.items())),
        "rubric": {name: made_from[name] for name in ("gates", "graded")},
    }


def _name(verifier: Any) -> str:
    if isinstance(verifier, partial):
        return _name(verifier.func)
    return f"{verifier.__module__}:{verifier.__qualname__}"
