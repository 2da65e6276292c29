"""Run the stages of a duel that ask models: turns, answers, gate, panel; king against king.

DIR/turns, prs, turns.json    what players are asked, and what is hidden from the king
DIR/answers                   answers of king and challenger
DIR/rules.json                rules, looks, players and judges, before the first judge is called
DIR/gate, looks.json          single judgments, and the verdict of each look
DIR/judgments                 the whole panel's judgments, by which turns get their buckets
DIR/aa-answers, aa-judgments  the same for the king against itself
DIR/calls.sqlite              every finished call; no stage repeats one

Against the recorded agent, `rules`, `gate` and `judgments` end in `-reference`.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from datasets import Dataset, Features

from pimono_sdpo import __version__
from pimono_sdpo.duel.gate import (
    LOOKS,
    Calls,
    JudgeScore,
    Rules,
    Verdict,
    choose_unit,
    count_effective,
    decide,
    to_json,
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
ANSWERS, GATE, JUDGMENTS = "answers", "gate", "judgments"
RULES, CONCLUSIONS = "rules", "looks"
FAILURE_COLUMNS = {ANSWERS: ("error", "drop_reason"), GATE: ("error",)}
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
    """What was registered before the first judge of the gate was called.

    `looks` are numbers of turns; `tasks` and `repos` are those of the planned turns.
    """

    rules: Rules
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
        if any((out / name_of(GATE, duel.opponent)).glob("*.parquet")):
            raise OutputError(f"`{path}` is gone, but there are judgments; restore it.")
        rules = Rules(**settings.gate.model_dump())
        ids, repos = ids[: rules.max_turns], repos[: rules.max_turns]
        clusters = repos if choose_unit(repos, rules.cluster) == "repo" else ids
        looks = [round(share * len(ids)) for share in LOOKS]
        # Without a verdict there is nothing to stop early for.
        if len(judge.models) < 2 or count_effective(clusters) < rules.min_clusters:
            looks = [len(ids)]
        found = {
            "pimono_sdpo": __version__,
            "rules": asdict(rules),
            "looks": sorted({look for look in looks if look}),
            "second_judge": f"one turn in {SECOND_EVERY}",
            **by,
        }
        write_atomically(path, (json.dumps(found, indent=2) + "\n").encode())
    try:
        stored = json.loads(path.read_text())
        other = next((key for key, value in by.items() if stored[key] != value), None)
        rules, looks = Rules(**stored["rules"]), [int(look) for look in stored["looks"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"`{path}` cannot be read ({error!r}); restore it.") from error
    if other is not None:
        raise OutputError(
            f"`{path}` registered another `{other}` ({_shorten(stored[other])}, now "
            f"{_shorten(by[other])}) before the first judge was called; give another folder."
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    before = _read_looks(out, duel.opponent)
    if before is not None and before["registered"] != digest:
        raise OutputError(f"`{path}` was changed after the first look; restore it.")
    return Plan(
        rules,
        tuple(looks),
        tuple(ids[: looks[-1]]),
        tuple(repos[: looks[-1]]),
        tuple(stored["judges"]),
        digest,
    )


def _read_looks(out: Path, opponent: Opponent) -> Json | None:
    path = out / f"{name_of(CONCLUSIONS, opponent)}.json"
    try:
        found: Json | None = json.loads(path.read_text()) if path.is_file() else None
    except ValueError as error:
        raise SourceError(f"`{path}` cannot be read ({error}); restore it.") from error
    return found


def read_verdict(out: Path, opponent: Opponent) -> Verdict | None:
    """Return the verdict of the last look that was taken, None before the first."""
    stored = _read_looks(out, opponent)
    if stored is None or not stored["verdicts"]:
        return None
    last = stored["verdicts"][-1]
    judges = tuple(JudgeScore(**_restore_nan(judge)) for judge in last["judges"])
    reasons = tuple(last["reasons"])
    return Verdict(**{**_restore_nan(last), "judges": judges, "reasons": reasons})


def _restore_nan(stored: Json) -> Json:
    return {name: np.nan if value is None else value for name, value in stored.items()}


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


def run_gate(
    out: Path, settings: Settings, max_cost: float | None
) -> Iterator[tuple[str, Outcome | Verdict]]:
    """Ask players and judges look by look until there is a conclusion.

    Yields what each stage did and the verdict of each look, with its name. A verdict is stored when
    it is made and not made again. A stage that stopped is the last; so is one too many of whose
    calls failed for a verdict.
    """
    opponent = settings.duel.opponent
    plan = register_rules(out, settings)
    verdict = read_verdict(out, opponent)
    taken = verdict.look if verdict is not None else 0
    if verdict is not None and verdict.conclusion != "open":
        yield f"look {taken}", verdict
        return
    for look in range(taken, len(plan.looks)):
        turns = plan.looks[look]
        for name, run_stage in (("answers", run_answers), (GATE, run_single_judges)):
            outcome = run_stage(out, settings, max_cost, turns)
            folder = name if name == ANSWERS else name_of(GATE, opponent)
            failed = sum(
                row["error"] is not None and row.get("drop_reason", "error") == "error"
                for row in read_rows(out, folder, FAILURE_COLUMNS[name])
            )
            if outcome.stopped is None and failed > (1 - plan.rules.min_parsed) * turns:
                why = f"{failed} of the calls for look {look + 1} failed: {outcome.asked.error}"
                outcome = replace(outcome, stopped=why)
            yield name, outcome
            if outcome.stopped is not None:
                return
        verdict = take_look(out, plan, look, opponent)
        yield f"look {look + 1}", verdict
        if verdict.conclusion != "open":
            return


def take_look(out: Path, plan: Plan, look: int, opponent: Opponent) -> Verdict:
    """Decide by the registered rules, and store the verdict."""
    verdict = decide_look(out, plan, plan.rules, look, opponent)
    stored = _read_looks(out, opponent) or {"registered": plan.sha256, "verdicts": []}
    stored["verdicts"].append(to_json(asdict(verdict)))
    path = out / f"{name_of(CONCLUSIONS, opponent)}.json"
    write_atomically(path, (json.dumps(stored, indent=2) + "\n").encode())
    return verdict


def decide_look(
    out: Path, plan: Plan, rules: Rules, look: int, opponent: Opponent, clean: bool = False
) -> Verdict:
    """Return the verdict on the stored judgments of the turns before a look.

    Answers with terms that only the pull request has count as ties at best; with `clean`, they are
    left out.
    """
    unit = choose_unit(plan.repos, rules.cluster)
    planned = (plan.repos if unit == "repo" else plan.tasks)[: plan.looks[look]]
    turns: dict[str, int] = {}
    clusters, leaked, unanswered = [], [], 0
    columns = ("turn_id", "drop_reason", "leaked_terms")
    answers = read_rows(out, ANSWERS, columns)
    for cluster, row in zip(planned, answers, strict=False):
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
    return decide(calls, plan.judges, clusters, unit, plan.looks, look, rules, unanswered)


def explore_rules(out: Path, plan: Plan, rules: Rules, last: int, opponent: Opponent) -> Verdict:
    """Return the first conclusion by other rules on stored judgments, up to look number `last`."""
    for look in range(last):
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
    complete: bool = False,
) -> Outcome:
    """Ask the whole panel about the answers, with `complete` also when a bucket is decided.

    Raises SourceError or InferenceError.
    """
    return _judge(out, settings, max_cost, limit, JUDGMENTS, equals=equals, complete=complete)


def _judge(
    out: Path,
    settings: Settings,
    max_cost: float | None,
    limit: int | None,
    name: str,
    *,
    single: bool = False,
    equals: bool = False,
    complete: bool = False,
) -> Outcome:
    if not out.is_dir():
        raise SourceError(f"`{out}` does not exist; run the stages `turns` and `answers` first.")
    with lock(out / LOCK, out):
        inputs = _find_shards(out / (EQUAL_ANSWERS if equals else ANSWERS), "answers")
        stage = _open_judges(out, settings, max_cost, single, equals, complete)
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
    out: Path,
    settings: Settings,
    max_cost: float | None,
    single: bool,
    equals: bool = False,
    complete: bool = False,
) -> JudgeStage:
    judge = settings.judge
    panel = Panel(
        judges=judge.models,
        opponent="king" if equals else settings.duel.opponent,
        context=judge.context,
        max_tokens=judge.max_tokens,
        seed=settings.duel.seed,
        single=single,
        complete=complete,
    )
    chat = open_chat(judge, settings, out / JOURNAL, panel.judges, max_cost)
    return JudgeStage(chat, panel)


def estimate_duel(
    out: Path, settings: Settings, turns: int, max_cost: float | None = None
) -> tuple[str, str | None]:
    """Ask players and panel about so many turns, and return what each stage will cost at most.

    Only the journal is written. The second text is the reason when there is no estimate.
    """
    inputs = _find_shards(out / TURNS, "turns")
    total = sum(pq.read_metadata(path).num_rows for path in inputs)
    gate = min(len(_find_first_turns(inputs)[0]), settings.gate.max_turns)
    first = Dataset(pq.read_table(inputs[0]).slice(0, turns))
    players = _open_players(out, settings, max_cost)
    judges = _open_judges(out, settings, max_cost, single=False)
    rows, made = first, 0
    stages: tuple[tuple[AnswerStage | JudgeStage, Features], ...] = (
        (players, ANSWER),
        (judges, JUDGMENT),
    )
    for stage, schema in stages:
        found = answers_of(rows, stage.run, schema, stage.chat.limits.concurrency, "estimate")
        errors = [row["error"] for row in found if row["error"] is not None]
        # Nothing can be estimated when every call failed.
        if stage.chat.stopped or (errors and len(errors) == len(found)):
            return "", stage.chat.stopped or errors[0]
        made = len(found)
        rows = Dataset.from_list(found, features=schema)
    done = len(first)
    # As many turns of the panel as have the calls of the gate.
    single = round(gate * (1 + 1 / SECOND_EVERY) * done / max(made, 1))
    lines, costs = [], []
    planned: tuple[tuple[str, AnswerStage | JudgeStage, int], ...] = (
        (f"answers for the gate, at most {gate:,} turns", players, gate),
        ("judges of the gate, counted as turns of the panel", judges, single),
        (f"with --export or on acceptance, answers to all {total:,} turns", players, total - gate),
        ("and the whole panel", judges, total),
    )
    for title, stage, count in planned:
        chat = stage.chat
        tally = chat.tally.estimate(chat.prices, done, count, chat.limits.concurrency)
        lines.append(f"{title}:\n{tally}")
        used = (cost(chat.prices, model, one) for model, one in chat.tally.models.items())
        costs += [None if usd is None else usd * count / done for usd in used]
    known = [usd for usd in costs if usd is not None]
    whole = f"${sum(known):,.2f}" if len(known) == len(costs) else "not every price is set"
    return "\n".join([*lines, f"all stages: {whole}"]), None


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
