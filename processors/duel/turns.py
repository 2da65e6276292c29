"""Draw the turns of a duel from trajectories or recorded sessions.

reads   trajectories (parquet with `instance_id` and `messages`, and `repo` where there is one) and
        records of pull requests; or recorded sessions of any harness
writes  DIR/turns/turns-NNNNN.parquet (TURN, at most 200 rows each), DIR/prs/prs-00000.parquet
        (PULL_REQUEST), DIR/turns.json

The same source, seed and options give the same bytes.

Tasks of trajectories are drawn uniformly: a turn of one run of every task, in random order, then of
another run of each. The column of ids is read whole; of the rest, only the row groups with a drawn
run, in batches. Of pull requests, only ids and the records of drawn tasks are read.

A session gives turns, and a record in the columns of a pull request. One without a failure or a
correction has nothing to hide. Secrets and machine paths are redacted before any model is asked.
"""

import hashlib
import heapq
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo.errors import EmptySelection, SourceError
from pimono_sdpo.runs.parquet import write_atomically, write_rows
from pimono_sdpo.schema import DUEL_TURN, PULL_REQUEST
from pimono_sdpo.text import replace_surrogates, shorten
from pimono_sdpo.traces.events import Event, decode_json
from pimono_sdpo.traces.parse import Trace, read_trace
from pimono_sdpo.traces.sources import ParquetFiles, Source, find_parquet_files, open_source, read_sessions
from pimono_sdpo.traces.trajectories.base import join_text
from processors.context import write_context
from processors.duel.answers import classify_action
from processors.evidence import gather_evidence
from processors.redact import redact, redact_homes, redact_text

Json = dict[str, Any]
KEY = "instance_id"
NEEDED = (KEY, "messages")
TURNS, RECORDS, REPORT = "turns", "prs", "turns.json"
SHARD_ROWS = 200
BATCH_ROWS = 64
# No judge reads a longer history to its end.
MAX_CHARS = 120_000
# Maximum characters of an observation of a session.
OBSERVATION = 8_000
SYSTEM = "You are a coding agent. You work on the user's request in a shell, one step at a time."
# Names that records of pull requests use for a column; the first one present counts.
NAMES = {
    "problem_statement": ("problem_statement", "issue", "issue_text", "issue_body"),
    "patch": ("patch", "diff", "gold_patch"),
    "base_commit": ("base_commit", "commit", "base_sha"),
    "description": ("description", "pr_description", "pr_body", "body", "hints_text"),
}
TITLES = ("title", "pr_title")
_TARGETS = re.compile(r"^diff --git a/.{1,500}? b/(.{1,500})$", re.MULTILINE)


@dataclass(frozen=True)
class Options:
    """How many turns to draw, the seed, and instance ids to leave out."""

    turns: int = 2000
    seed: int = 42
    exclude: frozenset[str] = frozenset()


