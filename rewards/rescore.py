"""Score stored completions with a rubric; write the same rows with the columns of the verdicts.

reads   a folder or file of parquet or JSONL, or a saved dataset; columns `verifier_spec` (JSON text or null), and
        `completion` (text, or a conversation) or `completions` (a list of these)
writes  DIR/data/scored-NNNNN.parquet with all columns and those of VERDICT, DIR/report.json

A row without a verdict, such as one without a usable spec, has the reason in `rejected` and is counted.

Rows are scored in slices of SLICE rows, each by several threads, because verifiers mostly wait for
programs that they have started. A run that was killed resumes after its last finished slice.
"""

import inspect
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, cast, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, DatasetDict, Features, List, Value, load_dataset, load_from_disk
from datasets.exceptions import DatasetsError

from pimono_sdpo.errors import EmptySelection, OutputError, SourceError
from pimono_sdpo.own_code import import_own
from pimono_sdpo.runs.engine import Part, Piece, hide_bars, run_shards
from pimono_sdpo.runs.folders import LOCK, PARTS, make_output, only_run, publish_folder, remove
from pimono_sdpo.runs.parquet import link_or_copy, read_rows
from pimono_sdpo.stage import source_hash
from pimono_sdpo.version import __version__
from rewards.answers import text_of
from rewards.verifiers.rubric import Rubric, Status, Verifier

VERIFIERS = Path(__file__).parent / "verifiers"
SPEC, ONE, SEVERAL = "verifier_spec", "completion", "completions"
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
MAX_REASONS = 10
COUNTED = ("reward", "verifier", "status", "category", "rejected")
Row = dict[str, Any]


def build_rubric(gates: Sequence[str], graded: Sequence[str]) -> Rubric:
    """Build a rubric from names: a module of `rewards.verifiers`, or `module:name` of your own function.

    A graded verifier may have a weight, as in `syntax=0.5`. Raises OutputError for anything else.
    """
    weighted = [name.partition("=") for name in graded]
    names = [*gates, *(name for name, _, _ in weighted)]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise OutputError(f"The verifier `{repeated}` is given twice; give each once, as a gate or graded.")
    try:
        return Rubric(
            tuple(map(import_verifier, gates)),
            tuple((import_verifier(name), float(weight or 1)) for name, _, weight in weighted),
        )
    except ValueError as error:
        raise OutputError(
            f"The rubric cannot be built ({error}); name verifiers such as tool_calls, or syntax=0.5 with its weight."
        ) from error


def import_verifier(name: str) -> Verifier:
    """Import a verifier by its name; raises OutputError or OwnCodeError if there is none."""
    verifier: object = None
    if ":" in name or (VERIFIERS / f"{name}.py").is_file():
        verifier = import_own(name if ":" in name else f"rewards.verifiers.{name}:verify")
    try:
        inspect.signature(cast("Verifier", verifier)).bind("", {})
    except (TypeError, ValueError):  # not callable, or with other arguments
        verifier = None
    if not isinstance(verifier, FunctionType | partial):
        raise OutputError(
            f"`{name}` is not a verifier; give a module of rewards.verifiers, such as tool_calls, "
            "or module:name of a function of a completion and a spec."
        )
    return verifier


def rescore(row: Row, rubric: Rubric) -> Row:
    """Return the columns of VERDICT for one row."""
    spec, completion = row[SPEC], row[ONE]
    if spec is None:
        return _reject(f"the row has no `{SPEC}`")
    if completion is None:
        return _reject("the row has no completion")
    is_chat = isinstance(completion, list) and all(isinstance(turn, dict) for turn in completion)
    if not is_chat and not isinstance(completion, str):
        return _reject("the completion is neither text nor messages")
    with suppress(ValueError, RecursionError):
        spec = json.loads(spec)
    try:
        verdict = rubric(text_of(completion, "assistant"), spec)
    except ValueError as error:  # such as BadSpec
        return _reject(str(error))
    # An error is a better reason than a verifier that does not apply.
    reasons = {r.status: r.feedback for r in reversed(verdict.results)} if verdict.reward is None else {}
    return {**verdict.to_row(), "rejected": reasons.get("error") or reasons.get("skipped")}


