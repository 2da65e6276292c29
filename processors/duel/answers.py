"""Ask king and challenger for the next action of a turn, and check their answers.

The king does not see the pull request that solved the task; the challenger does, but must answer as
if it did not. The texts come from models, so every check takes time linear in the text.

reads   TURN, PULL_REQUEST
writes  ANSWER: one row per turn; a turn that cannot be judged has a `drop_reason`, one that was not
        answered an `error`
"""

import asyncio
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jinja2

from pimono_sdpo.llm.calls import Json, Reply, Request
from pimono_sdpo.llm.chat import Chat
from pimono_sdpo.llm.settings import Duel
from pimono_sdpo.shell import parse_command
from pimono_sdpo.text import shorten, strip_reasoning
from processors.judge import sanitize
from processors.salient_tokens import KINDS, MAX_LENGTH, find_tokens

Style = Literal["search", "read", "edit", "test", "run", "git", "submit", "other", "none"]

_FENCE = re.compile(r"^[ \t]*(```+)[ \t]*([\w+-]*)[ \t]*$", re.MULTILINE)
_SHELL_TAGS = frozenset({"bash", "sh", "shell", "mswea_bash_command"})
# Tool calls in a model's own tokens, some with full-width bars; this protocol does not allow them.
_TOKENS = re.compile(r"<\|[\w./-]{1,64}\|>|<\uff5c[\w\u2581]{1,64}\uff5c>|</?tool_call>|<function=|\[TOOL_CALLS\]")
_SUBMIT = ("COMPLETE_TASK_AND_SUBMIT", "MINI_SWE_AGENT_FINAL_OUTPUT")
_TESTS = re.compile(r"\b(?:pytest|py\.test|unittest|tox|nox|jest|vitest|mocha|rspec|phpunit|ctest)\b")
_TEST_VERBS = frozenset({"test", "t", "check"})
_BUILDERS = frozenset("npm pnpm yarn bun go cargo make mvn gradle dotnet mix sbt".split())
_PROGRAMS: dict[Style, str] = {
    "search": "grep rg egrep fgrep ag ack find fd ls tree locate",
    "read": "cat head tail less more nl wc awk bat jq sed",
    "edit": "patch apply_patch tee touch mkdir rm mv cp ed",
    "run": "python python3 node ruby perl php java bash sh",
    "git": "git",
}
_STYLES = {program: style for style, programs in _PROGRAMS.items() for program in programs.split()}
_PROMPTS = jinja2.Environment(
    loader=jinja2.DictLoader(tomllib.loads(Path(__file__).with_name("prompts.toml").read_text())),
    undefined=jinja2.StrictUndefined,
)


def prompt(name: str, **values: object) -> str:
    """Render a prompt; a missing value is an error."""
    return _PROMPTS.get_template(name).render(**values).strip()


def find_blocks(text: str) -> tuple[list[tuple[str, str]], bool]:
    """Return the fenced blocks as (tag, content), and whether the last one is not closed."""
    blocks: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif not fence[2] and len(fence[1]) >= len(opened[1]):
            blocks.append((opened[2].lower(), text[opened.end() + 1 : max(fence.start() - 1, 0)]))
            opened = None
    return blocks, opened is not None


def check_format(text: str) -> str | None:
    """Return why an answer is not a THOUGHT and one bash block, None if it is.

    >>> check_format("THOUGHT: look.\\n\\n```bash\\nls\\n```")
    >>> check_format("```bash\\nls\\n```")
    'no_thought'
    """
    if not text.strip():
        return "empty"
    if _TOKENS.search(text):
        return "special_tokens"
    blocks, unclosed = find_blocks(text)
    if unclosed:
        return "unclosed_block"
    commands = [content for tag, content in blocks if tag in _SHELL_TAGS]
    if len(commands) != 1:
        return "several_actions" if commands else "no_action"
    if not commands[0].strip():
        return "empty_action"
    before = text[: _FENCE.search(text).start()]  # type: ignore[union-attr]
    return None if before.replace("THOUGHT", "").strip(" \t\r\n:*#") else "no_thought"