def read_excluded_ids(path: Path) -> frozenset[str]:
    """Read instance ids from a text file, one per line; `#` starts a comment."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"`{path}` cannot be read as a list of instance ids, one per line ({error}).") from error
    return frozenset(filter(None, (line.partition("#")[0].strip() for line in lines)))


def draw_turns(source: str, records: str | None, options: Options, out: Path, request: str = "") -> Json:
    """Write the turns and what is hidden from them under `out`; return the report.

    The report stores `request`, by which a later run knows these turns.
    """
    drops: Counter[str] = Counter()
    if is_trajectories(source):
        if records is None:
            raise SourceError(
                "Trajectories need the pull requests that are hidden from the king; give --records, such as "
                "nebius/SWE-rebench-V2-PRs."
            )
        files = find_parquet_files(source)
        scans = scan_pull_requests(records)
        turns = list(_select_from_trajectories(files, list_ids(scans), options, drops))
        hidden = read_records(scans, {turn[KEY] for turn in turns})
        name, revision = files.source, files.revision
    else:
        opened = open_source(source)
        turns, hidden = _select_from_sessions(opened, options, drops)
        name, revision = opened.name, opened.revision
    dropped = dict(sorted((+drops).items()))
    if not turns:
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in dropped.items()) or "no rows"
        raise EmptySelection(f"`{source}` has no usable turn ({reasons}); give another source.")
    report: Json = {
        "source": name,
        "revision": revision,
        "request": request,
        "options": {**asdict(options), "exclude": sorted(options.exclude)},
        "turns": len(turns),
        "instances": len({turn[KEY] for turn in turns}),
        "dropped": dropped,
    }
    (out / REPORT).unlink(missing_ok=True)
    for folder in (out / TURNS, out / RECORDS):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for number, start in enumerate(range(0, len(turns), SHARD_ROWS)):
        stem = f"{TURNS}-{number:05}"
        rows = [
            {"turn_id": f"{stem}_{order}", **turn}
            for order, turn in enumerate(turns[start : start + SHARD_ROWS], start=1)
        ]
        write_rows(out / TURNS / f"{stem}.parquet", rows, DUEL_TURN.arrow_schema)
    write_rows(out / RECORDS / f"{RECORDS}-00000.parquet", hidden, PULL_REQUEST.arrow_schema)
    # Written last: it marks the folder as complete.
    write_atomically(out / REPORT, (json.dumps(report, indent=2) + "\n").encode())
    return report


def is_trajectories(source: str) -> bool:
    """Whether a source is parquet with the columns of trajectories, not recorded sessions."""
    path = Path(source)
    if path.exists() and path.suffix != ".parquet" and not any(path.rglob("*.parquet")):
        return False
    with find_parquet_files(source).open(0) as parquet:
        return set(NEEDED) <= set(parquet.schema_arrow.names)


def _select_from_trajectories(
    files: ParquetFiles, known: Collection[str], options: Options, drops: Counter[str]
) -> Iterator[Json]:
    runs = order_runs(files, known, options.exclude, drops, options.seed)
    seen: set[bytes] = set()
    kept = start = 0
    while kept < options.turns and (draws := draw_runs(files, runs.slice(start, options.turns - kept), options.seed)):
        start += len(draws)
        for turn in draws:
            if isinstance(turn, str):
                drops[turn] += 1
                continue
            # Many runs of one task begin alike: ask the same question once.
            question = hashlib.sha256(json.dumps(turn["messages"]).encode()).digest()
            if question in seen:
                drops["duplicate"] += 1
                continue
            seen.add(question)
            yield turn
            kept += 1


def order_runs(
    files: ParquetFiles, known: Collection[str], excluded: Collection[str], drops: Counter[str], seed: int
) -> pl.DataFrame:
    """Return the runs of known tasks that are not excluded, as `file` and `row`, in the order drawn."""
    found = []
    for index, name in enumerate(files.names):
        with files.open(index) as parquet:
            if missing := {*NEEDED} - {*parquet.schema_arrow.names}:
                raise SourceError(f"`{name}` has no column `{min(missing)}`; give trajectories or recorded sessions.")
            ids = pl.Series("id", parquet.read([KEY])[KEY].combine_chunks(), pl.String)
        rows = pl.DataFrame({"id": ids}).with_columns(file=pl.lit(index, pl.UInt32))
        found.append(rows.with_row_index("row"))
    runs = pl.concat(found)
    reasons = {
        "excluded": pl.col("id").is_in(excluded),
        "no_instance_id": pl.col("id").is_null() | (pl.col("id") == ""),
        "no_pull_request": ~pl.col("id").is_in(known),
    }
    for reason, condition in reasons.items():
        drops[reason] += runs.select(condition.fill_null(True).sum()).item()
        runs = runs.filter(~condition.fill_null(True))
    rng = np.random.default_rng(seed)
    tasks = runs.select(pl.col("id").unique().sort())
    tasks = tasks.with_columns(place_of_task=pl.Series(rng.permutation(len(tasks))))
    shuffled = runs[rng.permutation(len(runs))].join(tasks, on="id", maintain_order="left")
    rank = pl.int_range(pl.len()).over("id")
    return shuffled.with_columns(rank=rank).sort("rank", "place_of_task")


def draw_runs(files: ParquetFiles, runs: pl.DataFrame, seed: int) -> list[Json | str]:
    """Return a turn of each of these runs, or why it gives none, in their order."""
    drawn: dict[int, Json | str] = {}
    for (index,), chosen in runs.with_row_index("place").group_by("file", maintain_order=True):
        name = files.names[int(index)]
        places = dict(zip(chosen["row"].to_list(), chosen["place"].to_list(), strict=True))
        with files.open(int(index)) as parquet:
            for at, row in _read_rows(parquet, sorted(places)):
                drawn[places[at]] = _draw_turn(row, random.Random(f"{seed}:{name}:{at}"))
    return [drawn[place] for place in sorted(drawn)]


def _read_rows(parquet: pq.ParquetFile, wanted: Sequence[int]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the wanted rows of a file with their numbers; row groups are decoded in batches."""
    columns = [name for name in (*NEEDED, "repo") if name in parquet.schema_arrow.names]
    start = 0
    for group in range(parquet.metadata.num_row_groups):
        stop = start + parquet.metadata.row_group(group).num_rows
        if any(start <= row < stop for row in wanted):
            at = start
            for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
                here = [row for row in wanted if at <= row < at + batch.num_rows]
                taken = batch.take(pa.array([row - at for row in here], pa.int64())).to_pylist()
                yield from zip(here, taken, strict=True)
                at += batch.num_rows
        start = stop


