"""Write runs of other agents as rollouts, for `steps`, `pairs`, `evaluate`, `filter` and `view`.

reads   files in a format of `pimono_sdpo.traces.trajectories`
writes  ROLLOUT rows under data/, what cannot be read under rejects/, and if asked to, a session per
        run under sessions/ in the Hub's Session Trace Simple Format

An answer with several calls becomes a turn for each, followed by its own result, as in rollouts of
our own. Every message of the source is counted: as a turn, or with the reason why it is left out.
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
import pyarrow.parquet as pq
from datasets import Features, Value

from pimono_sdpo import __version__
from pimono_sdpo.errors import EmptySelection, SourceError
from pimono_sdpo.options import argument, option
from pimono_sdpo.options import options as option_class
from pimono_sdpo.runs.engine import Output, Part, Piece, add_counts, run_parts, sum_counts
from pimono_sdpo.runs.folders import make_output, only_run, publish_folder, require_disjoint
from pimono_sdpo.runs.parquet import link_or_copy
from pimono_sdpo.schema import ROLLOUT, Turn
from pimono_sdpo.stage import text_for_json
from pimono_sdpo.suites.stored_rollouts import describe_file, write_shards
from pimono_sdpo.traces.sources import find_parquet_files
from pimono_sdpo.traces.trajectories import FORMATS, find_runs, openai_messages
from pimono_sdpo.traces.trajectories.base import Format, Message, Trajectory, pair_results
from processors.diagnostics import looks_failed
from processors.rollouts.conversation import Json, add_answer, add_call, count_steps, make_turn
from processors.rollouts.sessions import infer_tools

Found = tuple[str, Format, str]
REJECT = Features({"file": Value("string"), "number": Value("int64"), "problem": Value("string")})
# ROLLOUT with its JSON as text, which msgspec writes several times faster than `datasets`.
WRITTEN = text_for_json(ROLLOUT.arrow_schema)
OUTPUTS = {
    "rows": Output("rows/{:05}.parquet", ROLLOUT.arrow_schema),
    "rejects": Output("rejects/{:05}.parquet", REJECT.arrow_schema),
}
# What the readers of parquet and of Inspect's logs raise for files that are cut or damaged.
DAMAGE = (pa.ArrowException, OSError, ValueError, EOFError, KeyError, BadZipFile, zlib.error)
FILES_PER_PART = 32
ROWS = 32
MAX_NAME = 120
# Tools with which agents end a run; their call needs no result, and its text is the report.
ENDS = frozenset({"finish", "submit", "attempt_completion", "task_complete", "mark_task_complete"})
_CHANGED = re.compile(r"^\+\+\+ (?:b/)?(?P<path>[^\t\r\n]+)", re.MULTILINE)
_NAME = re.compile(r"[^\w.-]+", re.ASCII)
_ENCODER = msgspec.json.Encoder()
KNOWN = "these are read: " + "; ".join(form.about for form in FORMATS) + "."


@option_class
class ImportOptions:
    """What is imported, and where to."""

    source: str = argument(
        "Folder or file of runs, or a Hub dataset such as `nebius/SWE-rebench-openhands-trajectories`."
    )
    out: Path = option("Folder to write; an earlier output is replaced.")
    sessions: bool = option("Also write each run to OUT/sessions, as the Hub's trace viewer shows it.", default=False)


def import_runs(options: ImportOptions) -> Json:
    """Write the rollouts below `out` and return the report."""
    name, files = _find_files(options.source)
    out = options.out.resolve()
    if Path(options.source).exists():
        require_disjoint(Path(options.source).resolve(), out)
    with only_run(out, stage="rollouts") as work:
        parts = []
        for number, few in enumerate(_divide(files)):
            given = {"files": [[shown, describe_file(Path(path))] for path, _, shown in few]}
            run = partial(_import_files, few)
            parts.append(Part(number, few[0][2], sum(map(_count_runs, few)), given, {}, run))
        # Rows are trees, which need no search for cycles; it takes a fifth of the time.
        gc.disable()
        try:
            records = run_parts(parts, work, OUTPUTS, desc="import", unit="run")
        finally:
            gc.enable()
        counts = sum_counts(records.values())
        rows, rejects = ([work / OUTPUTS[kind].path.format(n) for n in records] for kind in ("rows", "rejects"))
        if not counts.get("runs"):
            problem = next((f" ({why})" for file in rejects for why in pq.read_table(file)["problem"]), "")
            raise EmptySelection(f"`{options.source}` has no run that can be read{problem}; {KNOWN}")
        finished = make_output(work, "data", "rejects")
        write_shards(rows, finished, sessions=options.sessions)
        for number, file in enumerate(rejects):
            link_or_copy(file, finished / "rejects" / f"train-{number:05}-of-{len(parts):05}.parquet")
        report = {
            "pimono_sdpo": __version__,
            "stage": "rollouts",
            "source": name,
            "formats": dict(sorted(Counter(form.name for _, form, _ in files).items())),
            "rollouts": counts["runs"],
            "unreadable": counts.get("unreadable", 0),
            "verdicts": counts["verdicts"],
            "messages": counts["messages"],
        }
        publish_folder(finished, out, report)
    return report


def _find_files(source: str) -> tuple[str, list[Found]]:
    """Return the name of a source, and its files with their formats and names."""
    path = Path(source)
    if path.exists():
        root = path if path.is_dir() else path.parent
        found = [(str(file.absolute()), form, file.relative_to(root).as_posix()) for file, form in find_runs(path)]
        if not found:
            raise SourceError(f"`{source}` holds no runs of a known format; {KNOWN}")
        return path.resolve().name, found
    remote = find_parquet_files(source)
    files = [(str(remote.local(index)), openai_messages.FORMAT, name) for index, name in enumerate(remote.names)]
    for file, form, shown in files:
        if not form.recognises(Path(file)):
            raise SourceError(f"`{shown}` of `{source}` has no columns of messages and tasks.")
    return source, files


def _divide(files: Sequence[Found]) -> Iterator[list[Found]]:
    """Yield the files of each part: a parquet file or a log alone, others by FILES_PER_PART."""
    for is_large, group in groupby(files, lambda one: Path(one[0]).suffix in {".parquet", ".eval"}):
        few, most = list(group), 1 if is_large else FILES_PER_PART
        yield from (few[start : start + most] for start in range(0, len(few), most))


def _import_files(files: Sequence[Found]) -> Iterator[Piece]:
    numbers, taken = count(), set[str]()
    found = (
        (file, is_single, one)
        for file in files
        for is_single in [_count_runs(file) == 1]
        for one in enumerate(_read_runs(file))
    )
    is_last = False
    while not is_last:
        few = list(islice(found, ROWS))
        is_last = len(few) < ROWS
        rows, rejects, counts = list[Json](), list[Json](), Json()
        for (_, form, name), is_single, (number, run) in few:
            if isinstance(run, str):
                rejects.append({"file": name, "number": number, "problem": run})
                add_counts(counts, {"unreadable": 1})
                continue
            run.run_id = _name_run(run, name if is_single else f"{name}-{number}", taken)
            row, fates = make_rollout(run, form.name, next(numbers))
            _encode_calls(row)
            rows.append(row)
            verdict = {True: "PASS", False: "FAIL", None: "not tested"}[run.passed]
            add_counts(counts, {"runs": 1, "messages": dict(fates), "verdicts": {verdict: 1}})
        tables = {
            "rows": pa.Table.from_pylist(rows, WRITTEN).cast(ROLLOUT.arrow_schema),
            "rejects": pa.Table.from_pylist(rejects, REJECT.arrow_schema),
        }
        yield Piece(tables, len(few), counts)


def _count_runs(file: Found) -> int:
    path, form, _ = file
    try:
        return form.count(Path(path))
    except DAMAGE:
        return 1  # its reject


def _read_runs(file: Found) -> Iterator[Trajectory | str]:
    """Yield the runs of a file; a clause for one that cannot be read, or for the damaged rest."""
    path, form, name = file
    try:
        yield from form.read_runs(Path(path))
    except DAMAGE as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        yield f"{name}: it cannot be read ({reason})"


def _name_run(run: Trajectory, default: str, taken: set[str]) -> str:
    """Return a name for the run and its file, which no other run of the part has."""
    stem = run.run_id or re.sub(r"(\.traj)?(\.json)?$|\.parquet(?=-\d+$)", "", default)
    stem = _NAME.sub("_", stem).lstrip(".")[:MAX_NAME] or "run"
    name = next(one for one in chain([stem], (f"{stem}-{number}" for number in count(2))) if one not in taken)
    taken.add(name)
    return name


def _write_json(value: Any) -> str:
    return _ENCODER.encode(value).decode()


def _encode_calls(row: Json) -> None:
    """Write the JSON of a row as text, the arguments of each call once."""
    row["tools"] = [*map(_write_json, row["tools"])]
    for step in row["steps"]:
        if step["name"] is not None:
            turn = row["messages"][step["n_context"]]
            call_id, name = _write_json(turn["tool_calls"][0]["id"]), _write_json(step["name"])
            step["args"] = text = _write_json(step["args"])
            function = f'{{"name":{name},"arguments":{text}}}'
            turn["tool_calls"] = [f'{{"id":{call_id},"type":"function","function":{function}}}']


def make_rollout(run: Trajectory, suite: str, number: int) -> tuple[Json, Counter[str]]:
    """Return a ROLLOUT row, and how many messages of the source became turns, or why not."""
    turns, steps, fates = read_turns(run.messages)
    patch = run.patch or ""
    row: Json = {
        **{name: getattr(run, name, None) for name in ROLLOUT},
        **count_steps(steps),
        "suite": suite,
        # It orders runs that are equal.
        "seed": number,
        "protocol": "native",
        "messages": turns,
        "tools": run.tools or infer_tools(steps, run.model or "the agent"),
        "steps": steps,
        "tests_ok": run.passed,
        "patch": patch,
        "files_touched": sorted({found["path"] for found in _CHANGED.finditer(patch)} - {"/dev/null"}),
        "n_test_runs": 0,
    }
    return row, fates


def read_turns(messages: Sequence[Message]) -> tuple[list[Turn], list[Json], Counter[str]]:
    """Return turns, steps, and the number of messages by what became of them."""
    pair_results(messages)
    answered = {id(call.result) for message in messages for call in message.calls}
    turns: list[Turn] = []
    steps: list[Json] = []
    fates: Counter[str] = Counter()
    for message in messages:
        fate, before = "turns", len(turns)
        if message.role == "tool":
            fate = "turns" if id(message) in answered else "results without a call"
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


def _add_calls(message: Message, turns: list[Turn], steps: list[Json]) -> None:
    text, ends = message.text, False
    for call in message.calls:
        if result := call.result:
            said = call.name, _write_json(call.arguments), result.text
            failed = result.failed or looks_failed(*said, has_passed=result.failed is not None)
            add_call(turns, steps, text, call.id, call.name, call.arguments, result.text, failed)
            text = ""
        elif call.name in ENDS:
            # Its text is the final answer; other calls without a result are left out.
            ends = True
            values = call.arguments.values() if isinstance(call.arguments, dict) else ()
            text = "\n\n".join(filter(None, [text, *(v for v in values if type(v) is str)]))
    if text.strip() and ends:
        add_answer(turns, steps, text)
    elif text.strip():
        # An answer whose call was cut off is not the final one.
        turns.append(make_turn("assistant", text))
