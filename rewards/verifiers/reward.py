"""Use a rubric as a reward function of TRL, for SDPO and GRPO.

columns  verifier_spec (JSON text, or null for a row without one) / range 0 to 1, never None

TRL sums rewards with `nansum`, so SDPO would treat None as a failure. A completion without a verdict
(an `error`, no spec, only skipped verifiers) gets a neutral reward, which does not change the
advantages: the mean of its group, the completions of the same prompt and spec in this call. If its
group has no verdict, it gets the mean of the batch, at most MAX_PARTIAL, or NEUTRAL without any
verdict. Groups that are distributed over processes are averaged per process. Train with
`success_reward_threshold=1.0`: partial credit is not success.

`self_test` tries a reward on answers that must not win before a training uses it: empty answers,
copies, lists of terms, refusals.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from statistics import fmean
from typing import Any, NamedTuple

from pimono_sdpo.errors import TrainingInputError
from rewards.answers import Conversation, list_calls, text_of
from rewards.verifiers.rubric import MAX_PARTIAL, BadSpec, Rubric, RubricResult, error

Reward = Callable[..., Sequence[float | None]]
NEUTRAL = 0.5
MAX_CACHED = 20_000
NO_VERDICT = RubricResult(None, ())


class VerifierReward:
    """A picklable reward function; its cache and the results of the last call are not pickled.

    Verifiers get the text of a completion. `spec["tool_calls"]` are the calls of its messages, as TRL
    parsed them. `end_ids` are the tokens that end a turn, such as `generation_config.eos_token_id`; with
    them, `spec["truncated"]` is whether a completion lacks such a token.
    """

    def __init__(self, rubric: Rubric, end_ids: Collection[int] = (), workers: int = 4) -> None:
        self.__name__ = "verifier_reward"
        self.rubric = rubric
        self.end_ids = frozenset(end_ids)
        self.workers = workers
        self.results: list[RubricResult] = []
        self._cache: dict[str, RubricResult] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "results": [], "_cache": {}}

    def feedback(self) -> list[str | None]:
        """Return the feedback for the teacher on each completion of the last call, None where there is none."""
        return [result.feedback() or None for result in self.results]

    def __call__(
        self,
        prompts: Sequence[str | Conversation],
        completions: Sequence[str | Conversation],
        completion_ids: Sequence[Sequence[int]] | None = None,
        verifier_spec: Sequence[str | None] | None = None,
        tools: Sequence[Sequence[Any] | None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return a float for each completion; `tools` are those of a spec that names none.

        Raises TrainingInputError when the rows have no column `verifier_spec`, or when it is not a JSON
        object; an object that no verifier can use is an `error` and gets a neutral reward.
        """
        if verifier_spec is None:
            raise TrainingInputError(
                "The rows have no column `verifier_spec`; add it to the rows or train with another reward."
            )
        ids: Sequence[Sequence[int] | None] = completion_ids or [None] * len(completions)
        specs = [*map(add_tools, verifier_spec, tools or [None] * len(verifier_spec))]
        self.results = self._verify_all(list(map(self._prepare, completions, ids, specs)))
        groups = [json.dumps(row) for row in zip(prompts, verifier_spec, strict=True)]
        return [*_fill_neutral([result.reward for result in self.results], groups)]

    def _prepare(
        self, completion: str | Conversation, ids: Sequence[int] | None, spec: str | None
    ) -> tuple[str, str] | None:
        """Return text and spec of a completion, None without a spec."""
        if not spec:
            return None
        found = _decode_spec(spec)
        if not isinstance(completion, str):
            found["tool_calls"] = list_calls(completion)
        if ids and self.end_ids:
            found["truncated"] = ids[-1] not in self.end_ids
        return text_of(completion, "assistant"), json.dumps(found)

    def _verify(self, pair: tuple[str, str]) -> RubricResult:
        text, spec = pair
        try:
            return self.rubric(text, _decode_spec(spec))
        except BadSpec as exception:  # a single bad row counts neither for nor against the model
            return RubricResult(None, (error("spec", str(exception)),))

    def _verify_all(self, prepared: Sequence[tuple[str, str] | None]) -> list[RubricResult]:
        # Keys are hashes, because a cache of the texts would fill the memory.
        keys = [hashlib.sha256(json.dumps(pair).encode()).hexdigest() if pair else "" for pair in prepared]
        new = {key: pair for key, pair in zip(keys, prepared, strict=True) if pair and key not in self._cache}
        with ThreadPoolExecutor(self.workers) as pool:
            fresh = dict(zip(new, pool.map(self._verify, new.values()), strict=True))
        results: Mapping[str, RubricResult] = {"": NO_VERDICT, **self._cache, **fresh}
        # Errors are not cached: the same call may succeed later.
        cacheable = {key: result for key, result in fresh.items() if all(r.status != "error" for r in result.results)}
        self._cache = dict(list((self._cache | cacheable).items())[-MAX_CACHED:])
        return [results[key] for key in keys]


