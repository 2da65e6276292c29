"""Import runs of other agents as rollouts, for `steps`, `pairs`, `evaluate`, `filter` and `view`.

reads   files in a format of `pimono_sdpo.traces.trajectories`
writes  ROLLOUT rows under data/, unreadable runs under rejects/, and optionally one session per run
        under sessions/ in the Hub's Session Trace Simple Format

An answer with several calls becomes one turn per call, each followed by its result, as in rollouts of
this package. Every message of the source is counted, as a turn or with the reason why it is left out.
"""

import gc
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, count, groupby, islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import msgspec
import pyarrow as pa
from datasets import Features, Value

from pimono_sdpo.errors import EmptySelection, SourceError
from pimono_sdpo.options import argument, option
from pimono_sdpo.options import options as option_class
from pimono_sdpo.runs.engine import Part, Piece, add_counts, hash_files, run_shards, sum_counts
from pimono_sdpo.runs.finish import write_files
from pimono_sdpo.runs.folders import PARTS, make_output, only_run, publish_folder, require_disjoint
from pimono_sdpo.runs.parquet import read_rows
from pimono_sdpo.runs.sessions import both
from pimono_sdpo.schema import ROLLOUT, Turn
from pimono_sdpo.stage import BATCH_ROWS, KEPT, text_for_json
from pimono_sdpo.suites.stored_rollouts import write_sessions
from pimono_sdpo.traces.sources import JSONL_PER_SHARD, find_parquet_files
from pimono_sdpo.traces.tools import describe_tools
from pimono_sdpo.traces.trajectories import FORMATS, find_runs, openai_messages
from pimono_sdpo.traces.trajectories.base import Format, Message, Trajectory, pair_results
from pimono_sdpo.version import __version__
from processors.diagnostics import looks_failed
from processors.rollouts.conversation import Json, add_answer, add_call, count_steps, make_turn
from processors.rollouts.sessions import list_worked

# A file: its path, its format, and its name in reports.
SourceFile = tuple[str, Format, str]
REJECT = Features({"file": Value("string"), "number": Value("int64"), "problem": Value("string")})
IMPORTED = both(ROLLOUT, REJECT).arrow_schema
# The same with JSON as text, which msgspec writes several times faster than `datasets`.
WRITTEN = text_for_json(IMPORTED)
# Raised by the readers of parquet and of Inspect's logs for truncated or damaged files.
DAMAGE = (pa.ArrowException, OSError, ValueError, EOFError, KeyError, BadZipFile, NotImplementedError, zlib.error)
MAX_NAME = 120
# Tools with which agents end a run; such a call needs no result, and its text is the final report.
ENDS = frozenset({"finish", "submit", "attempt_completion", "task_complete", "mark_task_complete"})
_CHANGED = re.compile(r"^\+\+\+ (?:b/)?(?P<path>[^\t\r\n]+)", re.MULTILINE)
_NAME = re.compile(r"[^\w.-]+", re.ASCII)
_ENCODER = msgspec.json.Encoder()
KNOWN = "these are read: " + "; ".join(form.about for form in FORMATS) + "."


@option_class
class ImportOptions:
    """Source and output of an import."""

    source: str = argument(
        "Folder or file of runs, or a Hub dataset such as `nebius/SWE-rebench-openhands-trajectories`."
    )
    out: Path = option("Folder to write; an earlier output is replaced.")
    sessions: bool = option("Also write each run to OUT/sessions for the Hub's trace viewer.", default=False)


