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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from datasets import Dataset, Features

from pimono_sdpo import __version__
from pimono_sdpo.duel.gate import LOOKS, OUTLYING, WITHOUT, choose_unit, count_effective, decide
from pimono_sdpo.errors import InferenceError, OutputError, SourceError
from pimono_sdpo.llm.calls import format_dollars, sum_costs
from pimono_sdpo.llm.chat import Chat, map_rows, open_chat
from pimono_sdpo.llm.settings import CallSection, Gate, Settings
from pimono_sdpo.runs import parquet
from pimono_sdpo.runs.engine import DONE, Output, Part, Piece, run_parts, sha256
from pimono_sdpo.runs.folders import lock
from pimono_sdpo.runs.parquet import write_atomically
from pimono_sdpo.schema import ANSWER, JUDGMENT, Opponent
from pimono_sdpo.stage import source_hash
from processors.duel.answers import AnswerStage
from processors.duel.judge import SECOND_EVERY, JudgeStage, limit_score, score_judgment
from processors.duel.turns import KEY, RECORDS, REPORT, TURNS, Options, draw_turns

Json = dict[str, Any]
JOURNAL, LOCK, ROUNDS, RULES, LOOKED = "calls.sqlite", ".lock", "rounds.json", "rules.json", "looks.json"
ANSWERS, GATE, JUDGMENTS = "answers", "gate", "judgments"
# Before the names of folders of the duel of the king against itself.
EQUALS = "aa-"
# All of a judgment but what the judge replied in full.
VOTE_COLUMNS = ("turn_id", "judge", "order", "parsed", "reason", "scores_challenger", "scores_opponent")


@dataclass(frozen=True)
class Outcome:
    """What a stage did: rows written, those with an error, those whose call failed, and the first error.

    `used` says how many tokens, `stopped` why it ended early.
    """

    rows: int
    errors: int
    failed: int
    error: str | None
    used: str
    stopped: str | None


@dataclass(frozen=True)
class Plan:
    """What was registered before the first judge was called; `looks` are numbers of turns."""

    rules: Gate
    looks: tuple[int, ...]
    tasks: tuple[str, ...]
    repos: tuple[str, ...]
    judges: tuple[str, ...]
    sha256: str


def run_turns(source: str, records: str, options: Options, out: Path) -> Json:
    """Draw turns into `out`, unless the same ones are there already, and return the report."""
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


