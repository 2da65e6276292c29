"""Score stored completions with a rubric: the same rows with the verdicts beside them.

reads   a folder or file of parquet or JSONL, or a saved dataset; columns `completion` (text, or a
        conversation) and `verifier_spec` (JSON text or null)
writes  DIR/data/scored-NNNNN.parquet with all columns and those of VERDICT, DIR/report.json

Done in slices of SLICE rows: a run that is killed goes on behind its last finished slice.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, DatasetDict, Features, List, Value, load_dataset, load_from_disk

from pimono_sdpo import __version__
from pimono_sdpo.errors import EmptySelection, OutputError, SourceError
from pimono_sdpo.runs.folders import LOCK, REPORT, only_run, publish_folder, remove
from pimono_sdpo.stage import source_hash
from rewards.answers import text_of
from rewards.verifiers.result import Verifier
from rewards.verifiers.rubric import Rubric

SLICE = 256
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
    }
)
NEEDED = ("completion", "verifier_spec")
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
    if not callable(found):
        raise OutputError(
            f"There is no verifier `{name}`; give a module of rewards.verifiers, such as "
            "tool_calls, or package.module:function."
        )
    verifier: Verifier = found
    return verifier


def rescore(row: Json, rubric: Rubric) -> Json:
    """Return the columns of VERDICT for one row; without a spec there is nothing to judge by."""
    written = row["verifier_spec"] or "{}"
    try:
        spec = json.loads(written)
    except ValueError:
        spec = None
    if not isinstance(spec, dict):
        raise SourceError(f"A `verifier_spec` is no JSON object: {written[:80]!r}; mend that row.")
    return rubric(text_of(row["completion"] or ""), spec).to_row()


def rescore_dataset(
    source: str, out: Path, rubric: Rubric, progress: Callable[[int], object] = lambda _: None
) -> Json:
    """Score every row of `source` into the folder `out` and return the report."""
    rows = _open(source)
    verifiers = [*rubric.gates, *(verifier for verifier, _ in rubric.graded)]
    made_from = {
        "rows": rows._fingerprint,
        "gates": [_name(gate) for gate in rubric.gates],
        "graded": [[_name(verifier), weight] for verifier, weight in rubric.graded],
        "code": [source_hash(verifier) for verifier in verifiers],
    }
    with only_run(out.resolve()) as work:
        parts = _parts(work, made_from)
        for number, start in enumerate(range(0, rows.num_rows, SLICE)):
            part = parts / f"scored-{number:05}.parquet"
            piece = rows.select(range(start, min(start + SLICE, rows.num_rows)))
            if not part.exists():
                features = Features({**rows.features, **VERDICT})
                scored = piece.map(
                    rescore,
                    fn_kwargs={"rubric": rubric},
                    features=features,
                    keep_in_memory=True,
                    load_from_cache_file=False,
                    new_fingerprint=f"{number:016}",
                )
                temporary = part.with_suffix(".tmp")
                pq.write_table(scored.data.table, temporary)
                temporary.replace(part)
            progress(piece.num_rows)
        report = _report(parts, made_from)
        finished = work / "out"
        finished.mkdir(exist_ok=True)
        (finished / REPORT).write_text(json.dumps(report, indent=2) + "\n")
        parts.replace(finished / "data")
        publish_folder(finished, out.resolve())
        remove(work, LOCK)
    return report


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


def _open(source: str) -> Dataset:
    path = Path(source)
    if not path.exists():
        raise SourceError(f"`{source}` does not exist; give a folder or file of completions.")
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    parquet = [str(file) for file in files if file.suffix == ".parquet"]
    raw = [str(file) for file in files if file.suffix in {".jsonl", ".json"}]
    try:
        if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
            found = load_from_disk(source)
        elif parquet and not sum(pq.read_metadata(file).num_rows for file in parquet):
            raise EmptySelection(f"`{source}` has no rows; give stored completions.")
        elif parquet:
            found = load_dataset("parquet", data_files=parquet, split="train")
        elif raw:
            found = load_dataset("json", data_files=raw, split="train")
        else:
            raise SourceError(
                f"`{source}` holds neither parquet nor JSONL; give stored completions."
            )
    except (pa.ArrowException, ValueError, OSError) as error:
        raise SourceError(
            f"`{source}` cannot be read ({type(error).__name__}); write it again."
        ) from error
    if isinstance(found, DatasetDict):
        raise SourceError(f"`{source}` has several splits; give the folder of one.")
    missing = [name for name in NEEDED if name not in found.column_names]
    if missing:
        raise SourceError(
            f"`{source}` has the columns {', '.join(found.column_names)} but no "
            f"`{missing[0]}`; give completions with the spec of their rows."
        )
    if not found.num_rows:
        raise EmptySelection(f"`{source}` has no rows; give stored completions.")
    return found.remove_columns([name for name in VERDICT if name in found.column_names])


def _report(parts: Path, made_from: Json) -> Json:
    rewards: list[float | None] = []
    statuses: Counter[str] = Counter()
    categories: Counter[str] = Counter()
    for part in sorted(parts.glob("*.parquet")):
        table = pq.read_table(part, columns=["reward", "verifier", "status", "category"])
        rewards += table.column("reward").to_pylist()
        for row in table.to_pylist():
            pairs = zip(row["verifier"], row["status"], strict=True)
            statuses.update(f"{name} {status}" for name, status in pairs)
            categories.update(filter(None, row["category"]))
    judged = [reward for reward in rewards if reward is not None]
    return {
        "pimono_sdpo": __version__,
        "rows": len(rewards),
        "judged": len(judged),
        "passed": sum(reward == 1.0 for reward in judged),
        "mean_reward": sum(judged) / len(judged) if judged else None,
        "verdicts": dict(sorted(statuses.items())),
        "categories": dict(sorted(categories.items())),
        "rubric": {name: made_from[name] for name in ("gates", "graded")},
    }


def _name(verifier: Any) -> str:
    return f"{verifier.__module__}:{verifier.__qualname__}"