def import_runs(options: ImportOptions) -> Json:
    """Write the rollouts under `out` and return the report."""
    source, files = _find_files(options.source)
    out = options.out.resolve()
    if Path(options.source).exists():
        require_disjoint(Path(options.source).resolve(), out)
    with only_run(out, stage="rollouts") as work:
        parts, verdicts = [], hash_files(_find_verdicts(options.source, {path for path, _, _ in files}))
        for number, group in enumerate(_group_files(files)):
            part = Part(
                name=f"{number:05}",
                title=group[0][2],
                units=sum(map(_count_runs, group)),
                input={"files": [name for _, _, name in group], "verdicts": verdicts},
                options={},
                run=partial(_import_files, group),
                schema=IMPORTED,
                files=tuple(Path(path) for path, _, _ in group),
            )
            parts.append(part)
        # Rows have no reference cycles, and searching for them takes a fifth of the time.
        gc.disable()
        try:
            made = run_shards(parts, work / PARTS, desc="import", unit="run")
        finally:
            gc.enable()
        counts, paths = sum_counts(made), [part.file for part in made]
        if not counts.get("runs"):
            problem = next((f" ({row['problem']})" for row in read_rows(paths, ["problem"])), "")
            raise EmptySelection(f"`{options.source}` has no run that can be read{problem}; {KNOWN}")
        finished = make_output(work)
        write_files(made, finished, ROLLOUT, REJECT)
        if options.sessions:
            write_sessions(paths, finished)
        report = {
            "pimono_sdpo": __version__,
            "stage": "rollouts",
            "source": source,
            "formats": dict(sorted(Counter(form.name for _, form, _ in files).items())),
            "rollouts": counts["runs"],
            "unreadable": counts.get("unreadable", 0),
            "verdicts": counts["verdicts"],
            "messages": counts["messages"],
        }
        publish_folder(finished, out, report)
    return report


def _find_files(source: str) -> tuple[str, list[SourceFile]]:
    """Return the name of a source, and its files."""
    path = Path(source)
    if path.exists():
        root = path if path.is_dir() else path.parent
        files = [(str(file.absolute()), form, file.relative_to(root).as_posix()) for file, form in find_runs(path)]
        if not files:
            raise SourceError(f"`{source}` has no runs of a known format; {KNOWN}")
        return path.resolve().name, files
    remote = find_parquet_files(source)
    files = [(str(remote.local(index)), openai_messages.FORMAT, name) for index, name in enumerate(remote.names)]
    for file, form, shown in files:
        if not form.recognises(Path(file)):
            raise SourceError(f"`{shown}` of `{source}` has no columns of messages and tasks.")
    return source, files


def _find_verdicts(source: str, runs: set[str]) -> Iterator[Path]:
    """Yield the files beside runs in which some formats keep verdicts and outputs of tests."""
    for path in sorted(Path(source).absolute().rglob("*")):
        if path.suffix in {".json", ".txt"} and str(path) not in runs:
            yield path


def _group_files(files: Sequence[SourceFile]) -> Iterator[list[SourceFile]]:
    """Yield the files of each part: one parquet file or log, or up to JSONL_PER_SHARD others."""
    for is_large, group in groupby(files, lambda file: Path(file[0]).suffix in {".parquet", ".eval"}):
        same, size = list(group), 1 if is_large else JSONL_PER_SHARD
        yield from (same[start : start + size] for start in range(0, len(same), size))


def _import_files(files: Sequence[SourceFile]) -> Iterator[Piece]:
    seeds, used_names = count(), set[str]()
    runs = (
        (file, is_single, number, run)
        for file in files
        for is_single in [_count_runs(file) == 1]
        for number, run in enumerate(_read_runs(file))
    )
    is_last = False
    while not is_last:
        batch = list(islice(runs, BATCH_ROWS))
        is_last = len(batch) < BATCH_ROWS
        rows, rejects, counts = list[Json](), list[Json](), Json()
        for (_, form, name), is_single, number, run in batch:
            if isinstance(run, str):
                rejects.append({"file": name, "number": number, "problem": run, KEPT: False})
                add_counts(counts, {"unreadable": 1})
                continue
            run.run_id = _name_run(run, name if is_single else f"{name}-{number}", used_names)
            row, fates = make_rollout(run, form.name, next(seeds))
            _encode_calls(row)
            rows.append({**row, KEPT: True})
            verdict = {True: "PASS", False: "FAIL", None: "not tested"}[run.passed]
            add_counts(counts, {"runs": 1, "messages": dict(fates), "verdicts": {verdict: 1}})
        yield Piece(pa.Table.from_pylist([*rows, *rejects], WRITTEN).cast(IMPORTED), len(batch), counts)


def _count_runs(file: SourceFile) -> int:
    path, form, _ = file
    try:
        return form.count(Path(path))
    except DAMAGE:
        return 1  # the reject


def _read_runs(file: SourceFile) -> Iterator[Trajectory | str]:
    """Yield the runs of a file; an unreadable run, or the damaged rest of a file, is yielded as its problem."""
    path, form, name = file
    try:
        yield from form.read_runs(Path(path))
    except DAMAGE as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        yield f"{name}: it cannot be read ({reason})"


