"""Run the stages of a duel that call models: players answer turns, judges compare the answers.

DIR/turns, prs, turns.json    the turns to answer, and the pull requests hidden from the king
DIR/rules.json                rules, looks, players and judges, registered before the first judge call
DIR/answers, rounds.json      answers of king and challenger; how many rounds drew malformed ones again
DIR/gate, looks.json          judgments of single judges, and the verdict of each look
DIR/judgments                 judgments of the whole panel, which sort turns into buckets
DIR/aa-answers, aa-judgments  the A/A test: the king against itself
DIR/calls.sqlite              journal of finished calls, which are never repeated

Against the recorded agent, `rules`, `looks`, `gate` and `judgments` end in `-reference`.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from datasets import Dataset, Features

from pimono_sdpo.duel.gate import LOOKS, OUTLYING, WITHOUT, choose_unit, count_effective, decide
from pimono_sdpo.errors import InferenceError, OutputError, SourceError
from pimono_sdpo.llm.calls import Json, format_dollars, sum_costs
from pimono_sdpo.llm.chat import Chat, map_rows, open_chat
from pimono_sdpo.llm.settings import CallSection, Gate, Settings
from pimono_sdpo.runs import parquet
from pimono_sdpo.runs.engine import Part, Piece, hash_files, read_made, run_here, run_shards, sum_counts
from pimono_sdpo.runs.finish import hash_file
from pimono_sdpo.runs.folders import lock
from pimono_sdpo.runs.parquet import write_atomically
from pimono_sdpo.schema import ANSWER, JUDGMENT, Opponent
from pimono_sdpo.stage import source_hash
from pimono_sdpo.version import __version__
from processors.duel.answers import AnswerStage
from processors.duel.judge import SECOND_EVERY, JudgeStage, limit_score, score_judgment
from processors.duel.turns import KEY, RECORDS, REPORT, TURNS, TurnOptions, draw_turns

JOURNAL, LOCK, ROUNDS, RULES, LOOKED = "calls.sqlite", ".lock", "rounds.json", "rules.json", "looks.json"
ANSWERS, GATE, JUDGMENTS = "answers", "gate", "judgments"
# Prefix of the folders of the A/A test.
AA = "aa-"
# The columns of a judgment without the raw reply.
VOTE_COLUMNS = ("turn_id", "judge", "order", "parsed", "reason", "scores_challenger", "scores_opponent")


@dataclass(frozen=True)
class Outcome:
    """Counts of a stage: rows written, rows with an error, rows whose call failed; and the first error.

    `used` describes the tokens used; `stopped` is the reason for stopping early, or None.
    """

    rows: int
    errors: int
    failed: int
    error: str | None
    used: str
    stopped: str | None


@dataclass(frozen=True)
class Plan:
    """The rules registered before the first judge call; `looks` are numbers of turns."""

    rules: Gate
    looks: tuple[int, ...]
    tasks: tuple[str, ...]
    repos: tuple[str, ...]
    judges: tuple[str, ...]
    sha256: str


def run_turns(source: str, records: str, options: TurnOptions, out: Path) -> Json:
    """Draw turns into `out`, unless the same turns are already there, and return the report."""
    key = json.dumps([source, records, asdict(options)], default=sorted)
    request = hashlib.sha256(key.encode()).hexdigest()
    with lock(out / LOCK, out):
        if (out / REPORT).is_file():
            report: Json = json.loads((out / REPORT).read_text())
            if report["request"] == request:
                return report
            if any(out.glob("answers/*.parquet")) or any(out.glob("rules*.json")):
                raise OutputError(f"`{out}` has a duel with turns drawn with other options; use another folder.")
        return draw_turns(source, records, options, out, request)


@dataclass(frozen=True)
class Duel:
    """A duel in a folder with drawn turns; `max_cost` limits its total cost in USD."""

    folder: Path
    settings: Settings
    max_cost: float | None = None

    def find(self, name: str) -> Path:
        """Return the path of a file or folder of the duel; some have a version per opponent."""
        stem, dot, suffix = name.partition(".")
        is_shared = self.settings.duel.opponent == "king" or name not in (RULES, LOOKED, GATE, JUDGMENTS)
        return self.folder / (name if is_shared else f"{stem}-reference{dot}{suffix}")

    def read(self, name: str, columns: Sequence[str] | None = None) -> Iterator[Json]:
        """Yield the rows of a folder in the order of its shards, or nothing if it does not exist."""
        return parquet.read_rows(sorted(self.find(name).glob("*.parquet")), columns)

    def _read_json(self, name: str) -> Any:
        path = self.find(name)
        return json.loads(path.read_text()) if path.is_file() else None

    def _write_json(self, name: str, content: object) -> None:
        with lock(self.folder / LOCK, self.folder):
            write_atomically(self.find(name), (json.dumps(content, indent=2) + "\n").encode())

    def register(self) -> Plan:
        """Return the plan of the gate; the first call stores it.

        Later calls return the stored plan even if the settings have other rules, which are only exploratory.
        """
        judges = self.settings.judge.models
        if repeated := [name for name in judges if judges.count(name) > 1]:
            raise InferenceError(f"`{repeated[0]}` is named twice as a judge; name each judge once.")
        path, inputs, repo_of = self.find(RULES), self._describe_inputs(), self._find_gate_tasks()
        if not path.is_file():
            if any(self.find(GATE).glob("*.parquet")):
                raise OutputError(f"`{path}` is missing, but there are judgments; restore it.")
            self._write_json(RULES, self._make_plan(repo_of) | inputs)
        try:
            stored = json.loads(path.read_text())
            changed = next((key for key, value in inputs.items() if stored[key] != value), None)
            rules, looks = Gate(**stored["rules"]), stored["looks"]
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(f"`{path}` cannot be read ({error!r}); restore it.") from error
        if changed is not None:
            raise OutputError(
                f"`{path}` registered another `{changed}` ({stored[changed]}, now {inputs[changed]}) before the "
                "first judge was called; use another folder."
            )
        digest = hash_file(path)
        if (self._read_json(LOOKED) or {"registered": digest})["registered"] != digest:
            raise OutputError(f"`{path}` was changed after the first look; restore it.")
        tasks, repos = tuple(repo_of)[: looks[-1]], tuple(repo_of.values())[: looks[-1]]
        return Plan(rules, tuple(looks), tasks, repos, judges, digest)

    def _describe_inputs(self) -> Json:
        """Return what answers and judgments depend on, with the keys of `rules.json`."""
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

    def _find_gate_tasks(self) -> dict[str, str]:
        """Return the repository of each task, for the turns before the first repeated task."""
        repo_of: dict[str, str] = {}
        for row in self.read(TURNS, (KEY, "repo")):
            if row[KEY] in repo_of:
                break
            repo_of[row[KEY]] = row["repo"] or ""
        return repo_of

    def _make_plan(self, repo_of: dict[str, str]) -> Json:
        rules = self.settings.gate
        tasks, repos = list(repo_of)[: rules.max_turns], list(repo_of.values())[: rules.max_turns]
        clusters = repos if choose_unit(repos, rules.cluster) == "repo" else tasks
        looks = sorted({max(1, round(share * len(tasks))) for share in LOOKS})
        # If there can be no verdict, early looks are useless.
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
        """Return the verdicts of the looks taken so far, as `gate.decide` returns them."""
        verdicts: list[Json] = (self._read_json(LOOKED) or {"verdicts": []})["verdicts"]
        return verdicts

    def run(
        self, export: bool = False, limit: int | None = None, aa_turns: int | None = None, complete: bool = False
    ) -> Iterator[tuple[str, Outcome | Json]]:
        """Run the gate, then the whole panel if the challenger is accepted or with `export`.

        Yields the outcome of each stage and the verdict of each look; ends after a stage that stopped. The panel reads
        the first `limit` turns, and `aa_turns` turns of the king against itself; with `complete`, every judge reads
        every turn even if its bucket is already decided.
        """
        has_asked = False
        for name, result in chain(self.run_gate(), self._run_panel(export, limit, aa_turns, complete)):
            yield name, result
            if isinstance(result, Outcome):
                if result.stopped is not None:
                    return
                has_asked = True
        if has_asked:
            self.end_round()

    def run_gate(self) -> Iterator[tuple[str, Outcome | Json]]:
        """Ask look by look until there is a conclusion; a stored conclusion is final."""
        plan, verdicts = self.register(), self.read_verdicts()
        if verdicts and verdicts[-1]["conclusion"] != "open":
            yield f"look {len(verdicts)}", verdicts[-1]
            return
        for number, turns in islice(enumerate(plan.looks, start=1), len(verdicts), None):
            for name, ask in ((ANSWERS, self.answer), (GATE, partial(self.judge, single=True))):
                outcome = ask(turns)
                if outcome.stopped is None and outcome.failed > (1 - plan.rules.min_parsed) * turns:
                    why = f"{outcome.failed} of the calls for look {number} failed: {outcome.error}"
                    outcome = replace(outcome, stopped=why)
                yield name, outcome
                if outcome.stopped is not None:
                    return
            verdict = self.take_look(plan)
            yield f"look {number}", verdict
            if verdict["conclusion"] != "open":
                return

    def _run_panel(
        self, export: bool, limit: int | None, aa_turns: int | None, complete: bool
    ) -> Iterator[tuple[str, Outcome]]:
        if not export and self.read_verdicts()[-1]["conclusion"] != "accepted":
            return
        yield "answers", self.answer(limit)
        yield "panel", self.judge(limit, complete=complete)
        if aa_turns is not None:
            yield "answers of the king against itself", self.answer(aa_turns, aa_test=True)
            yield "panel of the king against itself", self.judge(aa_turns, aa_test=True, complete=complete)

    def take_look(self, plan: Plan) -> Json:
        """Decide the next look by the registered rules, and store the verdict."""
        verdicts = self.read_verdicts()
        verdicts.append(self.decide(plan, plan.rules, len(verdicts)))
        self._write_json(LOOKED, {"registered": plan.sha256, "verdicts": verdicts})
        return verdicts[-1]

    def decide(self, plan: Plan, rules: Gate, look: int, clean: bool = False) -> Json:
        """Return the verdict of a look by these rules.

        Answers that use terms found only in the pull request are ties at best; with `clean`, they are left out.
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
                turn, limit = turns[row["turn_id"]]
                scores[turn, plan.judges.index(row["judge"]), row["order"]] = min(score_judgment(row), limit)
        return decide(scores, plan.judges, clusters, unit, plan.looks, look, rules, unanswered)

    def answer(self, limit: int | None = None, *, aa_test: bool = False) -> Outcome:
        """Ask king and challenger, or with `aa_test` the king twice, about the first `limit` turns."""
        return self._ask(TURNS, aa_test * AA + ANSWERS, self._open_players(aa_test), ANSWER, limit)

    def judge(
        self, limit: int | None = None, *, single: bool = False, aa_test: bool = False, complete: bool = False
    ) -> Outcome:
        """Ask the panel, or with `single` the judges of the gate, about the answers to the first `limit` turns."""
        stage = self._open_judges("king" if aa_test else self.settings.duel.opponent, single, complete)
        name = GATE if single else aa_test * AA + JUDGMENTS
        return self._ask(aa_test * AA + ANSWERS, name, stage, JUDGMENT, limit, single, complete)

    def _open_players(self, aa_test: bool = False) -> AnswerStage:
        duel = self.settings.duel
        self._find_shards(TURNS)
        records = {row[KEY]: row for row in self.read(RECORDS)}
        chat = self._open_chat(duel, (duel.model, duel.find_challenger()))
        return AnswerStage(chat, duel, records, aa_test, self._read_round())

    def _open_judges(self, opponent: Opponent, single: bool = False, complete: bool = False) -> JudgeStage:
        panel = self.settings.judge
        chat = self._open_chat(panel, panel.models)
        return JudgeStage(chat, panel, opponent, self.settings.duel.seed, single, complete)

    def _open_chat(self, section: CallSection, models: Sequence[str]) -> Chat:
        return open_chat(section, self.settings.prices, self.folder / JOURNAL, models, self.max_cost, replay=False)

    def _ask(
        self,
        source: str,
        name: str,
        stage: AnswerStage | JudgeStage,
        features: Features,
        limit: int | None,
        *options: object,
    ) -> Outcome:
        """Run a stage on the first `limit` rows of the folder `source`; write DIR/NAME/NAME-NNNNN.parquet per shard.

        A finished shard with more rows is kept. One with errors is asked again by the next run, which pays only for
        calls that are not in the journal.
        """
        shards, out, chat, parts = self._find_shards(source), self.find(name), stage.chat, []
        # Both opponents share the answers.
        inputs = {**self._describe_inputs(), "opponent": None}
        made_by = {"made_by": json.dumps([source_hash(stage.run), inputs, options])}
        with lock(self.folder / LOCK, self.folder):
            for path in shards:
                rows = pq.read_metadata(path).num_rows
                if limit is not None:
                    rows = min(rows, limit)
                    limit -= rows
                number = path.stem.rpartition("-")[2]
                made = read_made(out / f"{out.name}-{number}.parquet")
                if made and made.made_from["options"] == made_by and made.made_from["content"] == hash_files([path]):
                    rows = max(rows, made.made_from["input"]["rows"])
                if rows:
                    part = Part(
                        name=f"{out.name}-{number}",
                        title=path.name,
                        units=rows,
                        input={"rows": rows},
                        options=made_by,
                        run=partial(_ask_shard, path, rows, stage, features, out.name),
                        schema=features.arrow_schema,
                        files=(path,),
                    )
                    parts.append(part)
            finished = run_shards(parts, out, engine=partial(run_here, is_stopped=lambda: chat.stopped is not None))
        counts = sum_counts(finished)
        return Outcome(
            sum(one.rows for one in finished),
            counts.get("errors", 0),
            counts.get("failed", 0),
            next((one.error for one in finished if one.error), None),
            chat.tally.summarize(chat.prices),
            chat.stopped,
        )

    def is_current(self, judgments: str, answers: str) -> bool:
        """Return whether the judgments are about the answers as they are now."""
        answered = {path.stem.rpartition("-")[2]: path for path in self.find(answers).glob("*.parquet")}
        for path in self.find(judgments).glob("*.parquet"):
            made, number = read_made(path), path.stem.rpartition("-")[2]
            if made and (number not in answered or made.made_from["content"] != hash_files([answered[number]])):
                return False
        return True

    def _read_round(self) -> int:
        """Return the number of the current round of drawing answers, from 1."""
        return int(self._read_json(ROUNDS) or 1)

    def end_round(self) -> None:
        """Let the next run draw malformed answers again; a resumed run stays in its round."""
        rows = chain(*(self.read(name, ("error", "drop_reason")) for name in (ANSWERS, AA + ANSWERS)))
        if any(row["error"] is not None and row["drop_reason"] != "error" for row in rows):
            self._write_json(ROUNDS, self._read_round() + 1)

    def estimate(self, turns: int) -> str:
        """Ask players and panel about this many turns, and return the estimated cost of each stage."""
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
        # The number of panel turns that take as many calls as the gate.
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
        total_cost = "not every price is set" if None in costs else format_dollars(sum(filter(None, costs)))
        return "\n".join([*lines, f"all stages: {total_cost}"])

    def _find_shards(self, name: str) -> list[Path]:
        shards = sorted(self.find(name).glob("*.parquet"))
        if not shards or not (self.folder / REPORT).is_file():
            stage, options = name.removeprefix(AA), ", with trajectories and --records" if name == TURNS else ""
            raise SourceError(f"`{self.find(name)}` is not complete; run the stage `{stage}` first{options}.")
        return shards


def _ask_shard(
    path: Path, rows: int, stage: AnswerStage | JudgeStage, features: Features, desc: str
) -> Iterator[Piece]:
    source = Dataset(pq.read_table(path).slice(0, rows))
    result = map_rows(source, stage.run, features, in_flight=stage.chat.limits.concurrency, desc=desc)
    # A malformed answer is an error, but its call did not fail.
    reasons = result["drop_reason"] if "drop_reason" in features else ["error"] * len(result)
    errors = [(error, reason == "error") for error, reason in zip(result["error"], reasons, strict=True) if error]
    counts = {"errors": len(errors), "failed": sum(failed for _, failed in errors)}
    yield Piece(result.with_format("arrow")[:], rows, counts, errors[0][0] if errors else None)