def _fill_neutral(rewards: Sequence[float | None], groups: Sequence[str]) -> list[float]:
    """Replace each None by the neutral reward of its group."""
    known: dict[str, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        known[group] += [] if reward is None else [reward]
    batch = [reward for reward in rewards if reward is not None]
    default = min(fmean(batch), MAX_PARTIAL) if batch else NEUTRAL
    means = {group: fmean(of_group) if of_group else default for group, of_group in known.items()}
    return [means[group] if reward is None else reward for reward, group in zip(rewards, groups, strict=True)]


def add_tools(spec: str | None, tools: Sequence[Any] | None) -> str | None:
    """Return a spec with the tools of its row, unless it has its own, as in rows of older versions."""
    return json.dumps({"tools": tools, **_decode_spec(spec)}) if spec and tools else spec


def _decode_spec(spec: str) -> dict[str, Any]:
    decoded: Any = None
    with suppress(TypeError, ValueError, RecursionError):  # users may write any value into the column
        decoded = json.loads(spec)
    if not isinstance(decoded, dict):
        raise TrainingInputError(
            f"A `verifier_spec` is not the JSON text of an object: {str(spec)[:80]!r}; write a dict with json.dumps."
        )
    return decoded


REPETITIONS = 10
REFUSALS = ("I'm sorry, but I can't help with that.", "I cannot fix this without more information.")


class Finding(NamedTuple):
    """A case that wins although it must not."""

    row: int
    case: str
    reward: float


def self_test(reward: Reward, rows: Sequence[Mapping[str, Any]], threshold: float = 1.0) -> list[Finding]:
    """Return the cases that win, none for a sound reward.

    `rows` are dataset rows with `prompt`. `threshold` is the trainer's `success_reward_threshold`. The
    reward is called with one case at a time, so that no case influences another.
    """
    findings = []
    for number, row in enumerate(rows):
        for case, text in attacks(row):
            score = _score(reward, row, text)
            if score is not None and score >= threshold:
                findings.append(Finding(number, case, score))
    return findings


def attacks(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of answers that must not win."""
    prompt = text_of(row["prompt"])
    context = row.get("privileged_context") or ""
    terms = [str(term) for term in row.get("reward_terms") or context.split()[:30]]
    yield "empty", ""
    yield "blank", " \n\t\n"
    yield "prompt_copy", prompt
    yield "context_copy", context
    yield "prompt_and_context_copy", f"{prompt}\n\n{context}"
    yield "term_list", ", ".join(terms)
    yield "term_lines", "\n".join(f"- {term}" for term in terms)
    yield from ((f"refusal_{number}", refusal) for number, refusal in enumerate(REFUSALS, 1))
    yield "ten_times_the_length", f"{prompt}\n{context}\n" * REPETITIONS
    spec = json.loads(row.get("verifier_spec") or "{}")
    files = spec.get("files") if isinstance(spec, dict) else None
    for path, text in list(files.items())[:1] if isinstance(files, dict) else []:
        # Answers that delete the code without a replacement.
        lines = text.splitlines()
        minus = "\n".join(f"-{line}" for line in lines)
        call = {"name": "write", "arguments": {"path": path, "content": ""}}
        diff = f"--- a/{path}\n+++ b/{path}\n@@ -1,{len(lines)} +0,0 @@\n{minus}\n"
        yield "code_deleted", "```python\npass\n```"
        yield "code_deleted_by_a_diff", diff
        yield "code_deleted_by_a_write", f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def _score(reward: Reward, row: Mapping[str, Any], completion: str) -> float | None:
    columns = {name: [value] for name, value in row.items() if name != "prompt"}
    is_chat = not isinstance(row["prompt"], str)
    answer: Any = [{"role": "assistant", "content": completion}] if is_chat else completion
    (score,) = reward(prompts=[row["prompt"]], completions=[answer], **columns)
    return score