def _name_run(run: Trajectory, default: str, used_names: set[str]) -> str:
    """Return a name for the run and its file that is unique within the part."""
    stem = run.run_id or re.sub(r"(\.traj)?(\.json)?$|\.parquet(?=-\d+$)", "", default)
    stem = _NAME.sub("_", stem).lstrip(".")[:MAX_NAME] or "run"
    name = next(one for one in chain([stem], (f"{stem}-{number}" for number in count(2))) if one not in used_names)
    used_names.add(name)
    return name


def _write_json(value: Any) -> str:
    return _ENCODER.encode(value).decode()


def _encode_calls(row: Json) -> None:
    """Replace the JSON values of a row by text; the arguments of each call are encoded once."""
    row["tools"] = [*map(_write_json, row["tools"])]
    for step in row["steps"]:
        if step["name"] is not None:
            turn = row["messages"][step["n_context"]]
            call_id, name = _write_json(turn["tool_calls"][0]["id"]), _write_json(step["name"])
            step["args"] = text = _write_json(step["args"])
            function = f'{{"name":{name},"arguments":{text}}}'
            turn["tool_calls"] = [f'{{"id":{call_id},"type":"function","function":{function}}}']


def make_rollout(run: Trajectory, suite: str, seed: int) -> tuple[Json, Counter[str]]:
    """Return a ROLLOUT row, and the number of messages that became turns or were left out, by reason."""
    turns, steps, fates = read_turns(run.messages)
    patch = run.patch or ""
    row: Json = {
        **{name: getattr(run, name, None) for name in ROLLOUT},
        **count_steps(steps),
        "suite": suite,
        # Orders equal runs.
        "seed": seed,
        "protocol": "native",
        "messages": turns,
        "tools": run.tools or describe_tools(list_worked(steps), run.model or "the agent"),
        "steps": steps,
        "tests_ok": run.passed,
        "patch": patch,
        "files_touched": sorted({match["path"] for match in _CHANGED.finditer(patch)} - {"/dev/null"}),
        "n_test_runs": 0,
    }
    return row, fates


def read_turns(messages: Sequence[Message]) -> tuple[list[Turn], list[Json], Counter[str]]:
    """Return turns, steps, and the number of messages that became turns or were left out, by reason."""
    pair_results(messages)
    answered = {id(call.result) for message in messages for call in message.calls}
    turns: list[Turn] = []
    steps: list[Json] = []
    fates: Counter[str] = Counter()
    for message in messages:
        fate, before = "turns", len(turns)
        if message.role == "tool":
            fate = "turns" if id(message) in answered else "results without a call"
        elif message.role == "assistant" and not message.learned:
            turns.append(make_turn("user", _describe(message)))
        elif message.role == "assistant" and message.calls:
            _add_calls(message, turns, steps)
            fate = "turns" if len(turns) > before else "calls without a result"
        elif not message.text.strip():
            fate = "empty"
        elif message.role == "assistant":
            add_answer(turns, steps, message.text)
        else:
            turns.append(make_turn(message.role, message.text))
        fates[fate] += 1
    return turns, steps, fates


def _describe(message: Message) -> str:
    """Return an answer that is not learned as text, with its calls and their results."""
    calls = (
        f"{one.name} {_write_json(one.arguments)}\n{one.result.text if one.result else ''}" for one in message.calls
    )
    return "\n\n".join(filter(None, map(str.strip, [message.text, *calls])))


def _add_calls(message: Message, turns: list[Turn], steps: list[Json]) -> None:
    text, ends = message.text, False
    for call in message.calls:
        if result := call.result:
            failed = result.failed or looks_failed(
                call.name, _write_json(call.arguments), result.text, has_passed=result.failed is not None
            )
            add_call(turns, steps, text, call.id, call.name, call.arguments, result.text, failed)
            text = ""
        elif call.name in ENDS:
            # The text of the call is the final answer. Other calls without a result are left out.
            ends = True
            values = call.arguments.values() if isinstance(call.arguments, dict) else ()
            text = "\n\n".join(filter(None, [text, *(v for v in values if type(v) is str)]))
    if text.strip() and ends:
        add_answer(turns, steps, text)
    elif text.strip():
        # If the call of an answer was cut off, the answer is not the final one.
        turns.append(make_turn("assistant", text))