def classify_action(text: str) -> Style:
    """Classify the only command of an answer by its programs.

    >>> classify_action("Look.\\n```bash\\ncd src && grep -rn flag . | head\\n```")
    'search'
    """
    commands = [content for tag, content in find_blocks(text)[0] if tag in _SHELL_TAGS]
    command = commands[0].strip() if len(commands) == 1 else ""
    if not command:
        return "none"
    if any(mark in command for mark in _SUBMIT):
        return "submit"
    styles: set[Style] = set()
    for first in (pipeline.stages[0] for pipeline in parse_command(command) if pipeline.stages):
        written = any(not target.startswith(("/dev/", "&")) for target in first.targets)
        styles.add("edit" if written else _classify_program(first.program, first.arguments))
    precedence: tuple[Style, ...] = ("test", "edit", "git", "run", "search", "read")
    return next((style for style in precedence if style in styles), "other")


def _classify_program(program: str, arguments: tuple[str, ...]) -> Style:
    if _TESTS.search(" ".join((program, *arguments[:4]))):
        return "test"
    if program in _BUILDERS:
        return "test" if _TEST_VERBS & {word.partition(":")[0] for word in arguments[:2]} else "run"
    in_place = any(word.startswith("-i") or word == "--in-place" for word in arguments)
    if (program in ("sed", "perl") and in_place) or (program, *arguments[:1]) == ("git", "apply"):
        return "edit"
    return _STYLES.get(program, "other")


Row = Mapping[str, Any]
# Characters of the hidden text: a third for the problem, the rest for the change.
HIDDEN_CHARS = 5_000
FILES_SHOWN = 40
# A malformed answer is drawn again: up to DRAWS draws per round, up to MOST_DRAWS in all rounds.
DRAWS, MOST_DRAWS = 2, 20
# Offset of the seeds of the second king in the A/A test.
OTHER_KING = 1_000


@dataclass(frozen=True)
class Answer:
    """An answer, the fault of its form if any, and all replies that were drawn."""

    text: str
    fault: str | None
    error: str | None
    replies: tuple[Reply, ...]


@dataclass(frozen=True)
class AnswerStage:
    """The players of a duel; with `aa_test`, the challenger is the king again."""

    chat: Chat
    players: Duel
    records: Mapping[str, Row]
    aa_test: bool = False
    round: int = 1

    async def run(self, turn: Row) -> list[Json]:
        """Answer a turn; never raises because of its content."""
        king_model = self.players.model
        challenger_model = king_model if self.aa_test else self.players.find_challenger()
        hidden = "" if self.aa_test else render_hidden(self.records[turn["instance_id"]])
        blind = informed = build_messages(turn["messages"])
        if hidden:
            # It comes last, so that the provider's prompt cache serves the rest.
            addition = prompt("hidden", privileged_context=hidden)
            last = {**blind[-1], "content": f"{blind[-1]['content']}\n\n{addition}"}
            informed = [*blind[:-1], last]
        king, challenger = await asyncio.gather(
            self._ask(king_model, blind, 0), self._ask(challenger_model, informed, OTHER_KING if self.aa_test else 0)
        )
        drop_reason, error = find_faults({"king": king, "challenger": challenger})
        visible = [message["content"] for message in turn["messages"]]
        row = {
            **turn,
            "king": king.text,
            "challenger": challenger.text,
            "king_ok": king.fault is None and king.error is None,
            "challenger_ok": challenger.fault is None and challenger.error is None,
            # Sanitized as for judges, because full-width letters spell the same names.
            "leaked_terms": find_leaks(sanitize(challenger.text), hidden, visible),
            "privileged_context": hidden,
            "king_model": king_model,
            "challenger_model": challenger_model,
            "usage": sum_usage((*king.replies, *challenger.replies)),
            "drop_reason": drop_reason,
            "error": error,
        }
        return [row]

    async def _ask(self, model: str, messages: Sequence[Json], first_draw: int) -> Answer:
        players, replies = self.players, []
        for draw in range(first_draw, first_draw + min(DRAWS * self.round, MOST_DRAWS)):
            request = Request(model, messages, temperature=players.temperature, max_tokens=players.max_tokens)
            reply = await self.chat.ask(replace(request, seed=players.seed + draw, sample=draw))
            replies.append(reply)
            text = strip_reasoning(reply.text)
            fault = "tool_call" if reply.tool_calls else check_format(text)
            if reply.error or fault is None:
                break
        return Answer(text, fault, reply.error, tuple(replies))


