"""Run the stages of a duel that ask models: turns, answers, gate, panel; king against king.

DIR/turns, prs, turns.json    what players are asked, and what is hidden from the king
DIR/rules.json                rules, looks, players and judges, before the first judge is called
DIR/answers, rounds.json      answers of king and challenger; how often malformed ones were drawn
DIR/gate, looks.json          single judgments, and the verdict of each look
DIR/judgments                 the whole panel's judgments, by which turns get their buckets
DIR/aa-answers, aa-judgments  the same for the king against itself
DIR/calls.sqlite              every finished call; no stage repeats one

Against the recorded agent, `rules`, `looks`, `gate` and `judgments` end in `-reference`.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features

from pimono_sdpo import __version__
from pimono_sdpo.duel.gate import (
    LOOKS,
    OUTLYING,
    WITHOUT,
    Calls,
    choose_unit,
    count_effective,
    decide,
)
from pimono_sdpo.errors import InferenceError, OutputError, SourceError
from pimono_sdpo.llm.chat import open_chat
from pimono_sdpo.llm.money import cost, format_dollars
from pimono_sdpo.llm.rows import answers_of
from pimono_sdpo.llm.settings import Gate, Settings
from pimono_sdpo.runs import parquet
from pimono_sdpo.runs.engine import DONE, Output, Part, Piece, run_parts, sha256
from pimono_sdpo.runs.folders import lock
from pimono_sdpo.runs.parquet import write_atomically
from pimono_sdpo.schema import ANSWER, JUDGMENT, Opponent
from pimono_sdpo.stage import source_hash
from processors.duel.answers import UNKNOWN, AnswerStage
from processors.duel.judge import SECOND_EVERY, JudgeStage
from processors.duel.scores import limit_score, score_judgment
from processors.duel.turns import KEY, RECORDS, REPORT, TURNS, Options, draw_turns

Json = dict[str, Any]
JOURNAL, LOCK, ROUNDS = "calls.sqlite", ".lock", "rounds.json"
ANSWERS, GATE, JUDGMENTS = "answers", "gate", "judgments"
# Folders of the duel of the king against itself.
EQUAL_ANSWERS, EQUAL_JUDGMENTS = "aa-answers", "aa-judgments"
GATE_COLUMNS = ("turn_id", "instance_id", "drop_reason", "leaked_terms")


@dataclass(frozen=True)
class Outcome:
    """What a stage did.

    `rows` were written, `errors` of them with an error, such as `error`; `used` says how many
    tokens, `stopped` why it ended early.
    """

    rows: int
    errors: int
    error: str | None
    used: str
    stopped: str | None


@dataclass(frozen=True)
class Plan:
    """What was registered before the first judge was called.

    `looks` are numbers of turns; `tasks` and `repos` are those of the planned turns.
    """

    rules: Gate
    looks: tuple[int, ...]
    tasks: tuple[str, ...]
    repos: tuple[str, ...]
    judges: tuple[str, ...]
    sha256: str


def name_of(stage: str, opponent: Opponent) -> str:
    """Return the name of a stage's folder or file."""
    return stage if opponent == "king" else f"{stage}-reference"


def run_turns(source: str, records: str | None, options: Options, out: Path) -> Json:
    """Draw turns into `out`, unless the same ones are there already, and return the report.

    Raises SourceError, EmptySelection, and OutputError when `out` has a duel about other turns.
    """
    key = json.dumps([source, records, asdict(options)], default=sorted)
    request = hashlib.sha256(key.encode()).hexdigest()
    with lock(out / LOCK, out):
        if (out / REPORT).is_file():
            before: Json = json.loads((out / REPORT).read_text())
            if before["request"] == request:
                return before
            if any(out.glob("answers/*.parquet")) or any(out.glob("rules*.json")):
                raise OutputError(f"`{out}` has a duel about turns drawn with other options; give another folder.")
        return draw_turns(source, records, options, out, request)