@dataclass(frozen=True)
class Duel:
    """The folder of a duel whose turns are drawn, and the most USD to spend in it."""

    folder: Path
    settings: Settings
    max_cost: float | None = None

    def find(self, name: str) -> Path:
        """Return the file or folder of a name, for this opponent if there are several."""
        stem, dot, suffix = name.partition(".")
        is_shared = self.settings.duel.opponent == "king" or name not in (RULES, LOOKED, GATE, JUDGMENTS)
        return self.folder / (name if is_shared else f"{stem}-reference{dot}{suffix}")

    def read(self, name: str, columns: Sequence[str] | None = None) -> Iterator[Json]:
        """Yield the rows of a folder in the order of its shards; none when it is not there."""
        return parquet.read_rows(sorted(self.find(name).glob("*.parquet")), columns)

    def _read_json(self, name: str) -> Any:
        path = self.find(name)
        return json.loads(path.read_text()) if path.is_file() else None

    def _write_json(self, name: str, found: object) -> None:
        with lock(self.folder / LOCK, self.folder):
            write_atomically(self.find(name), (json.dumps(found, indent=2) + "\n").encode())

    def register(self) -> Plan:
        """Return the plan of the gate; the first call stores it.

        Later calls return the stored plan, whatever their rules: those are for exploring alone.
        """
        judges = self.settings.judge.models
        if repeated := [name for name in judges if judges.count(name) > 1]:
            raise InferenceError(f"`{repeated[0]}` is named twice as a judge; name each judge once.")
        path, by, first = self.find(RULES), self._describe(), self._find_first_turns()
        if not path.is_file():
            if any(self.find(GATE).glob("*.parquet")):
                raise OutputError(f"`{path}` is gone, but there are judgments; restore it.")
            self._write_json(RULES, self._make_plan(first) | by)
        try:
            stored = json.loads(path.read_text())
            other = next((key for key, value in by.items() if stored[key] != value), None)
            rules, looks = Gate(**stored["rules"]), stored["looks"]
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(f"`{path}` cannot be read ({error!r}); restore it.") from error
        if other is not None:
            raise OutputError(
                f"`{path}` registered another `{other}` ({stored[other]}, now {by[other]}) before the "
                "first judge was called; give another folder."
            )
        digest = sha256(path)
        if (self._read_json(LOOKED) or {"registered": digest})["registered"] != digest:
            raise OutputError(f"`{path}` was changed after the first look; restore it.")
        tasks, repos = (tuple(values)[: looks[-1]] for values in (first, first.values()))
        return Plan(rules, tuple(looks), tasks, repos, judges, digest)

    def _describe(self) -> Json:
        """Return what makes the answers and judgments, by the names of the rules' file."""
        duel, judge = self.settings.duel, self.settings.judge
        turns = b"".join(path.read_bytes() for path in self._find_shards(TURNS))
        return {
            "king": duel.model,
            "challenger": duel.find_challenger(),
            "temperature": duel.temperature,
            "max_tokens": [duel.max_tokens, judge.max_tokens],
            "opponent": duel.opponent,
            "judges": list(judge.models),
            "context": judge.context,
            "seed": duel.seed,
            "turns": hashlib.sha256(turns).hexdigest(),
        }

    def _find_first_turns(self) -> dict[str, str]:
        """Return tasks and their repositories, of the turns before the first repeated task."""
        first: dict[str, str] = {}
        for row in self.read(TURNS, (KEY, "repo")):
            if row[KEY] in first:
                break
            first[row[KEY]] = row["repo"] or ""
        return first

    def _make_plan(self, first: dict[str, str]) -> Json:
        rules = self.settings.gate
        tasks, repos = (list(values)[: rules.max_turns] for values in (first, first.values()))
        clusters = repos if choose_unit(repos, rules.cluster) == "repo" else tasks
        looks = sorted({max(1, round(share * len(tasks))) for share in LOOKS})
        # Without a verdict there is nothing to stop early for.
        if len(self.settings.judge.models) < 2 or count_effective(clusters) < rules.min_clusters:
            looks = [len(tasks)]
        return {
            "pimono_sdpo": __version__,
            "rules": rules.model_dump(),
            "looks": looks,
            "second_judge": f"one turn in {SECOND_EVERY}",
            "without_any_judge": f"{WITHOUT:g} standard errors above parity; the lower bound above "
            f"parity if the judge is {OUTLYING:g} standard errors above the others",
        }

    def read_verdicts(self) -> list[Json]:
        """Return the verdicts of the looks that were taken, as `gate.decide` returns them."""
        found: list[Json] = (self._read_json(LOOKED) or {"verdicts": []})["verdicts"]
        return found

    def run(
        self, export: bool = False, limit: int | None = None, equals: int | None = None, complete: bool = False
    ) -> Iterator[tuple[str, Outcome | Json]]:
        """Run the gate, and the whole panel if the challenger is accepted or with `export`.

        Yields what each stage did and the verdict of each look. The panel reads the first `limit` turns, and as many
        as `equals` of the king against itself; with `complete` it goes on where a bucket is decided. A stage that
        stopped is the last.
        """
        has_asked = False
        for name, done in chain(self.run_gate(), self._run_panel(export, limit, equals, complete)):
            yield name, done
            if isinstance(done, Outcome):
                if done.stopped is not None:
                    return
                has_asked = True
        if has_asked:
            self.end_round()

    def run_gate(self) -> Iterator[tuple[str, Outcome | Json]]:
        """Ask look by look until there is a conclusion; one that was stored is not made again."""
        plan, verdicts = self.register(), self.read_verdicts()
        if verdicts and verdicts[-1]["conclusion"] != "open":
            yield f"look {len(verdicts)}", verdicts[-1]
            return
        for number, turns in enumerate(plan.looks[len(verdicts) :], start=len(verdicts) + 1):
            most = (1 - plan.rules.min_parsed) * turns
            for name, ask in ((ANSWERS, self.answer), (GATE, partial(self.judge, single=True))):
                done = ask(turns)
                if done.failed > most and done.stopped is None:
                    why = f"{done.failed} of the calls for look {number} failed: {done.error}"
                    done = replace(done, stopped=why)
                yield name, done
                if done.stopped is not None:
                    return
            verdict = self.take_look(plan)
            yield f"look {number}", verdict
            if verdict["conclusion"] != "open":
                return

    def _run_panel(
        self, export: bool, limit: int | None, equals: int | None, complete: bool
    ) -> Iterator[tuple[str, Outcome]]:
        if not export and self.read_verdicts()[-1]["conclusion"] != "accepted":
            return
        for itself, most in ((False, limit), *([(True, equals)] if equals is not None else [])):
            against = " of the king against itself" if itself else ""
            yield f"answers{against}", self.answer(most, equals=itself)
            yield f"panel{against}", self.judge(most, equals=itself, complete=complete)

    def take_look(self, plan: Plan) -> Json:
        """Decide by the registered rules after the next look, and store the verdict."""
        verdicts = self.read_verdicts()
        verdicts.append(self.decide(plan, plan.rules, len(verdicts)))
        self._write_json(LOOKED, {"registered": plan.sha256, "verdicts": verdicts})
        return verdicts[-1]

    def decide(self, plan: Plan, rules: Gate, look: int, clean: bool = False) -> Json:
        """Return the verdict on the judgments of the turns before a look, by these rules.

        Answers with terms that only the pull request has are ties at best; with `clean`, they are left out.
        """
        unit = choose_unit(plan.repos, rules.cluster)
        planned = (plan.repos if unit == "repo" else plan.tasks)[: plan.looks[look]]
        turns: dict[str, tuple[int, float]] = {}
        clusters, unanswered = [], 0
        for cluster, row in zip(planned, self.read(ANSWERS, ("turn_id", "drop_reason", "leaked_terms")), strict=False):
            if clean and row["leaked_terms"]:
                continue
            if row["drop_reason"] is not None:
                unanswered += 1
                continue
            turns[row["turn_id"]] = len(turns), limit_score(row)
            clusters.append(cluster)
        scores = np.full((len(turns), len(plan.judges), 2), np.nan)
        for row in self.read(GATE, VOTE_COLUMNS):
            if row["parsed"] and row["turn_id"] in turns:
                at, most = turns[row["turn_id"]]
                scores[at, plan.judges.index(row["judge"]), row["order"]] = min(score_judgment(row), most)
        return decide(scores, plan.judges, clusters, unit, plan.looks, look, rules, unanswered)

    def answer(self, limit: int | None = None, *, equals: bool = False) -> Outcome:
        """Ask king and challenger, or with `equals` the king twice; `limit` is a number of turns."""
        return self._ask(TURNS, equals * EQUALS + ANSWERS, self._open_players(equals), ANSWER, limit)

    def judge(
        self, limit: int | None = None, *, single: bool = False, equals: bool = False, complete: bool = False
    ) -> Outcome:
        """Ask the whole panel about the first answers, or with `single` the judges of the gate."""
        stage = self._open_judges("king" if equals else self.settings.duel.opponent, single, complete)
        name = GATE if single else equals * EQUALS + JUDGMENTS
        return self._ask(equals * EQUALS + ANSWERS, name, stage, JUDGMENT, limit, single, complete)

    def _open_players(self, equals: bool = False) -> AnswerStage:
        duel = self.settings.duel
        self._find_shards(TURNS)
        records = {row[KEY]: row for row in self.read(RECORDS)}
        chat = self._open_chat(duel, (duel.model, duel.find_challenger()))
        return AnswerStage(chat, duel, records, equals, self._read_round())

    def _open_judges(self, opponent: Opponent, single: bool = False, complete: bool = False) -> JudgeStage:
        panel = self.settings.judge
        chat = self._open_chat(panel, panel.models)
        return JudgeStage(chat, panel, opponent, self.settings.duel.seed, single, complete)

    def _open_chat(self, section: CallSection, models: Sequence[str]) -> Chat:
        return open_chat(section, self.settings.prices, self.folder / JOURNAL, models, self.max_cost, replay=False)

    def _ask(
        self,
        given: str,
        name: str,
        stage: AnswerStage | JudgeStage,
        features: Features,
        limit: int | None,
        *options: object,
    ) -> Outcome:
        """Write DIR/NAME/NAME-NNNNN.parquet for each shard given, with what a stage makes of its first `limit` rows.

        A finished shard with more rows stays. One with errors is asked again by the next run, which pays only for
        what the journal does not hold.
        """
        shards, out, chat, parts = self._find_shards(given), self.find(name), stage.chat, []
        # Both opponents share the answers.
        about = {**self._describe(), "opponent": None}
        made_by = {"made_by": json.dumps([source_hash(stage.run), about, options])}
        with lock(self.folder / LOCK, self.folder):
            for path in shards:
                rows = pq.read_metadata(path).num_rows
                if limit is not None:
                    rows = min(rows, limit)
                    limit -= rows
                number, digest = int(path.stem.rpartition("-")[2]), sha256(path)
                made = _read_origin(out, number)
                if made and made["options"] == made_by and made["input"]["sha256"] == digest:
                    rows = max(rows, made["input"]["rows"])
                if rows:
                    run = partial(_ask_shard, path, rows, stage, features, out.name)
                    parts.append(Part(number, path.name, rows, {"sha256": digest, "rows": rows}, made_by, run))
            out.mkdir(parents=True, exist_ok=True)
            outputs = {"rows": Output(f"{out.name}-{{:05}}.parquet", features.arrow_schema)}
            records = run_parts(parts, out, outputs, is_stopped=lambda: chat.stopped is not None).values()
        return Outcome(
            sum(record["rows"]["rows"] for record in records),
            sum(record["counts"]["errors"] for record in records),
            sum(record["counts"]["failed"] for record in records),
            next((record["error"] for record in records if record["error"]), None),
            chat.tally.summarize(chat.prices),
            chat.stopped,
        )

    def is_current(self, judgments: str, answers: str) -> bool:
        """Whether shards of judgments were made of the answers that there are now."""
        now = {path.stem.rpartition("-")[2]: sha256(path) for path in self.find(answers).glob("*.parquet")}
        numbers = [path.stem.rpartition("-")[2] for path in self.find(judgments).glob("*.parquet")]
        made = {number: _read_origin(self.find(judgments), int(number)) for number in numbers}
        return all(one["input"]["sha256"] == now.get(number) for number, one in made.items() if one)

    def _read_round(self) -> int:
        """Return how many runs have drawn answers, this one included."""
        return int(self._read_json(ROUNDS) or 1)

    def end_round(self) -> None:
        """Let the next run draw malformed answers again; a run that is resumed draws none anew."""
        rows = chain(*(self.read(name, ("error", "drop_reason")) for name in (ANSWERS, EQUALS + ANSWERS)))
        if any(row["error"] is not None and row["drop_reason"] != "error" for row in rows):
            self._write_json(ROUNDS, self._read_round() + 1)

    def estimate(self, turns: int) -> str:
        """Ask players and panel about so many turns, and return what each stage will cost about."""
        gate, shards = len(self.register().tasks), self._find_shards(TURNS)
        total = sum(pq.read_metadata(path).num_rows for path in shards)
        rows = Dataset(pq.read_table(shards[0]).slice(0, turns))
        done, players, judges = len(rows), self._open_players(), self._open_judges(self.settings.duel.opponent)
        stages: tuple[tuple[AnswerStage | JudgeStage, Features], ...] = ((players, ANSWER), (judges, JUDGMENT))
        for stage, schema in stages:
            chat = stage.chat
            rows = map_rows(rows, stage.run, schema, in_flight=chat.limits.concurrency, desc="estimate")
            errors = [error for error in rows["error"] if error is not None]
            # Nothing can be estimated when every call failed.
            if chat.stopped or (errors and len(errors) == len(rows)):
                problem = chat.stopped or errors[0]
                raise InferenceError(f"{problem.rstrip('.')}; nothing can be estimated.")
        # As many turns of the panel as have the calls of the gate.
        single = round(gate * (1 + 1 / SECOND_EVERY) * done / max(len(rows), 1))
        lines, costs = [], []
        for title, chat, count in (
            (f"answers for the gate, at most {gate:,} turns", players.chat, gate),
            ("judges of the gate, counted as turns of the panel", judges.chat, single),
            (f"with --export or on acceptance, answers to all {total:,} turns", players.chat, total - gate),
            ("and the whole panel", judges.chat, total),
        ):
            lines.append(f"{title}:\n{chat.tally.estimate(chat.prices, done, count, chat.limits.concurrency)}")
            usd = sum_costs(chat.prices, chat.tally.models)
            costs.append(None if usd is None else usd * count / done)
        whole = "not every price is set" if None in costs else format_dollars(sum(filter(None, costs)))
        return "\n".join([*lines, f"all stages: {whole}"])

    def _find_shards(self, name: str) -> list[Path]:
        found = sorted(self.find(name).glob("*.parquet"))
        if not found or not (self.folder / REPORT).is_file():
            stage, given = name.removeprefix(EQUALS), ", with trajectories and --records" * (name == TURNS)
            raise SourceError(f"`{self.find(name)}` is not complete; run the stage `{stage}` first{given}.")
        return found


def _read_origin(folder: Path, number: int) -> Json | None:
    """Return what a finished shard was made of, None without a record of it."""
    path = folder / DONE / f"{number:05}.json"
    return json.loads(path.read_text())["made_from"] if path.is_file() else None


def _ask_shard(
    path: Path, rows: int, stage: AnswerStage | JudgeStage, features: Features, desc: str
) -> Iterator[Piece]:
    given = Dataset(pq.read_table(path).slice(0, rows))
    made = map_rows(given, stage.run, features, in_flight=stage.chat.limits.concurrency, desc=desc)
    reasons = made["drop_reason"] if "drop_reason" in features else ["error"] * len(made)
    # An answer of the wrong form is one that was given.
    errors = [(error, reason == "error") for error, reason in zip(made["error"], reasons, strict=True) if error]
    counts = {"errors": len(errors), "failed": sum(failed for _, failed in errors)}
    table = made.with_format("arrow")[:]
    yield Piece({"rows": table}, rows, counts, errors[0][0] if errors else None)