def _draw_turn(row: Mapping[str, Any], rng: random.Random) -> Json | str:
    """Choose one of the agent's turns: the messages before it are given, it is the reference."""
    instance, repo = row[KEY], row.get("repo")
    messages = read_messages(row["messages"])
    places = _find_turns(messages)
    readable = _select_readable(messages, places)
    if not readable:
        return "too_long" if places else "no_turn"
    if repo is None or not str(repo).strip():
        # As in django__django-11099.
        repo = instance.rpartition("-")[0].replace("__", "/") if "__" in instance else ""
    at = rng.choice(readable)
    return _make_turn(messages, at, instance, str(repo), places.index(at) + 1)


def _make_turn(messages: list[Json], at: int, instance: str, repo: str, number: int) -> Json:
    answer = messages[at]["content"]
    about = {KEY: instance, "repo": repo, "messages": messages[:at], "assistant": answer}
    return {**about, "turn": number, "action_style": classify_action(answer)}


def _find_turns(messages: Sequence[Json]) -> list[int]:
    roles = [message["role"] for message in messages]
    return [at for at, pair in enumerate(pairwise(roles), start=1) if pair == ("user", "assistant")]


def _select_readable(messages: Sequence[Json], places: Sequence[int]) -> list[int]:
    before = list(accumulate((len(message["content"]) for message in messages), initial=0))
    return [at for at in places if before[at] <= MAX_CHARS]


def read_messages(recorded: object) -> list[Json]:
    """Return role and text of each message of a list or its JSON; results of tools become messages of the user.

    Empty messages are left out.
    """
    recorded = decode_json(recorded) if isinstance(recorded, str) else recorded
    messages: list[Json] = []
    for message in recorded if isinstance(recorded, list) else []:
        if not isinstance(message, dict):
            continue
        role, text = message.get("role"), replace_surrogates(join_text(message.get("content")))
        if role == "tool":
            role, text = "user", f"Observation:\n{text}"
        if role not in ("system", "user", "assistant") or not text.strip():
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{text}"
        else:
            messages.append({"role": role, "content": text})
    return messages


