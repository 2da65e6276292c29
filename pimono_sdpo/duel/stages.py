"""Run the stages of a duel that ask models: turns, answers, judge; and the king against itself.

DIR/turns, prs, turns.json    what players are asked, and what is hidden from the king
DIR/answers                   answers of king and challenger
DIR/judgments                 the panel's judgments of DIR/answers
DIR/aa-answers, aa-judgments  the same for the king against itself
DIR/calls.sqlite              every finished call; no stage repeats one
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datasets import Dataset, Features

from pimono_sdpo.errors import InferenceError, OutputError, SourceError
from pimono_sdpo.llm.chat import Chat, Decisions, open_chat
from pimono_sdpo.llm.rows import Asked, answers_of, ask_shards
from pimono_sdpo.llm.settings import Settings
from pimono_sdpo.runs.folders import lock
from pimono_sdpo.schema import ANSWER, JUDGMENT, Opponent
from pimono_sdpo.stage import source_hash
from processors.duel.answers import AnswerStage, Players
from processors.duel.judge import JudgeStage, Panel
from processors.duel.prompts import fingerprint
from processors.duel.turns import RECORDS, REPORT, TURNS, Options, draw_turns, read_excluded_ids

Json = dict[str, Any]
JOURNAL, LOCK = "calls.sqlite", ".lock"
ANSWERS, JUDGMENTS = "answers", "judgments"
# Folders of the duel of the king against itself.
EQUAL_ANSWERS, EQUAL_JUDGMENTS = "aa-answers", "aa-judgments"


@dataclass(frozen=True)
class Spending:
    """Limits: USD in total, the number of turns, or the turns of an estimate that then stops."""

    max_cost: float | None = None
    limit: int | None = None
    estimate: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What a stage did: its rows, the tokens it used, why it stopped, or an estimate."""

    asked: Asked | None
    used: str
    stopped: str | None
    estimate: str | None = None


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


def run_answers(out: Path, settings: Settings, spending: Spending, equals: bool = False) -> Outcome:
    """Ask king and challenger, or with `equals` the king twice.

    Raises SourceError or InferenceError.
    """
    duel = settings.duel
    players = Players(
        king=duel.model,
        challenger=duel.challenger or duel.model,
        temperature=duel.temperature,
        seed=duel.seed,
        max_tokens=duel.max_tokens,
    )
    if _read_report(out) is None:
        raise SourceError(f"`{out}` has no turns yet; run the stage `turns` first.")
    with lock(out / LOCK, out):
        inputs = _find_shards(out / TURNS, "turns")
        models = (players.king, players.challenger)
        chat = open_chat(duel, settings, out / JOURNAL, models, spending.max_cost)
        files = _find_shards(out / RECORDS, "turns")
        records = {
            row["instance_id"]: row for path in files for row in pq.read_table(path).to_pylist()
        }
        stage = AnswerStage(chat, players, records, equals)
        made_by = _made_by(stage, asdict(players), *files)
        name = EQUAL_ANSWERS if equals else ANSWERS
        return _ask(inputs, out / name, stage, ANSWER, made_by, spending)


def run_judge(out: Path, settings: Settings, spending: Spending, equals: bool = False) -> Outcome:
    """Ask the panel about the answers; raises SourceError or InferenceError."""
    judge = settings.judge
    opponent: Opponent = "king" if equals else settings.duel.opponent
    panel = Panel(
        judges=judge.models,
        opponent=opponent,
        context=judge.context,
        max_tokens=judge.max_tokens,
        seed=settings.duel.seed,
    )
    if not out.is_dir():
        raise SourceError(f"`{out}` does not exist; run the stages `turns` and `answers` first.")
    with lock(out / LOCK, out):
        inputs = _find_shards(out / (EQUAL_ANSWERS if equals else ANSWERS), "answers")
        if judge.backend == "logprobs" and "://" not in judge.provider:
            raise InferenceError(
                "The backend `logprobs` needs `transformers serve`; give its URL as the provider "
                "of [judge], such as http://localhost:8000/v1."
            )
        kind = Decisions if judge.backend == "logprobs" else Chat
        most = spending.max_cost
        chat = open_chat(judge, settings, out / JOURNAL, panel.judges, most, kind)
        stage = JudgeStage(chat, panel)
        made_by = _made_by(stage, {**asdict(panel), "backend": judge.backend})
        name = EQUAL_JUDGMENTS if equals else JUDGMENTS
        return _ask(inputs, out / name, stage, JUDGMENT, made_by, spending)


def _ask(
    inputs: Sequence[Path],
    out: Path,
    stage: AnswerStage | JudgeStage,
    features: Features,
    made_by: str,
    spending: Spending,
) -> Outcome:
    chat, in_flight = stage.chat, stage.chat.limits.concurrency
    rows = sum(pq.read_metadata(path).num_rows for path in inputs)
    rows = min(rows, spending.limit or rows)
    if spending.estimate is not None:
        first = Dataset(pq.read_table(inputs[0]).slice(0, spending.estimate))
        found = answers_of(first, stage.run, features, in_flight, "estimate")
        estimate = chat.tally.estimate(chat.prices, len(first), rows, in_flight)
        errors = [row["error"] for row in found if row["error"] is not None]
        # Nothing can be estimated when every call failed.
        failed = errors[0] if errors and len(errors) == len(found) else None
        used = chat.tally.summarize(chat.prices)
        return Outcome(None, used, chat.stopped or failed, estimate)
    asked = ask_shards(
        inputs,
        out,
        stage.run,
        features,
        made_by=made_by,
        in_flight=in_flight,
        is_stopped=lambda: chat.stopped is not None,
        limit=spending.limit,
    )
    return Outcome(asked, chat.tally.summarize(chat.prices), chat.stopped)


def _made_by(stage: AnswerStage | JudgeStage, options: Json, *files: Path) -> str:
    """What a shard depends on besides its input: code, prompts, options, records."""
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    return json.dumps([source_hash(stage.run), fingerprint(), options, digests])


def _find_shards(folder: Path, stage: str) -> list[Path]:
    found = sorted(folder.glob("*.parquet"))
    if not found:
        raise SourceError(f"`{folder}` is empty; run the stage `{stage}` first.")
    return found


def _read_report(out: Path) -> Json | None:
    path = out / REPORT
    found: Json | None = json.loads(path.read_text()) if path.is_file() else None
    return found