def _reject(why: str) -> Row:
    return {**{name: [] for name in VERDICT}, "reward": None, "passed": False, "rejected": why}


def rescore_dataset(source: str, out: Path, rubric: Rubric, workers: int = 1) -> Row:
    """Score every completion of `source` into the folder `out`, with a progress bar; return the report.

    The output does not depend on `workers`, the number of threads that run verifiers.
    Raises SourceError, EmptySelection or OutputError; then `out` stays as it was.
    """
    out = out.resolve()
    rubric_names = {
        "gates": [_name_of(gate) for gate in rubric.gates],
        "graded": [[_name_of(verifier), weight] for verifier, weight in rubric.graded],
    }
    verifiers = [*rubric.gates, *(verifier for verifier, _ in rubric.graded)]
    options = {**rubric_names, "code": list(map(source_hash, verifiers))}
    with hide_bars():
        rows = open_completions(source)
        rows = rows.remove_columns([name for name in VERDICT if name in rows.column_names])
    parts = []
    for number, start in enumerate(range(0, rows.num_rows, SLICE)):
        stored = rows.select(range(start, min(start + SLICE, rows.num_rows)))
        key = {"rows": rows._fingerprint, "start": start}
        part = Part(
            name=f"{number:05}",
            title=f"row {start}",
            units=stored.num_rows,
            input=key,
            options=options,
            run=partial(_score, stored, rubric, workers),
            schema=Features({**split_completions(rows.select([])).features, **VERDICT}).arrow_schema,
        )
        parts.append(part)
    with only_run(out) as work:
        files = [part.file for part in run_shards(parts, work / PARTS, desc="rescore")]
        report = _make_report(files, rubric_names)
        if not report["rows"] or sum(report["rejected"].values()) == report["rows"]:
            remove(work, LOCK)
            why = next((f"row {n}: {why}" for why, n in report["first_rejected"].items()), "they have no completion")
            raise SourceError(f"None of the rows of `{source}` can be scored ({why.rstrip('.')}).")
        finished = make_output(work, "data")
        for file in files:
            link_or_copy(file, finished / "data" / f"scored-{file.name}")
        publish_folder(finished, out, report)
    return report


def _score(stored: Dataset, rubric: Rubric, workers: int) -> Iterator[Piece]:
    """Yield the stored rows, one for each completion, with their verdicts."""
    rows = split_completions(stored)
    # A row with several completions counts when all of them are scored.
    units = int(rows.num_rows == stored.num_rows)
    verdicts = []
    pool = ThreadPoolExecutor(workers)
    try:
        for verdict in pool.map(lambda row: rescore(row, rubric), rows):
            verdicts.append(verdict)
            yield Piece(units=units)
    finally:
        # Do not wait for the remaining rows after an interrupt.
        pool.shutdown(cancel_futures=True)
    features = Features({**rows.features, **VERDICT})
    scored = rows.map(
        lambda _, at: verdicts[at],
        with_indices=True,
        features=features,
        keep_in_memory=True,
        load_from_cache_file=False,
        new_fingerprint=f"{0:016}",
    )
    table = scored.data.table if verdicts else features.arrow_schema.empty_table()
    yield Piece(table, stored.num_rows - units * len(verdicts))


