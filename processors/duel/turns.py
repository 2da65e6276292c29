"""Draw the turns of a duel from trajectories or recorded sessions.

reads   trajectories (parquet with `instance_id` and `messages`, and `repo` where there is one) and
        records of pull requests; or recorded sessions of any harness
writes  DIR/turns/turns-NNNNN.parquet (TURN, at most 200 rows each), DIR/prs/prs-00000.parquet
        (PULL_REQUEST), DIR/turns.json

The same source, seed and options give the same bytes.

Tasks of trajectories are drawn uniformly: a turn of one run of every task, in random order, then of
another run of each. The column of ids is read whole; of the rest, only the row groups with a drawn
run, in batches, and only the columns needed.

A session gives turns, and a record in the columns of a pull request. One without a failure or a
correction has nothing to hide. Secrets and machine paths are redacted before any model is asked.

Pull requests are a dataset with `instance_id` and columns for an issue, a patch, a commit, a
description. Only the ids of all records are read; texts are read for the requested records alone.
"""

import hashlib
import heapq
import json
import random
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo.errors import EmptySelection, SourceError
from pimono_sdpo.runs.parquet import write_atomically, write_rows
from pimono_sdpo.schema import DUEL_TURN, PULL_REQUEST
from pimono_sdpo.text import replace_surrogates, shorten
from pimono_sdpo.traces.events import Event, decode_json
from pimono_sdpo.traces.parse import read_trace
from pimono_sdpo.traces.sources import ParquetFiles, find_parquet_files, open_source, read_sessions
from processors.context import write_context
from processors.duel.answers import classify_action
from processors.evidence import gather_evidence
from processors.redact import redact, redact_homes, redact_text

Json = dict[str, Any]
NEEDED = ("instance_id", "messages")
BATCH_ROWS = 64
# No judge reads a longer history to its end.
MAX_CHARS = 120_000
_OBSERVATION = "Observation:\n"


class Draw(NamedTuple):
    """A candidate turn, or why a row gives none."""

    turn: Json | None
    drop_reason: str | None


class Runs:
    """The runs of known tasks in a dataset of trajectories, in the order in which they are drawn.

    `excluded` tasks and those that are not `known` are left out and counted in `drops`.
    """

    def __init__(
        self,
        files: ParquetFiles,
        known: Collection[str],
        excluded: Collection[str],
        drops: Counter[str],
        seed: int,
    ) -> None:
        self.files = files
        self.seed = seed
        found = []
        for index, name in enumerate(files.names):
            with files.open(index) as parquet:
                _check_columns(parquet, name)
                ids = pl.Series("id", parquet.read([KEY])[KEY].combine_chunks(), pl.String)
            rows = pl.DataFrame({"id": ids}).with_columns(file=pl.lit(index, pl.UInt32))
            found.append(rows.with_row_index("row"))
        runs = pl.concat(found)
        wanted = pl.col("id").is_in(pl.Series(sorted(known), dtype=pl.String).implode())
        left_out = pl.col("id").is_in(pl.Series(sorted(excluded), dtype=pl.String).implode())
        reasons = {
            "excluded": left_out,
            "no_instance_id": pl.col("id").is_null() | (pl.col("id") == ""),
            "no_pull_request": ~wanted,
        }
        for reason, condition in reasons.items():
            dropped = runs.select(condition.fill_null(True).sum()).item()
            drops.update({reason: dropped} if dropped else {})
            runs = runs.filter(~condition.fill_null(True))
        rng = np.random.default_rng(seed)
        tasks = runs.select(pl.col("id").unique().sort())
        tasks = tasks.with_columns(place_of_task=pl.Series(rng.permutation(len(tasks))))
        shuffled = runs[rng.permutation(len(runs))].join(tasks, on="id", maintain_order="left")
        rank = pl.int_range(pl.len()).over("id")
        self._order = shuffled.with_columns(rank=rank).sort("rank", "place_of_task")

    def draw(self, start: int, count: int) -> list[Draw]:
        """Return the draws number `start` and following, at most `count`; empty after the last."""
        chosen = self._order.slice(start, count).with_row_index("place")
        drawn: dict[int, Draw] = {}
        for (index,), runs in chosen.group_by("file", maintain_order=True):
            name = self.files.names[int(index)]
            places = dict(zip(runs["row"].to_list(), runs["place"].to_list(), strict=True))
            with self.files.open(int(index)) as parquet:
                for at, row in _read_rows(parquet, places):
                    rng = random.Random(f"{self.seed}:{name}:{at}")
                    drawn[places[at]] = _draw_turn(row, rng)
        return [drawn[place] for place in sorted(drawn)]


