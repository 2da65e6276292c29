"""The stages of a duel that ask models: turns, answers, judge; and the duel between equals.

DIR/turns, prs, turns.json    what is asked, and what is hidden
DIR/answers                   of king and challenger
DIR/judgments                 of the panel, against DIR/answers
DIR/aa-answers, aa-judgments  the king against itself
DIR/calls.sqlite              every call that was finished; no stage repeats one
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from pimono_sdpo.errors import InferenceError, OutputError, SourceError
from pimono_sdpo.runs.folders import lock

if TYPE_CHECKING:
    from datasets import Features

    from pimono_sdpo.llm.settings import Settings
    from pimono_sdpo.llm.shards import Asked
    from pimono_sdpo.schema import Opponent
    from processors.duel.answers import Answering
    from processors.duel.judge import Judging
    from processors.duel.turns import Options

Json = dict[str, Any]
JOURNAL, LOCK = "calls.sqlite", ".lock"
TURNS, ANSWERS, JUDGMENTS = "turns", "answers", "judgments"
EQUALS = "aa-"


@dataclass(frozen=True)
class Spending:
    """How much may be spent: USD in all, turns at most, or turns of an estimate that then stops."""

    max_cost: float | None = None
    limit: int | None = None
    estimate: int | None = None


@dataclass(frozen=True)
class Told:
    """What a stage did: what became of its rows, what it used, why it stopped, an estimate."""

    asked: "Asked | None"
    used: str
    stopped: str | None
    estimate: str | None = None


def run_turns(source: str, records: str | None, options: "Options", out: Path) -> Json:
    """Draw turns into `out`; the same ones are not drawn again.

    Raises SourceError, EmptySelection, and OutputError when answers to other turns are there.
    """
    from processors.duel.turns import draw

    asked_for = json.dumps([source, records, asdict(options)], default=sorted)
    request = hashlib.sha256(asked_for.encode()).hexdigest()
    with lock(out / LOCK, out):
        before = _report(out)
        if before is not None and before["request"] == request:
            return before
        if before is not None and any((out / ANSWERS).glob("*.parquet")):
            raise OutputError(
                f"`{out}` holds answers to turns that were drawn otherwise; give another folder."
            )
        return draw(source, records, options, out, request)


def draw_turns(
    source: str, records: str | None, exclude: Path | None, settings: "Settings", out: Path
) -> Json:
    """Draw turns as the settings say, without the instance ids of a text file; raises as above."""
    from processors.duel.turns import Options, excluded_ids

    left_out = excluded_ids(exclude) if exclude else frozenset()
    options = Options(settings.duel.turns, settings.duel.seed, exclude=left_out)
    return run_turns(source, records, options, out)


def run_answers(out: Path, settings: "Settings", spending: Spending, equals: bool = False) -> Told:
    """Ask king and challenger, or the king twice; raises SourceError, InferenceError."""
    from pimono_sdpo.llm.client import open_chat
    from pimono_sdpo.schema import ANSWER
    from processors.duel.answers import Answering, Players

    duel = settings.duel
    players = Players(
        king=duel.model,
        challenger=duel.challenger or duel.model,
        temperature=duel.temperature,
        seed=duel.seed,
        max_tokens=duel.max_tokens,
    )
    if _report(out) is None:
        raise SourceError(f"`{out}` holds no turns yet; run the stage `turns` first.")
    with lock(out / LOCK, out):
        inputs = _shards(out / TURNS, "turns")
        models = (players.king, players.challenger)
        chat = open_chat(duel, settings, out / JOURNAL, models, spending.max_cost)
        records = {row["instance_id"]: row for row in _rows(_shards(out / "prs", "turns"))}
        answering = Answering(chat, players, records, equals)
        name = EQUALS * equals + ANSWERS
        made_by = _made_by(answering, asdict(players), *_shards(out / "prs", "turns"))
        return _ask(inputs, out / name, answering, ANSWER, made_by, spending)


def run_judge(out: Path, settings: "Settings", spending: Spending, equals: bool = False) -> Told:
    """Ask the panel about the answers; raises SourceError, InferenceError."""
    from pimono_sdpo.llm.chat import Chat
    from pimono_sdpo.llm.client import open_chat
    from pimono_sdpo.llm.decisions import Decisions
    from pimono_sdpo.schema import JUDGMENT
    from processors.duel.judge import Judging, Panel

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
        inputs = _shards(out / (EQUALS * equals + ANSWERS), "answers")
        if judge.backend == "logprobs" and "://" not in judge.provider:
            raise InferenceError(
                "The backend `logprobs` asks `transformers serve`; give its URL as the provider of "
                "[judge], such as http://localhost:8000/v1."
            )
        kind = Decisions if judge.backend == "logprobs" else Chat
        most = spending.max_cost
        chat = open_chat(judge, settings, out / JOURNAL, panel.judges, most, kind)
        judging = Judging(chat, panel)
        name = EQUALS * equals + JUDGMENTS
        made_by = _made_by(judging, {**asdict(panel), "backend": judge.backend})
        return _ask(inputs, out / name, judging, JUDGMENT, made_by, spending)


def _ask(
    inputs: Sequence[Path],
    out: Path,
    asking: "Answering | Judging",
    features: "Features",
    made_by: str,
    spending: Spending,
) -> Told:
    from datasets import Dataset

    from pimono_sdpo.llm.shards import answers_of, ask_shards

    chat, one = asking.chat, asking.one
    in_flight = chat.limits.concurrency
    rows = sum(pq.read_metadata(path).num_rows for path in inputs)
    rows = min(rows, spending.limit or rows)
    if spending.estimate is not None:
        first = Dataset(pq.read_table(inputs[0]).slice(0, spending.estimate))
        found = answers_of(first, one, features, in_flight, "estimate")
        told = chat.tally.estimate(chat.prices, len(first), rows, in_flight)
        errors = [row["error"] for row in found if row["error"] is not None]
        # Of failures alone nothing can be estimated.
        failed = errors[0] if errors and len(errors) == len(found) else None
        return Told(None, chat.tally.told(chat.prices), chat.stopped or failed, told)
    asked = ask_shards(
        inputs,
        out,
        one,
        features,
        made_by=made_by,
        in_flight=in_flight,
        is_stopped=lambda: chat.stopped is not None,
        limit=spending.limit,
    )
    return Told(asked, chat.tally.told(chat.prices), chat.stopped)


def _made_by(asking: "Answering | Judging", options: Json, *files: Path) -> str:
    """What a shard depends on beside its input: code, prompts, options, records."""
    from pimono_sdpo.stage import source_hash
    from processors.duel.prompts import fingerprint

    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    return json.dumps([source_hash(asking.one), fingerprint(), options, digests])


def _shards(folder: Path, stage: str) -> list[Path]:
    found = sorted(folder.glob("*.parquet"))
    if not found:
        raise SourceError(f"`{folder}` holds nothing yet; run the stage `{stage}` first.")
    return found


def _rows(paths: Sequence[Path]) -> Iterator[Json]:
    for path in paths:
        yield from pq.read_table(path).to_pylist()


def _report(out: Path) -> Json | None:
    from processors.duel.turns import REPORT

    path = out / REPORT
    found: Json | None = json.loads(path.read_text()) if path.is_file() else None
    return found
