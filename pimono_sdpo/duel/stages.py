"""Run the stages of a duel that ask models: turns, answers, gate, panel; king against king.

DIR/turns, prs, turns.json    what players are asked, and what is hidden from the king
DIR/answers                   answers of king and challenger
DIR/rules.json                rules, looks, players and judges, before the first judge is called
DIR/gate                      single judgments, by which the challenger is accepted or not
DIR/judgments                 the whole panel's judgments, by which turns get their buckets
DIR/aa-answers, aa-judgments  the same for the king against itself
DIR/calls.sqlite              every finished call; no stage repeats one

Against the recorded agent, `rules`, `gate` and `judgments` end in `-reference`.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from datasets import Dataset, Features

from pimono_sdpo import __version__
from pimono_sdpo.duel.gate import (
    LOOKS,
    Calls,
    Cluster,
    Rules,
    Verdict,
    choose_unit,
    count_effective,
    decide,
)
from pimono_sdpo.errors import InferenceError, OutputError, SourceError
from pimono_sdpo.llm.chat import Chat, open_chat
from pimono_sdpo.llm.money import cost
from pimono_sdpo.llm.rows import Asked, answers_of, ask_shards
from pimono_sdpo.llm.settings import Settings
from pimono_sdpo.runs.folders import lock
from pimono_sdpo.runs.parquet import read_tables, write_atomically
from pimono_sdpo.schema import ANSWER, JUDGMENT, PARITY, Opponent
from pimono_sdpo.stage import source_hash
from processors.duel.answers import AnswerStage, Players
from processors.duel.judge import SECOND_EVERY, JudgeStage, Panel, score_judgment
from processors.duel.prompts import fingerprint
from processors.duel.turns import RECORDS, REPORT, TURNS, Options, draw_turns, read_excluded_ids

Json = dict[str, Any]
JOURNAL, LOCK = "calls.sqlite", ".lock"
ANSWERS, GATE, JUDGMENTS, RULES = "answers", "gate", "judgments", "rules"
# Folders of the duel of the king against itself.
EQUAL_ANSWERS, EQUAL_JUDGMENTS = "aa-answers", "aa-judgments"
BATCH = 256
# Nobody was asked about a turn without a known pull request.
UNKNOWN = "no_pull_request"


@dataclass(frozen=True)
class Outcome:
    """What a stage did: its rows, the tokens it used, and why it stopped."""

    asked: Asked
    used: str
    stopped: str | None


@dataclass(frozen=True)
class Plan:
    """What was registered before the first judge was called.

    `looks` are numbers of turns; `clusters` the name of the unit of each planned turn.
    """

    rules: Rules
    looks: tuple[int, ...]
    unit: Cluster
    clusters: tuple[str, ...]
    judges: tuple[str, ...]
    sha256: str


def name_of(stage: str, opponent: Opponent) -> str:
    """Return the name of a stage's folder or file."""
    return stage if opponent == "king" else f"{stage}-reference"


def run_turns(source: str, records: str | None, options: Options, out: Path) -> Json:
    """Draw turns into `out`, unless the same ones are there already, and return the report.

    Raises SourceError, EmptySelection, and OutputError when `out` has answers to other turns.
    """
    key = json.dumps([source, records, asdict(options)], default=sorted)
    request = hashlib.sha256(key.encode()).hexdigest()
    with lock(out / LOCK, out):
        before = _read_report(out)
        if before is not None and before["request"] == request:
            return before
        if before is not None and any((out / ANSWERS).glob("*.parquet")):
            raise OutputError(
                f"`{out}` holds answers to turns drawn with other options; give another folder."
            )
        return draw_turns(source, records, options, out, request)