def _make_report(files: Sequence[Path], rubric_names: Row) -> Row:
    rewards: list[float | None] = []
    verdicts = defaultdict[str, Counter[str]](Counter)
    categories, rejected, first = Counter[str](), Counter[str](), dict[str, int]()
    for number, row in enumerate(read_rows(files, COUNTED), 1):
        rewards.append(row["reward"])
        for name, status in zip(row["verifier"], row["status"], strict=True):
            verdicts[name][status] += 1
        if why := row["rejected"]:
            rejected[why] += 1
            first.setdefault(why, number)
        categories.update(filter(None, row["category"]))
    reasons = dict(rejected.most_common(MAX_REASONS))
    if others := rejected.total() - sum(reasons.values()):
        reasons["other reasons"] = others
    judged = [reward for reward in rewards if reward is not None]
    return {
        "pimono_sdpo": __version__,
        "rows": len(rewards),
        "judged": len(judged),
        "passed": sum(reward == 1.0 for reward in judged),
        "mean_reward": sum(judged) / len(judged) if judged else None,
        "rejected": reasons,
        "first_rejected": {why: first[why] for why in reasons if why in first},
        "verdicts": {n: {s: verdicts[n][s] for s in STATUSES} for n in sorted(verdicts)},
        "categories": dict(sorted(categories.items())),
        "rubric": rubric_names,
    }


def _name_of(verifier: Any) -> str:
    function = getattr(verifier, "func", verifier)
    return f"{function.__module__}:{function.__qualname__}"


def open_completions(source: str) -> Dataset:
    """Return the rows as they are stored; raises SourceError or EmptySelection."""
    path = Path(source)
    # The output folders of this package also have a report and rejects, next to `data`.
    folder = path / "data" if (path / "data").is_dir() else path
    files = [path] if path.is_file() else sorted(folder.rglob("*"))
    parquet = [str(file) for file in files if file.suffix == ".parquet"]
    raw = [str(file) for file in files if file.suffix in {".jsonl", ".json"}]
    is_saved = any((path / name).exists() for name in ("state.json", "dataset_dict.json"))
    if not (is_saved or parquet or raw):
        raise SourceError(
            f"`{source}` has neither parquet nor JSONL nor a saved dataset; give a folder or file of completions."
        )
    try:
        if is_saved:
            rows = load_from_disk(source)
        elif not any(pq.read_metadata(file).num_rows for file in parquet) and not any(map(os.path.getsize, raw)):
            raise EmptySelection(f"`{source}` has no rows; give stored completions.")
        else:
            rows = load_dataset("parquet" if parquet else "json", data_files=parquet or raw, split="train")
    except (pa.ArrowException, DatasetsError, ValueError, OSError) as error:
        raise SourceError(
            f"`{source}` cannot be read ({type(error).__name__}); write it again, all files with the same columns."
        ) from error
    if isinstance(rows, DatasetDict):
        raise SourceError(f"`{source}` has several splits; give the folder of one.")
    if not rows.num_rows:
        raise EmptySelection(f"`{source}` has no rows; give stored completions.")
    columns = rows.column_names
    is_text = getattr(rows.features.get(SPEC), "dtype", "") in ("string", "large_string", "null")
    if not is_text or (ONE in columns) == (SEVERAL in columns):
        raise SourceError(
            f"`{source}` has the columns {', '.join(columns)}; give `{ONE}` or `{SEVERAL}`, and `{SPEC}` as JSON text "
            "from json.dumps."
        )
    return rows


def split_completions(rows: Dataset) -> Dataset:
    """Give every completion of `completions` its own row, in order; rows with `completion` do not change.

    A row without completions is dropped.
    """
    if SEVERAL not in rows.column_names:
        return rows
    # A value that is not a list becomes one completion, which is rejected later.
    pairs = [
        (number, completion)
        for number, completions in enumerate(rows[SEVERAL])
        for completion in (completions if isinstance(completions, list) else [None] * (completions is not None))
    ]
    repeated = rows.remove_columns(SEVERAL).select([number for number, _ in pairs])
    feature = getattr(rows.features[SEVERAL], "feature", rows.features[SEVERAL])
    flat = [completion for _, completion in pairs]
    return repeated.add_column(ONE, flat, new_fingerprint=rows._fingerprint, feature=feature)