def find_faults(players: Mapping[str, Answer]) -> tuple[str | None, str | None]:
    """Return the `drop_reason` of a turn and its `error`, with which the next run asks it again, or None."""
    if error := next((player.error for player in players.values() if player.error), None):
        return "error", error
    faults = {name: player.fault for name, player in players.items() if player.fault}
    drop_reason = next((f"{name}_{fault}" for name, fault in faults.items()), None)
    for name, fault in faults.items():
        if len(players[name].replies) < MOST_DRAWS:
            return drop_reason, f"the {name}'s answer does not have the required form ({fault})"
    return drop_reason, None


def build_messages(messages: Sequence[Row]) -> list[Json]:
    """Return the recorded messages, with the rules for answers added to the system message."""
    turns = [{"role": message["role"], "content": message["content"]} for message in messages]
    system = turns.pop(0)["content"] + "\n\n" if turns and turns[0]["role"] == "system" else ""
    return [{"role": "system", "content": system + prompt("rules")}, *turns]


def render_hidden(record: Row) -> str:
    """Return a hidden record as text; long parts are shortened in the middle."""
    third = HIDDEN_CHARS // 3
    patch = record["patch"]
    return prompt(
        "pull_request",
        problem_statement=shorten(record["problem_statement"], third),
        files=record["files"][:FILES_SHOWN],
        description=shorten(record["description"], third // 2 if patch else 2 * third),
        patch=shorten(patch, third + third // 2),
    )


def sum_usage(replies: Sequence[Reply]) -> Json:
    """Return the tokens and cost in USD of calls; the cost is None if one of them has no price."""
    costs = [reply.cost for reply in replies if reply.error is None]
    return {
        "prompt_tokens": sum(reply.prompt_tokens for reply in replies),
        "completion_tokens": sum(reply.completion_tokens for reply in replies),
        "cost": None if None in costs else sum(filter(None, costs)),
    }


# Shorter terms occur in any two texts.
MIN_TERM = 4


def find_leaks(answer: str, hidden: str, visible: Iterable[str]) -> list[str]:
    """Return the terms of an answer that only the hidden text has, lower-cased and in order.

    Terms are file names, identifiers and codes: an agent that did not see the pull request could not
    use them. A visible term is not a leak, nor is a path whose last part is visible.

    >>> hidden = "--- a/src/flush_guard.py\\n+flush_pending_rows(buffer)"
    >>> find_leaks("Look at src/flush_guard.py", hidden, ["Rows are lost in src/parser.py"])
    ['src/flush_guard.py']
    >>> find_leaks("Look at src/flush_guard.py", hidden, ["$ ls src\\nflush_guard.py parser.py"])
    []
    """
    hidden, seen = hidden.lower(), "\n".join(visible).lower()
    tokens = (token for kind in KINDS for token in find_tokens(kind, answer))
    terms = dict.fromkeys(token.lower().strip("./@-") for token in tokens)
    known = [term for term in terms if MIN_TERM <= len(term) <= MAX_LENGTH and term in hidden]
    leaks = [term for term in known if term not in seen and term.rpartition("/")[2] not in seen]
    # Parts of another leak are not listed.
    longest = [term for term in leaks if not any(term != other and term in other for other in leaks)]
    return sorted(longest, key=answer.lower().find)