def _check_columns(parquet: pq.ParquetFile, name: str) -> None:
    columns = parquet.schema_arrow.names
    missing = [column for column in NEEDED if column not in columns]
    if missing:
        raise SourceError(
            f"`{name}` has no column `{missing[0]}` but {', '.join(columns[:8])}; give "
            "trajectories with `instance_id` and `messages`, or recorded sessions."
        )


def _read_rows(
    parquet: pq.ParquetFile, wanted: Collection[int]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the wanted rows of a file with their numbers; row groups are decoded in batches."""
    columns = [name for name in (*NEEDED, "repo") if name in parquet.schema_arrow.names]
    left = sorted(wanted)
    start = 0
    for group in range(parquet.metadata.num_row_groups):
        stop = start + parquet.metadata.row_group(group).num_rows
        inside = [row for row in left if start <= row < stop]
        at = start
        batches = parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns)
        while inside and at <= inside[-1]:
            batch = next(batches)
            here = [row for row in inside if at <= row < at + batch.num_rows]
            taken = batch.take(pa.array([row - at for row in here], pa.int64())).to_pylist()
            yield from zip(here, taken, strict=True)
            at += batch.num_rows
        start = stop


def _draw_turn(row: Mapping[str, Any], rng: random.Random) -> Draw:
    """Choose one of the agent's turns: the messages before it are given, it is the reference."""
    instance = row["instance_id"]
    messages = read_messages(row["messages"])
    places = find_turns(messages)
    if not places:
        return Draw(None, "no_turn")
    readable = places[: count_readable(messages, places)]
    if not readable:
        return Draw(None, "too_long")
    at = rng.choice(readable)
    answer = messages[at]["content"]
    turn = {
        "instance_id": instance,
        "repo": _name_repo(row.get("repo"), instance),
        "messages": messages[:at],
        "assistant": answer,
        "turn": places.index(at) + 1,
        "action_style": classify_action(answer),
    }
    return Draw(turn, None)


def _name_repo(given: object, instance: str) -> str:
    """Return the repository as given, or that of an id such as `django__django-11099`, or ""."""
    if given is not None and str(given).strip():
        return str(given)
    return instance.rpartition("-")[0].replace("__", "/") if "__" in instance else ""


def find_turns(messages: Sequence[Json]) -> list[int]:
    """Return the indexes of the agent's answers to the user."""
    return [
        at
        for at in range(1, len(messages))
        if messages[at]["role"] == "assistant" and messages[at - 1]["role"] == "user"
    ]


def count_readable(messages: Sequence[Json], places: Sequence[int]) -> int:
    """Count the places whose history is short enough to be read."""
    before = list(accumulate((len(message["content"]) for message in messages), initial=0))
    return bisect_right(places, MAX_CHARS, key=lambda at: before[at])


def read_messages(recorded: object) -> list[Json]:
    """Return role and text of each message; tool results become messages of the user.

    `recorded` is a list or the JSON of one; content may be text or parts. Empty messages are left
    out; anything else gives no messages.
    """
    if isinstance(recorded, str):
        try:
            recorded = json.loads(recorded)
        except (ValueError, RecursionError):
            return []
    messages: list[Json] = []
    for message in recorded if isinstance(recorded, list) else []:
        if not isinstance(message, dict):
            continue
        role, text = message.get("role"), _join_parts(message.get("content"))
        if role == "tool":
            role, text = "user", _OBSERVATION + text
        if role not in ("system", "user", "assistant") or not text.strip():
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += "\n\n" + replace_surrogates(text)
        else:
            messages.append({"role": role, "content": replace_surrogates(text)})
    return messages


def _join_parts(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


# Maximum characters of an observation.
OBSERVATION = 8_000
SYSTEM = "You are a coding agent. You work on the user's request in a shell, one step at a time."


class Drawn(NamedTuple):
    """A turn and what is hidden from it, or why the session has none."""

    turn: Json | None
    record: Json | None
    drop_reason: str | None


def draw_from_session(session: Mapping[str, Any], seed: int, most: int) -> list[Drawn]:
    """Draw at most `most` turns of a session; never raises on its content."""
    found = gather_evidence(session, "session", 0)[0]
    if found["problem"]:
        return [Drawn(None, None, found["problem"])]
    problems = [item["event_index"] for item in found["findings"]]
    if not found["prompt"] or not problems:
        return [Drawn(None, None, "nothing_hidden" if found["prompt"] else "no_request")]
    trace = read_trace(session["trace"] or b"")
    conversation = list(_render_events(trace.events))
    messages = [message for message, _ in conversation]
    places = [
        at
        for at in find_turns(messages)
        if conversation[at][1].index < max(problems)
        and classify_action(messages[at]["content"]) != "none"
    ]
    readable = places[: count_readable(messages, places)]
    if not readable:
        return [Drawn(None, None, "too_long" if places else "no_turn")]
    name = session["source"] or found["session_id"]
    rng = random.Random(f"{seed}:{name}")
    drawn = rng.sample(readable, min(most, len(readable)))
    clean_messages = [
        {**message, "content": redact_text(message["content"], trace.cwd)[0]}
        for message in messages[: max(drawn) + 1]
    ]
    clean = {**found, **redact(found)}
    instance = redact_text(found["session_id"] or name, trace.cwd)[0]
    record = {
        "instance_id": instance,
        "problem_statement": clean["prompt"],
        "patch": "",
        "files": [],
        "base_commit": "",
        "description": write_context(clean)["privileged_context"],
    }
    record["pr_chars"] = len(record["problem_statement"]) + len(record["description"])
    return [
        Drawn(_make_turn(clean_messages, at, trace.cwd, instance), record, None) for at in drawn
    ]


def _make_turn(conversation: list[Json], at: int, cwd: str, instance: str) -> Json:
    before = [{"role": "system", "content": SYSTEM}, *conversation[:at]]
    answer = conversation[at]["content"]
    return {
        "instance_id": instance,
        # When the workspace is a home folder, this is just $HOME.
        "repo": redact_homes(cwd.rstrip("/")).rpartition("/")[2],
        "messages": read_messages(before),
        "assistant": answer,
        "turn": find_turns(conversation).index(at) + 1,
        "action_style": classify_action(answer),
    }


def _render_events(events: tuple[Event, ...]) -> Iterator[tuple[Json, Event]]:
    """Yield messages as THOUGHT plus one block; a call takes the text just before it."""
    thought: Event | None = None
    for event in events:
        if not event.on_active_branch or event.is_subagent:
            continue
        if event.kind == "tool_call":
            words = thought.text.strip() if thought else ""
            # The form requires a thought, which many agents do not write down.
            content = f"THOUGHT: {words or 'I take the next step.'}\n\n{_render_call(event)}"
            yield {"role": "assistant", "content": content}, event
            thought = None
            continue
        if thought is not None and thought.text.strip():
            yield {"role": "assistant", "content": thought.text}, thought
        thought = event if event.kind == "assistant" else None
        if event.kind in ("user", "compaction", "branch_summary"):
            yield {"role": "user", "content": event.text}, event
        elif event.kind in ("tool_result", "bash"):
            yield {"role": "user", "content": _render_result(event)}, event


def _render_result(event: Event) -> str:
    code = "" if event.exit_code in (None, 0) else f" (exit code {event.exit_code})"
    ran = f"$ {event.arguments}\n" if event.kind == "bash" else ""
    return f"Observation{code}:\n{ran}{shorten(event.text, OBSERVATION)}"


def _render_call(event: Event) -> str:
    """Return a shell command as a bash block, any other call as JSON."""
    arguments = decode_json(event.arguments)
    command = arguments.get("command") if isinstance(arguments, dict) else None
    if isinstance(command, list):
        command = " ".join(map(str, command))
    if isinstance(command, str) and command.strip() and "```" not in command:
        return f"```bash\n{command.strip()}\n```"
    return f"```json\n{event.tool_name} {shorten(event.arguments, OBSERVATION)}\n```"


KEY = "instance_id"
# Names that such datasets use for a column; the first one present counts.
NAMES = {
    "problem_statement": ("problem_statement", "issue", "issue_text", "issue_body"),
    "patch": ("patch", "diff", "gold_patch"),
    "base_commit": ("base_commit", "commit", "base_sha"),
    "description": ("description", "pr_description", "pr_body", "body", "hints_text"),
}
TITLES = ("title", "pr_title")
CHANGE_COLUMNS = (NAMES["problem_statement"], NAMES["patch"], NAMES["description"])
_TARGETS = re.compile(r"^diff --git a/.{1,500}? b/(.{1,500})$", re.MULTILINE)


class PullRequests:
    """The records of a dataset; raises SourceError when it has no pull requests."""

    def __init__(self, source: str) -> None:
        self.files: ParquetFiles = find_parquet_files(source)
        self._scans = [
            pl.scan_parquet(self.files.local(index)) for index in range(len(self.files.names))
        ]
        for name, scan in zip(self.files.names, self._scans, strict=True):
            try:
                columns = scan.collect_schema()
            except pl.exceptions.PolarsError as error:
                raise SourceError(
                    f"`{name}` cannot be read ({str(error).splitlines()[0]}); download it again "
                    "or leave it out."
                ) from error
            if columns.get(KEY) != pl.String:
                raise SourceError(
                    f"`{name}` has no text column `{KEY}`; give records of pull requests."
                )
            if not set(columns) & {*TITLES, *(n for names in CHANGE_COLUMNS for n in names)}:
                raise SourceError(
                    f"`{name}` has no column that describes a change, such as "
                    "`problem_statement` or `patch`; give records of pull requests."
                )

    def ids(self) -> frozenset[str]:
        """Return all instance ids."""
        columns = (scan.select(KEY).collect(engine="streaming") for scan in self._scans)
        return frozenset(value for column in columns for value in column[KEY] if value)

    def records(self, wanted: Collection[str]) -> list[Json]:
        """Return the records of these ids, sorted; of two with the same id the first is kept."""
        keys = pl.LazyFrame({KEY: sorted(wanted)}, schema={KEY: pl.String})
        found: dict[str, Json] = {}
        for scan in self._scans:
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
        "files": list_patch_files(texts["patch"]),
        "pr_chars": sum(map(len, texts.values())),
    }


def list_patch_files(patch: str) -> list[str]:
    """Return the files a patch touches, each once, in its order."""
    return list(dict.fromkeys(_TARGETS.findall(patch)))


def _first_text(row: Json, names: Iterable[str]) -> str:
    for name in names:
        value = row.get(name)
        if value is not None and value != "":
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            return replace_surrogates(text).strip()
    return ""


SHARD_ROWS = 200
TURNS, RECORDS, REPORT = "turns", "prs", "turns.json"


@dataclass(frozen=True)
class Options:
    """How many turns to draw, the seed, and instance ids to leave out."""

    turns: int = 2000
    seed: int = 42
    exclude: frozenset[str] = frozenset()


def read_excluded_ids(path: Path) -> frozenset[str]:
    """Read instance ids from a text file, one per line; `#` starts a comment.

    Raises SourceError.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(
            f"`{path}` cannot be read ({error}); give a text file with one instance id per line."
        ) from error
    return frozenset(filter(None, (line.partition("#")[0].strip() for line in lines)))


def draw_turns(
    source: str, records: str | None, options: Options, out: Path, request: str = ""
) -> Json:
    """Write the turns and what is hidden from them under `out`; return the report.

    The report stores `request`, by which a later run knows these turns. Raises SourceError, and
    EmptySelection when no turn is left.
    """
    drops: Counter[str] = Counter()
    if is_trajectories(source):
        if records is None:
            raise SourceError(
                "Trajectories need the records of their pull requests, which are hidden from the "
                "king; give --records, such as nebius/SWE-rebench-V2-PRs."
            )
        files = find_parquet_files(source)
        pull_requests = PullRequests(records)
        turns = list(_select_from_trajectories(files, pull_requests.ids(), options, drops))
        hidden = pull_requests.records({turn["instance_id"] for turn in turns})
        name, revision = files.source, files.revision
    else:
        opened = open_source(source)
        turns, hidden = _select_from_sessions(source, options, drops)
        name, revision = opened.name, opened.revision
    if not turns:
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in sorted(drops.items())) or "no rows"
        raise EmptySelection(f"`{source}` has no usable turn ({reasons}); give another source.")
    report: Json = {
        "source": name,
        "revision": revision,
        "request": request,
        "options": {**asdict(options), "exclude": sorted(options.exclude)},
        "turns": len(turns),
        "instances": len({turn["instance_id"] for turn in turns}),
        "dropped": dict(sorted(drops.items())),
    }
    _write_turns(turns, hidden, report, out)
    return report


def is_trajectories(source: str) -> bool:
    """Whether a source is parquet with the columns of trajectories, not recorded sessions."""
    path = Path(source)
    if path.is_file() and path.suffix != ".parquet":
        return False
    if path.is_dir() and not any(path.rglob("*.parquet")):
        return False
    files = find_parquet_files(source)
    with files.open(0) as parquet:
        return set(NEEDED) <= set(parquet.schema_arrow.names)


def _select_from_trajectories(
    files: ParquetFiles, known: Collection[str], options: Options, drops: Counter[str]
) -> Iterator[Json]:
    runs = Runs(files, known, options.exclude, drops, options.seed)
    seen: set[bytes] = set()
    kept = start = 0
    while kept < options.turns and (draws := runs.draw(start, options.turns - kept)):
        start += len(draws)
        for drawn in draws:
            if drawn.turn is None:
                drops[drawn.drop_reason or ""] += 1
                continue
            # Many runs of one task begin alike: ask the same question once.
            question = hashlib.sha256(json.dumps(drawn.turn["messages"]).encode()).digest()
            if question in seen:
                drops["duplicate"] += 1
                continue
            seen.add(question)
            yield drawn.turn
            kept += 1


def _select_from_sessions(
    source: str, options: Options, drops: Counter[str]
) -> tuple[list[Json], list[Json]]:
    """Take one turn of each session, then a second, until there are enough; a hash decides."""
    opened = open_source(source)
    sessions = sum(shard.sessions for shard in opened.shards)
    # Many sessions have none, so the others may give more than their share.
    most = min(4 * -(-options.turns // max(sessions, 1)) + 4, options.turns)
    best: list[tuple[int, int, int, Json, Json]] = []
    number = 0
    for shard in opened.shards:
        for table in read_sessions(shard):
            for session in table.to_pylist():
                for rank, drawn in enumerate(draw_from_session(session, options.seed, most)):
                    number += 1
                    reason = drawn.drop_reason
                    if drawn.turn and drawn.turn["instance_id"] in options.exclude:
                        reason = "excluded"
                    if reason or drawn.turn is None or drawn.record is None:
                        drops[reason or ""] += 1
                        continue
                    # First turns of sessions come before second ones; the worst entry is on top.
                    place = (-rank, -_hash_turn(options.seed, drawn.turn), -number)
                    entry = (*place, drawn.turn, drawn.record)
                    if len(best) < options.turns:
                        heapq.heappush(best, entry)
                    else:
                        heapq.heappushpop(best, entry)
                        drops["not_drawn"] += 1
    best.sort(key=lambda entry: entry[:3], reverse=True)
    records: dict[str, Json] = {}
    turns = []
    for *_, turn, record in best:
        # Of two sessions with one id, what is hidden of the first is not true of the second.
        if records.setdefault(turn["instance_id"], record) == record:
            turns.append(turn)
        else:
            drops["same_id_as_another_session"] += 1
    return turns, [records[key] for key in sorted(records)]


def _hash_turn(seed: int, turn: Json) -> int:
    key = json.dumps([seed, turn["instance_id"], turn["turn"], turn["assistant"]])
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8])


def _write_turns(turns: Sequence[Json], records: list[Json], report: Json, out: Path) -> None:
    (out / REPORT).unlink(missing_ok=True)
    for folder in (TURNS, RECORDS):
        (out / folder).mkdir(parents=True, exist_ok=True)
        for stale in (out / folder).glob("*.parquet"):
            stale.unlink()
    for number, start in enumerate(range(0, len(turns), SHARD_ROWS)):
        stem = f"{TURNS}-{number:05}"
        rows = [
            {"turn_id": f"{stem}_{order}", **turn}
            for order, turn in enumerate(turns[start : start + SHARD_ROWS], start=1)
        ]
        write_rows(out / TURNS / f"{stem}.parquet", rows, DUEL_TURN.arrow_schema)
    write_rows(out / RECORDS / f"{RECORDS}-00000.parquet", records, PULL_REQUEST.arrow_schema)
    # Written last: it marks the folder as complete.
    write_atomically(out / REPORT, (json.dumps(report, indent=2) + "\n").encode())