def _select_from_sessions(source: Source, options: Options, drops: Counter[str]) -> tuple[list[Json], list[Json]]:
    """Take one turn of each session, then a second, until there are enough; a hash decides."""
    sessions = sum(shard.sessions for shard in source.shards)
    # Many sessions have none, so the others may give more than their share.
    most = min(4 * -(-options.turns // max(sessions, 1)) + 4, options.turns)

    def draw() -> Iterator[tuple[int, bytes, Json, Json]]:
        tables = (table for shard in source.shards for table in read_sessions(shard))
        for session in (row for table in tables for row in table.to_pylist()):
            drawn = draw_from_session(session, options.seed, most)
            if isinstance(drawn, str):
                drops[drawn] += 1
                continue
            turns, record = drawn
            is_excluded = record[KEY] in options.exclude
            drops["excluded" if is_excluded else "not_drawn"] += len(turns)
            for rank, turn in enumerate(() if is_excluded else turns):
                key = json.dumps([options.seed, turn[KEY], turn["turn"], turn["assistant"]])
                yield rank, hashlib.sha256(key.encode()).digest()[:8], turn, record

    # First turns of sessions come before second ones.
    best = heapq.nsmallest(options.turns, draw(), key=itemgetter(0, 1))
    drops["not_drawn"] -= len(best)
    records: dict[str, Json] = {}
    kept = []
    for *_, turn, record in best:
        # Of two sessions with one id, what is hidden of the first is not true of the second.
        if records.setdefault(turn[KEY], record) == record:
            kept.append(turn)
        else:
            drops["same_id_as_another_session"] += 1
    return kept, [records[key] for key in sorted(records)]


def draw_from_session(session: Mapping[str, Any], seed: int, most: int) -> tuple[list[Json], Json] | str:
    """Draw at most `most` turns of a session, and what is hidden; or return why there is none."""
    found = gather_evidence(session, "session", 0)[0]
    if found["problem"]:
        return str(found["problem"])
    problems = [item["event_index"] for item in found["findings"]]
    if not found["prompt"] or not problems:
        return "nothing_hidden" if found["prompt"] else "no_request"
    trace = read_trace(session["trace"] or b"")
    conversation = list(_render_events(trace, found["identity"]))
    messages = [message for message, _ in conversation]
    turns = _find_turns(messages)
    before = [at for at in turns if conversation[at][1].index < max(problems)]
    places = [at for at in before if classify_action(messages[at]["content"]) != "none"]
    readable = _select_readable(messages, places)
    if not readable:
        return "too_long" if places else "no_turn"
    name = session["source"] or found["session_id"]
    drawn = random.Random(f"{seed}:{name}").sample(readable, min(most, len(readable)))
    cleaned = [
        {**message, "content": redact_text(message["content"], trace.cwd, found["identity"])[0]}
        for message in messages[: max(drawn) + 1]
    ]
    clean = {**found, **redact(found)}
    instance = redact_text(found["session_id"] or name, trace.cwd)[0]
    texts = {"problem_statement": clean["prompt"], "description": write_context(clean)["privileged_context"]}
    record = {KEY: instance, **texts, "patch": "", "files": [], "base_commit": ""}
    record["pr_chars"] = sum(map(len, texts.values()))
    # When the workspace is a home folder, this is just $HOME.
    repo = redact_homes(trace.cwd.rstrip("/")).rpartition("/")[2]
    made = []
    for at in drawn:
        turn = _make_turn(cleaned, at, instance, repo, turns.index(at) + 1)
        history = read_messages([{"role": "system", "content": SYSTEM}, *turn["messages"]])
        made.append({**turn, "messages": history})
    return made, record


def _render_events(trace: Trace, names: list[str] | None) -> Iterator[tuple[Json, Event]]:
    """Yield messages as THOUGHT plus one block; a call takes the text just before it."""
    thought: Event | None = None

    def cut(text: str) -> str:
        # Half of a secret would not be recognised later.
        is_long = len(text) > OBSERVATION
        return shorten(redact_text(text, trace.cwd, names)[0], OBSERVATION) if is_long else text

    for event in trace.events:
        if not event.on_active_branch or event.is_subagent:
            continue
        if event.kind == "tool_call":
            words = thought.text.strip() if thought else ""
            block = f"```json\n{event.tool_name} {cut(event.arguments)}\n```"
            # The form requires a thought, which many agents do not write down.
            content = f"THOUGHT: {words or 'I take the next step.'}\n\n{_render_command(event) or block}"
            yield {"role": "assistant", "content": content}, event
            thought = None
            continue
        if thought is not None and thought.text.strip():
            yield {"role": "assistant", "content": thought.text}, thought
        thought = event if event.kind == "assistant" else None
        if event.kind in ("user", "compaction", "branch_summary"):
            yield {"role": "user", "content": event.text}, event
        elif event.kind in ("tool_result", "bash"):
            code = "" if event.exit_code in (None, 0) else f" (exit code {event.exit_code})"
            ran = f"$ {event.arguments}\n" if event.kind == "bash" else ""
            text = f"Observation{code}:\n{ran}{cut(event.text)}"
            yield {"role": "user", "content": text}, event


def _render_command(event: Event) -> str:
    """Return a shell command as a bash block, "" for any other call."""
    arguments = decode_json(event.arguments)
    command = arguments.get("command") if isinstance(arguments, dict) else None
    if isinstance(command, list):
        command = " ".join(map(str, command))
    if isinstance(command, str) and command.strip() and "```" not in command:
        return f"```bash\n{command.strip()}\n```"
    return ""


def scan_pull_requests(source: str) -> list[pl.LazyFrame]:
    """Open records of pull requests, a frame for each file; raises SourceError for others."""
    files = find_parquet_files(source)
    texts = {*TITLES, *(name for key, names in NAMES.items() for name in names if key != "base_commit")}
    for index, name in enumerate(files.names):
        with files.open(index) as parquet:
            schema = parquet.schema_arrow
        if KEY not in schema.names or "string" not in str(schema.field(KEY).type):
            raise SourceError(f"`{name}` has no text column `{KEY}`; give records of pull requests.")
        if not texts & {*schema.names}:
            raise SourceError(f"`{name}` has no column that describes a change, such as `patch`.")
    return [pl.scan_parquet(files.local(index)) for index in range(len(files.names))]


def list_ids(scans: Iterable[pl.LazyFrame]) -> frozenset[str]:
    """Return the instance ids of all records."""
    columns = (scan.select(KEY).collect(engine="streaming") for scan in scans)
    return frozenset(value for column in columns for value in column[KEY] if value)


def read_records(scans: Iterable[pl.LazyFrame], wanted: Collection[str]) -> list[Json]:
    """Return the records of these ids, sorted; of two with the same id the first is kept."""
    keys = pl.LazyFrame({KEY: sorted(wanted)}, schema={KEY: pl.String})
    found: dict[str, Json] = {}
    for scan in scans:
        there = scan.collect_schema().names()
        needed = [KEY, *(n for names in (*NAMES.values(), TITLES) for n in names if n in there)]
        joined = scan.select(needed).join(keys, on=KEY, how="semi", maintain_order="left")
        for row in joined.collect(engine="streaming").iter_rows(named=True):
            found.setdefault(row[KEY], make_record(row))
    return [found[key] for key in sorted(found)]


def make_record(row: Json) -> Json:
    """Bring a row to the columns of PULL_REQUEST."""
    texts = {name: _first_text(row, names) for name, names in NAMES.items()}
    title = _first_text(row, TITLES)
    if title:
        texts["description"] = f"{title}\n\n{texts['description']}".strip()
    return {
        KEY: row[KEY],
        **texts,
        "files": list(dict.fromkeys(_TARGETS.findall(texts["patch"]))),
        "pr_chars": sum(map(len, texts.values())),
    }


def _first_text(row: Json, names: Iterable[str]) -> str:
    for name in names:
        value = row.get(name)
        if value is not None and value != "":
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            return replace_surrogates(text).strip()
    return ""