def run_turns_by_settings(
    source: str, records: str | None, exclude: Path | None, settings: Settings, out: Path
) -> Json:
    """Run `run_turns` as the settings say, without the instance ids listed in a text file."""
    left_out = read_excluded_ids(exclude) if exclude else frozenset()
    options = Options(settings.duel.turns, settings.duel.seed, exclude=left_out)
    return run_turns(source, records, options, out)


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
        "challenger": duel.challenger or duel.model,
        "temperature": duel.temperature,
        "max_tokens": [duel.max_tokens, judge.max_tokens],
        "opponent": duel.opponent,
        "judges": list(judge.models),
        "context": judge.context,
        "seed": duel.seed,
        "turns": hashlib.sha256(b"".join(path.read_bytes() for path in shards)).hexdigest(),
    }
    path = out / f"{name_of(RULES, duel.opponent)}.json"
    if not path.is_file():
        rules = Rules(**settings.gate.model_dump())
        ids, repos = ids[: rules.max_turns], repos[: rules.max_turns]
        unit = choose_unit(repos, rules.cluster)
        clusters = repos if unit == "repo" else ids
        looks = [round(share * len(ids)) for share in LOOKS]
        # Without a verdict there is nothing to stop early for.
        if len(judge.models) < 2 or count_effective(clusters) < rules.min_clusters:
            looks = [len(ids)]
        found = {
            "pimono_sdpo": __version__,
            "rules": asdict(rules),
            "looks": sorted({look for look in looks if look}),
            "unit": unit,
            "second_judge": f"one turn in {SECOND_EVERY}",
            **by,
        }
        write_atomically(path, (json.dumps(found, indent=2) + "\n").encode())
    stored = json.loads(path.read_text())
    other = next((key for key, value in by.items() if stored[key] != value), None)
    if other is not None:
        raise OutputError(
            f"`{path}` registered another `{other}` ({_shorten(stored[other])}, now "
            f"{_shorten(by[other])}) before the first judge was called; give another folder."
        )
    most = stored["looks"][-1]
    clusters = repos if stored["unit"] == "repo" else ids
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Plan(
        Rules(**stored["rules"]),
        tuple(stored["looks"]),
        stored["unit"],
        tuple(clusters[:most]),
        tuple(stored["judges"]),
        digest,
    )


def _shorten(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)[:40]