def register_rules(out: Path, settings: Settings) -> Plan:
    """Return the plan of the gate; the first call stores it.

    Later calls return the stored plan, whatever their rules: those are for exploring alone. Raises
    OutputError when players, judges, seed, context or turns are not those that were registered, and
    InferenceError when a judge is named twice.
    """
    duel, judge = settings.duel, settings.judge
    repeated = [name for name in judge.models if judge.models.count(name) > 1]
    if repeated:
        raise InferenceError(f"`{repeated[0]}` is named twice as a judge; name each judge once.")
    shards = _find_shards(out / TURNS, "turns")
    ids, repos = _find_first_turns(shards)
    by: Json = {
        "king": duel.model,
        "challenger": duel.find_challenger(),
        "temperature": duel.temperature,
        "max_tokens": [duel.max_tokens, judge.max_tokens],
        "opponent": duel.opponent,
        "judges": list(judge.models),
        "context": judge.context,
        "seed": duel.seed,
        "turns": hashlib.sha256(b"".join(path.read_bytes() for path in shards)).hexdigest(),
    }
    path = out / f"{name_of('rules', duel.opponent)}.json"
    if not path.is_file():
        if any((out / name_of(GATE, duel.opponent)).glob("*.parquet")):
            raise OutputError(f"`{path}` is gone, but there are judgments; restore it.")
        rules = settings.gate
        ids, repos = ids[: rules.max_turns], repos[: rules.max_turns]
        clusters = repos if choose_unit(repos, rules.cluster) == "repo" else ids
        looks = sorted({max(1, round(share * len(ids))) for share in LOOKS})
        # Without a verdict there is nothing to stop early for.
        if len(judge.models) < 2 or count_effective(clusters) < rules.min_clusters:
            looks = [len(ids)]
        found = {
            "pimono_sdpo": __version__,
            "rules": rules.model_dump(),
            "looks": looks,
            "second_judge": f"one turn in {SECOND_EVERY}",
            "without_any_judge": f"{WITHOUT:g} standard errors above parity; the lower bound above "
            f"parity if the judge is {OUTLYING:g} standard errors above the others",
            **by,
        }
        _write_json(out, path.name, found)
    try:
        stored = json.loads(path.read_text())
        other = next((key for key, value in by.items() if stored[key] != value), None)
        rules, looks = Gate(**stored["rules"]), stored["looks"]
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"`{path}` cannot be read ({error!r}); restore it.") from error
    if other is not None:
        raise OutputError(
            f"`{path}` registered another `{other}` ({_shorten(stored[other])}, now "
            f"{_shorten(by[other])}) before the first judge was called; give another folder."
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if _read_looks(out, duel.opponent).get("registered", digest) != digest:
        raise OutputError(f"`{path}` was changed after the first look; restore it.")
    planned = tuple(ids[: looks[-1]]), tuple(repos[: looks[-1]])
    return Plan(rules, tuple(looks), *planned, tuple(stored["judges"]), digest)


def _shorten(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)[:40]


def _find_first_turns(shards: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Return tasks and repositories of the turns before the first repeated task."""
    ids: dict[str, str] = {}
    for path in shards:
        for row in pq.read_table(path, columns=["instance_id", "repo"]).to_pylist():
            if row["instance_id"] in ids:
                return list(ids), list(ids.values())
            ids[row["instance_id"]] = row["repo"] or ""
    return list(ids), list(ids.values())


def _read_looks(out: Path, opponent: Opponent) -> Json:
    path = out / f"{name_of('looks', opponent)}.json"
    found: Json = json.loads(path.read_text()) if path.is_file() else {}
    return found


def read_verdicts(out: Path, opponent: Opponent) -> list[Json]:
    """Return the verdicts of the looks that were taken, as `gate.decide` returns them."""
    found: list[Json] = _read_looks(out, opponent).get("verdicts", [])
    return found


def run_duel(
    out: Path,
    settings: Settings,
    max_cost: float | None = None,
    export: bool = False,
    limit: int | None = None,
    equals: int | None = None,
    complete: bool = False,
) -> Iterator[tuple[str, Outcome | Json]]:
    """Run the gate, and the whole panel if the challenger is accepted or with `export`.

    Yields what each stage did and the verdict of each look, with its name. The panel reads the
    first `limit` turns, and as many as `equals` of the king against itself; with `complete` it goes
    on where a bucket is decided. A stage that stopped is the last.
    """
    verdict: Json = {}
    has_asked = False
    for name, done in run_gate(out, settings, max_cost):
        yield name, done
        if isinstance(done, Outcome):
            has_asked = True
            if done.stopped is not None:
                return
        else:
            verdict = done
    if export or verdict["conclusion"] == "accepted":
        has_asked = True
        panel = partial(run_judges, complete=complete)
        for itself, most in ((False, limit), *([(True, equals)] if equals is not None else [])):
            for name, ask in (("answers", run_answers), ("panel", panel)):
                outcome = ask(out, settings, max_cost, most, equals=itself)
                yield name + " of the king against itself" * itself, outcome
                if outcome.stopped is not None:
                    return
    if has_asked:
        end_round(out)


def run_gate(out: Path, settings: Settings, max_cost: float | None) -> Iterator[tuple[str, Outcome | Json]]:
    """Ask players and judges look by look until there is a conclusion.

    A verdict is stored when it is made and not made again. A stage too many of whose calls failed
    for a verdict counts as stopped.
    """
    opponent = settings.duel.opponent
    plan = register_rules(out, settings)
    verdicts = read_verdicts(out, opponent)
    if verdicts and verdicts[-1]["conclusion"] != "open":
        yield f"look {len(verdicts)}", verdicts[-1]
        return
    for number, turns in enumerate(plan.looks[len(verdicts) :], start=len(verdicts) + 1):
        for name in (ANSWERS, GATE):
            if name == ANSWERS:
                outcome = run_answers(out, settings, max_cost, turns)
            else:
                outcome = run_judges(out, settings, max_cost, turns, single=True)
            if outcome.errors and outcome.stopped is None:
                folder = name if name == ANSWERS else name_of(name, opponent)
                columns = ("error", "drop_reason") if name == ANSWERS else ("error",)
                # An answer of the wrong form is one that was given.
                failed = sum(
                    row["error"] is not None and row.get("drop_reason", "error") == "error"
                    for row in read_rows(out, folder, columns)
                )
                if failed > (1 - plan.rules.min_parsed) * turns:
                    why = f"{failed} of the calls for look {number} failed: {outcome.error}"
                    outcome = replace(outcome, stopped=why)
            yield name, outcome
            if outcome.stopped is not None:
                return
        verdict = take_look(out, plan, opponent, verdicts)
        yield f"look {number}", verdict
        if verdict["conclusion"] != "open":
            return


def take_look(out: Path, plan: Plan, opponent: Opponent, verdicts: list[Json]) -> Json:
    """Decide by the registered rules after the looks of `verdicts`, and store the verdict there."""
    answers = list(read_rows(out, ANSWERS, GATE_COLUMNS))
    judgments = list(read_rows(out, name_of(GATE, opponent)))
    verdicts.append(decide_look(plan, plan.rules, len(verdicts), answers, judgments))
    found = {"registered": plan.sha256, "verdicts": verdicts}
    _write_json(out, f"{name_of('looks', opponent)}.json", found)
    return verdicts[-1]


def decide_look(
    plan: Plan,
    rules: Gate,
    look: int,
    answers: Iterable[Json],
    judgments: Iterable[Json],
    clean: bool = False,
) -> Json:
    """Return the verdict on the judgments of the turns before a look.

    Answers with terms that only the pull request has count as ties at best; with `clean`, they are
    left out.
    """
    unit = choose_unit(plan.repos, rules.cluster)
    planned = (plan.repos if unit == "repo" else plan.tasks)[: plan.looks[look]]
    turns: dict[str, tuple[int, float]] = {}
    clusters, unanswered = [], 0
    for cluster, row in zip(planned, answers, strict=False):
        if clean and row["leaked_terms"]:
            continue
        if row["drop_reason"] is not None:
            unanswered += row["drop_reason"] != UNKNOWN
            continue
        turns[row["turn_id"]] = len(turns), limit_score(row)
        clusters.append(cluster)
    found = []
    for row in judgments:
        if row["parsed"] and row["turn_id"] in turns:
            at, most = turns[row["turn_id"]]
            score = min(score_judgment(row), most)
            found.append((at, plan.judges.index(row["judge"]), row["order"], score))
    table = np.array(found, float).reshape(-1, 4)
    turn, judge, order = table[:, :3].astype(int).T
    calls = Calls(turn, judge, order, table[:, 3])
    return decide(calls, plan.judges, clusters, unit, plan.looks, look, rules, unanswered)


def run_answers(
    out: Path,
    settings: Settings,
    max_cost: float | None = None,
    limit: int | None = None,
    equals: bool = False,
) -> Outcome:
    """Ask king and challenger, or with `equals` the king twice; `limit` is a number of turns.

    Raises SourceError or InferenceError.
    """
    if not (out / REPORT).is_file():
        raise SourceError(f"`{out}` has no turns yet; run the stage `turns` first.")
    with lock(out / LOCK, out):
        inputs = _find_shards(out / TURNS, "turns")
        stage = _open_players(out, settings, max_cost, equals)
        records = [sha256(path) for path in _find_shards(out / RECORDS, "turns")]
        duel = settings.duel
        options = [duel.model, stage.challenger, duel.temperature, duel.seed, duel.max_tokens]
        folder = out / (EQUAL_ANSWERS if equals else ANSWERS)
        return _ask(inputs, folder, stage, ANSWER, [*options, records], limit)


def run_judges(
    out: Path,
    settings: Settings,
    max_cost: float | None = None,
    limit: int | None = None,
    *,
    single: bool = False,
    equals: bool = False,
    complete: bool = False,
) -> Outcome:
    """Ask the whole panel about the first answers, or with `single` the judges of the gate.

    With `complete`, the panel goes on where a bucket is decided. Raises SourceError or
    InferenceError.
    """
    if not out.is_dir():
        raise SourceError(f"`{out}` does not exist; run the stages `turns` and `answers` first.")
    with lock(out / LOCK, out):
        inputs = _find_shards(out / (EQUAL_ANSWERS if equals else ANSWERS), "answers")
        opponent = "king" if equals else settings.duel.opponent
        stage = replace(
            _open_judges(out, settings, max_cost),
            opponent=opponent,
            single=single,
            complete=complete,
        )
        panel = stage.panel
        options = [panel.models, stage.opponent, panel.context, panel.max_tokens, stage.seed]
        name = name_of(GATE if single else JUDGMENTS, opponent)
        folder = out / (EQUAL_JUDGMENTS if equals else name)
        return _ask(inputs, folder, stage, JUDGMENT, [*options, single, complete], limit)


def _open_players(out: Path, settings: Settings, max_cost: float | None, equals: bool = False) -> AnswerStage:
    duel = settings.duel
    models = (duel.model, duel.find_challenger())
    files = _find_shards(out / RECORDS, "turns")
    records = {row[KEY]: row for path in files for row in pq.read_table(path).to_pylist()}
    return AnswerStage(
        open_chat(duel, settings, out / JOURNAL, models, max_cost),
        duel,
        records,
        equals,
        _read_round(out),
    )


def _open_judges(out: Path, settings: Settings, max_cost: float | None) -> JudgeStage:
    judge, duel = settings.judge, settings.duel
    return JudgeStage(
        open_chat(judge, settings, out / JOURNAL, judge.models, max_cost),
        judge,
        duel.opponent,
        duel.seed,
    )


def _ask(
    inputs: Sequence[Path],
    out: Path,
    stage: AnswerStage | JudgeStage,
    features: Features,
    options: list[object],
    limit: int | None,
) -> Outcome:
    """Write `out/NAME-NNNNN.parquet` for each input shard, with what a stage makes of its rows.

    With `limit`, only the first rows of all are asked about; a finished shard with more rows stays
    as it is. One of which some rows have an error is written, too, and asked again by the next run:
    the journal answers what was answered before, so that only the rest is paid for.
    """
    chat, parts, left = stage.chat, [], limit
    made_by = {"made_by": json.dumps([source_hash(stage.run), options])}
    for path in inputs:
        rows = pq.read_metadata(path).num_rows
        rows = rows if left is None else min(rows, left)
        left = None if left is None else left - rows
        number, digest = int(path.stem.rpartition("-")[2]), sha256(path)
        made = _read_origin(out, number)
        if made and made["options"] == made_by and made["input"]["sha256"] == digest:
            rows = max(rows, made["input"]["rows"])
        if rows:
            run = partial(_ask_shard, path, rows, stage, features, out.name)
            given = {"sha256": digest, "rows": rows}
            parts.append(Part(number, path.name, rows, given, made_by, run))
    out.mkdir(parents=True, exist_ok=True)
    outputs = {"rows": Output(f"{out.name}-{{:05}}.parquet", features.arrow_schema)}
    records = run_parts(parts, out, outputs, is_stopped=lambda: chat.stopped is not None).values()
    return Outcome(
        sum(record["rows"]["rows"] for record in records),
        sum(record["counts"]["errors"] for record in records),
        next((record["error"] for record in records if record["error"]), None),
        chat.tally.summarize(chat.prices),
        chat.stopped,
    )


def _read_origin(folder: Path, number: int) -> Json | None:
    """Return what a finished shard was made of, None without a record of it."""
    path = folder / DONE / f"{number:05}.json"
    return json.loads(path.read_text())["made_from"] if path.is_file() else None


def _ask_shard(
    path: Path, rows: int, stage: AnswerStage | JudgeStage, features: Features, desc: str
) -> Iterator[Piece]:
    given = Dataset(pq.read_table(path).slice(0, rows))
    answers = answers_of(given, stage.run, features, stage.chat.limits.concurrency, desc)
    errors = [row["error"] for row in answers if row["error"] is not None]
    table = pa.Table.from_pylist(answers, schema=features.arrow_schema)
    yield Piece({"rows": table}, rows, {"errors": len(errors)}, errors[0] if errors else None)


def is_current(folder: Path, name: str, given: str) -> bool:
    """Whether the shards of a stage were made of those that the stage before it has now."""
    for path in sorted((folder / name).glob("*.parquet")):
        made = _read_origin(folder / name, int(path.stem.rpartition("-")[2]))
        before = folder / given / path.name.replace(name, given)
        if made and not (before.is_file() and made["input"]["sha256"] == sha256(before)):
            return False
    return True


def _read_round(out: Path) -> int:
    """Return how many runs have drawn answers, this one included."""
    path = out / ROUNDS
    return int(json.loads(path.read_text())) if path.is_file() else 1


def end_round(out: Path) -> None:
    """Let the next run draw malformed answers again; a run that is resumed draws none anew.

    So a run that was stopped or killed draws what it would have drawn undisturbed.
    """
    names = (ANSWERS, EQUAL_ANSWERS)
    rows = (row for name in names for row in read_rows(out, name, ("error", "drop_reason")))
    if any(row["error"] is not None and row["drop_reason"] != "error" for row in rows):
        _write_json(out, ROUNDS, _read_round(out) + 1)


def estimate_duel(out: Path, settings: Settings, turns: int, max_cost: float | None = None) -> str:
    """Ask players and panel about so many turns, and return what each stage will cost about.

    Rules are registered, as before every call of a judge; else only the journal is written. Raises
    InferenceError when nothing can be estimated.
    """
    gate = len(register_rules(out, settings).tasks)
    inputs = _find_shards(out / TURNS, "turns")
    total = sum(pq.read_metadata(path).num_rows for path in inputs)
    rows = first = Dataset(pq.read_table(inputs[0]).slice(0, turns))
    players = _open_players(out, settings, max_cost)
    judges = _open_judges(out, settings, max_cost)
    judgments = 0
    for stage, schema in ((players, ANSWER), (judges, JUDGMENT)):
        found = answers_of(rows, stage.run, schema, stage.chat.limits.concurrency, "estimate")
        errors = [row["error"] for row in found if row["error"] is not None]
        # Nothing can be estimated when every call failed.
        if stage.chat.stopped or (errors and len(errors) == len(found)):
            problem = stage.chat.stopped or errors[0]
            raise InferenceError(f"{problem.rstrip('.')}; nothing can be estimated.")
        judgments = len(found)
        rows = Dataset.from_list(found, features=schema)
    done = len(first)
    # As many turns of the panel as have the calls of the gate.
    single = round(gate * (1 + 1 / SECOND_EVERY) * done / max(judgments, 1))
    lines, costs = [], []
    for title, stage, count in (
        (f"answers for the gate, at most {gate:,} turns", players, gate),
        ("judges of the gate, counted as turns of the panel", judges, single),
        (f"with --export or on acceptance, answers to all {total:,} turns", players, total - gate),
        ("and the whole panel", judges, total),
    ):
        chat = stage.chat
        tally = chat.tally.estimate(chat.prices, done, count, chat.limits.concurrency)
        lines.append(f"{title}:\n{tally}")
        used = (cost(chat.prices, model, one) for model, one in chat.tally.models.items())
        costs += [None if usd is None else usd * count / done for usd in used]
    known = [usd for usd in costs if usd is not None]
    whole = format_dollars(sum(known)) if len(known) == len(costs) else "not every price is set"
    return "\n".join([*lines, f"all stages: {whole}"])


def read_rows(folder: Path, name: str, columns: Sequence[str] | None = None) -> Iterator[Json]:
    """Return the rows of a stage in the order of its shards; none when it has not run."""
    return parquet.read_rows(sorted((folder / name).glob("*.parquet")), columns)


def _find_shards(folder: Path, stage: str) -> list[Path]:
    found = sorted(folder.glob("*.parquet"))
    if not found:
        raise SourceError(f"`{folder}` is empty; run the stage `{stage}` first.")
    return found


def _write_json(out: Path, name: str, found: object) -> None:
    with lock(out / LOCK, out):
        write_atomically(out / name, (json.dumps(found, indent=2) + "\n").encode())