def _find_first_turns(shards: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Return tasks and repositories of the turns before the first repeated task."""
    ids: dict[str, str] = {}
    for path in shards:
        for row in pq.read_table(path, columns=["instance_id", "repo"]).to_pylist():
            if row["instance_id"] in ids:
                return list(ids), list(ids.values())
            ids[row["instance_id"]] = row["repo"] or row["instance_id"]
    return list(ids), list(ids.values())


def run_gate(
    out: Path, settings: Settings, max_cost: float | None
) -> Iterator[tuple[str, Outcome | Verdict]]:
    """Ask players and judges look by look until there is a conclusion.

    Yields what each stage did and the verdict of each look, with its name. A stage that stopped is
    the last.
    """
    plan = register_rules(out, settings)
    for look, turns in enumerate(plan.looks):
        for name, run_stage in (("answers", run_answers), (GATE, run_single_judges)):
            outcome = run_stage(out, settings, max_cost, turns)
            yield name, outcome
            if outcome.stopped is not None:
                return
        verdict = decide_look(out, plan, plan.rules, look, settings.duel.opponent)
        yield f"look {look + 1}", verdict
        if verdict.conclusion != "open":
            return


def decide_look(
    out: Path, plan: Plan, rules: Rules, look: int, opponent: Opponent, clean: bool = False
) -> Verdict:
    """Return the verdict on the stored judgments of the turns before a look.

    Answers with terms that only the pull request has count as ties at best; with `clean`, they are
    left out.
    """
    turns: dict[str, int] = {}
    clusters, leaked, unanswered = [], [], 0
    columns = ("turn_id", "drop_reason", "leaked_terms")
    answers = read_rows(out, ANSWERS, columns)
    for cluster, row in zip(plan.clusters[: plan.looks[look]], answers, strict=False):
        if clean and row["leaked_terms"]:
            continue
        if row["drop_reason"] is not None:
            unanswered += row["drop_reason"] != UNKNOWN
            continue
        turns[row["turn_id"]] = len(turns)
        clusters.append(cluster)
        leaked.append(bool(row["leaked_terms"]))
    found = []
    for row in read_rows(out, name_of(GATE, opponent)):
        at = turns.get(row["turn_id"])
        if at is not None and row["parsed"]:
            score = score_judgment(row)
            score = min(score, PARITY) if leaked[at] else score
            found.append((at, plan.judges.index(row["judge"]), row["order"], score))
    table = np.array(found, float).reshape(-1, 4)
    whole = table[:, :3].astype(int)
    calls = Calls(whole[:, 0], whole[:, 1], whole[:, 2], table[:, 3])
    return decide(calls, plan.judges, clusters, plan.unit, plan.looks, look, rules, unanswered)


def decide_by_stored(out: Path, plan: Plan, rules: Rules, opponent: Opponent) -> Verdict | None:
    """Return the verdict of the first look with a conclusion, or of the last that was judged.

    None when not all turns of the first look have been judged.
    """
    judged = {row["turn_id"] for row in read_rows(out, name_of(GATE, opponent), ("turn_id",))}
    done = 0
    for row in read_rows(out, ANSWERS, ("turn_id", "drop_reason")):
        if row["drop_reason"] is None and row["turn_id"] not in judged:
            break
        done += 1
    verdict = None
    for look, turns in enumerate(plan.looks):
        if turns > done:
            break
        verdict = decide_look(out, plan, rules, look, opponent)
        if verdict.conclusion != "open":
            break
    return verdict


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
    if _read_report(out) is None:
        raise SourceError(f"`{out}` has no turns yet; run the stage `turns` first.")
    with lock(out / LOCK, out):
        inputs = _find_shards(out / TURNS, "turns")
        stage = _open_players(out, settings, max_cost, equals)
        files = _find_shards(out / RECORDS, "turns")
        made_by = _made_by(stage, asdict(stage.players), *files)
        name = EQUAL_ANSWERS if equals else ANSWERS
        return _ask(inputs, out / name, stage, ANSWER, made_by, limit)


def run_single_judges(
    out: Path, settings: Settings, max_cost: float | None = None, limit: int | None = None
) -> Outcome:
    """Ask one judge about each of the first answered turns, for the gate."""
    return _judge(out, settings, max_cost, limit, GATE, single=True)


def run_panel(
    out: Path,
    settings: Settings,
    max_cost: float | None = None,
    limit: int | None = None,
    equals: bool = False,
) -> Outcome:
    """Ask the whole panel about the answers; raises SourceError or InferenceError."""
    return _judge(out, settings, max_cost, limit, JUDGMENTS, equals=equals)


def _judge(
    out: Path,
    settings: Settings,
    max_cost: float | None,
    limit: int | None,
    name: str,
    *,
    single: bool = False,
    equals: bool = False,
) -> Outcome:
    if not out.is_dir():
        raise SourceError(f"`{out}` does not exist; run the stages `turns` and `answers` first.")
    with lock(out / LOCK, out):
        inputs = _find_shards(out / (EQUAL_ANSWERS if equals else ANSWERS), "answers")
        stage = _open_judges(out, settings, max_cost, single, equals)
        made_by = _made_by(stage, asdict(stage.panel))
        folder = EQUAL_JUDGMENTS if equals else name_of(name, settings.duel.opponent)
        return _ask(inputs, out / folder, stage, JUDGMENT, made_by, limit)


def _open_players(
    out: Path, settings: Settings, max_cost: float | None, equals: bool = False
) -> AnswerStage:
    duel = settings.duel
    players = Players(
        king=duel.model,
        challenger=duel.challenger or duel.model,
        temperature=duel.temperature,
        seed=duel.seed,
        max_tokens=duel.max_tokens,
    )
    models = (players.king, players.challenger)
    chat = open_chat(duel, settings, out / JOURNAL, models, max_cost)
    files = _find_shards(out / RECORDS, "turns")
    records = {row["instance_id"]: row for path in files for row in pq.read_table(path).to_pylist()}
    return AnswerStage(chat, players, records, equals)


def _open_judges(
    out: Path, settings: Settings, max_cost: float | None, single: bool, equals: bool = False
) -> JudgeStage:
    judge = settings.judge
    panel = Panel(
        judges=judge.models,
        opponent="king" if equals else settings.duel.opponent,
        context=judge.context,
        max_tokens=judge.max_tokens,
        seed=settings.duel.seed,
        single=single,
    )
    chat = open_chat(judge, settings, out / JOURNAL, panel.judges, max_cost)
    return JudgeStage(chat, panel)


def estimate_duel(out: Path, settings: Settings, turns: int) -> tuple[str, str | None]:
    """Ask players and panel about so many turns, and return what each stage will cost at most.

    Nothing but the journal is written. The second text says why there is no estimate.
    """
    inputs = _find_shards(out / TURNS, "turns")
    total = sum(pq.read_metadata(path).num_rows for path in inputs)
    gate = min(len(_find_first_turns(inputs)[0]), settings.gate.max_turns)
    first = Dataset(pq.read_table(inputs[0]).slice(0, turns))
    players = _open_players(out, settings, None)
    judges = [_open_judges(out, settings, None, single) for single in (True, False)]
    stages: tuple[AnswerStage | JudgeStage, ...] = (players, *judges)
    rows, schema = first, ANSWER
    for stage in stages:
        made = answers_of(rows, stage.run, schema, stage.chat.limits.concurrency, "estimate")
        errors = [row["error"] for row in made if row["error"] is not None]
        # Nothing can be estimated when every call failed.
        if stage.chat.stopped or (errors and len(errors) == len(made)):
            return "", stage.chat.stopped or errors[0]
        if stage is players:
            rows, schema = Dataset.from_list(made, features=ANSWER), JUDGMENT
    done = len(first)
    lines, whole = [], 0.0
    planned: tuple[tuple[str, AnswerStage | JudgeStage, int], ...] = (
        (f"answers for the gate, at most {gate:,} turns", players, gate),
        ("judges of the gate", judges[0], gate),
        (f"with --export or on acceptance, answers to all {total:,} turns", players, total - gate),
        ("and the whole panel", judges[1], total),
    )
    for title, stage, count in planned:
        chat = stage.chat
        tally = chat.tally.estimate(chat.prices, done, count, chat.limits.concurrency)
        lines.append(f"{title}:\n{tally}")
        for model, used in chat.tally.models.items():
            whole += (cost(chat.prices, model, used) or np.nan) * count / done
    lines.append(
        "all stages: " + (f"${whole:,.2f}" if whole == whole else "not every price is set")
    )
    return "\n".join(lines), None


def _ask(
    inputs: Sequence[Path],
    out: Path,
    stage: AnswerStage | JudgeStage,
    features: Features,
    made_by: str,
    limit: int | None,
) -> Outcome:
    chat: Chat = stage.chat
    asked = ask_shards(
        inputs,
        out,
        stage.run,
        features,
        made_by=made_by,
        in_flight=chat.limits.concurrency,
        is_stopped=lambda: chat.stopped is not None,
        limit=limit,
    )
    return Outcome(asked, chat.tally.summarize(chat.prices), chat.stopped)


def _made_by(stage: AnswerStage | JudgeStage, options: Json, *files: Path) -> str:
    """What a shard depends on besides its input: code, prompts, options, records."""
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    return json.dumps([source_hash(stage.run), fingerprint(), options, digests])


def read_rows(folder: Path, name: str, columns: Sequence[str] | None = None) -> Iterator[Json]:
    """Yield the rows of a stage in the order of its shards; none when it has not run."""
    for path in sorted((folder / name).glob("*.parquet")):
        for table in read_tables(path, BATCH, columns):
            yield from table.to_pylist()


def _find_shards(folder: Path, stage: str) -> list[Path]:
    found = sorted(folder.glob("*.parquet"))
    if not found:
        raise SourceError(f"`{folder}` is empty; run the stage `{stage}` first.")
    return found


def _read_report(out: Path) -> Json | None:
    path = out / REPORT
    found: Json | None = json.loads(path.read_text()) if path.is_file() else None
    return found
