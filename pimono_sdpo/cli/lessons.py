"""List mistakes that recur in sessions, and write rules from them.

pimono-sdpo lessons claude --out lessons
pimono-sdpo lessons claude --out lessons --accept 1,3
pimono-sdpo lessons codex pi --out lessons --judge Qwen/Qwen3-8B

Each lesson says what went wrong, in how many sessions, what it cost and what resolved it, with the places in the
sessions. Nothing is written but the folder: copy the file of accepted lines into your project yourself.
"""

import json
import re
from pathlib import Path
from typing import Any, Literal

import typer

from pimono_sdpo.errors import OutputError, SourceError
from pimono_sdpo.options import option, options
from pimono_sdpo.runs.folders import writing
from pimono_sdpo.session_options import SourceOptions

FILES = {"claude": "CLAUDE.md", "codex": "AGENTS.md", "pi": "AGENTS.md"}
QUESTION = """\
The parts show a mistake that a coding agent makes again and again, and what worked. Write one short rule in plain \
English that keeps the agent from the mistake, such as "Run the Go tests in the folder of the module". Write only \
the rule."""
LISTED = "lessons.md"
Json = dict[str, Any]


@options
class Options(SourceOptions):
    """Options of `lessons`."""

    out: Path = option("Folder for lessons.md, lessons.json and the file of accepted lines.")
    accept: str | None = option(
        "Numbers of the lessons to accept, such as 1,3, or `all`; their lines are written to a file in OUT.",
        default=None,
        shown="none",
    )
    agent: Literal["claude", "codex", "pi"] = option(
        "Whose file of instructions to write: CLAUDE.md for claude, AGENTS.md for codex and pi.", default="claude"
    )
    judge: str | None = option(
        "Chat model that words the lessons; redacted examples are sent to its provider.",
        default=None,
        shown="worded offline",
    )
    judge_provider: str = option(
        "Provider of --judge: hf, together, openai, chutes or the URL of a server.", default="hf"
    )
    keep_identity: bool = option("Keep the user and host names of the person who recorded a session.", default=False)


def run(options: Options) -> None:
    """Find the lessons, list them and write those that were accepted."""
    from pimono_sdpo.lessons import find_lessons
    from pimono_sdpo.source_options import open_sessions

    if options.judge:
        from pimono_sdpo.llm.settings import find_endpoint

        destination = find_endpoint(options.judge_provider).destination
        typer.echo(f"redacted texts for the judge are sent to {destination}")
    source = open_sessions(options, options.out)
    lessons = [one.describe() for one in find_lessons(source, None if options.keep_identity else source.recorder)]
    if not lessons:
        raise SourceError(f"`{source.name}` has no mistake or correction that recurs; give more sessions.")
    if options.judge:
        _word(lessons, options.judge, options.judge_provider)
    accepted = _read_numbers(options.accept, len(lessons))
    with writing(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "lessons.json").write_text(json.dumps(lessons, indent=1, ensure_ascii=False) + "\n", "utf-8")
        (options.out / LISTED).write_text(render(lessons), "utf-8")
        if accepted:
            name = FILES[options.agent]
            lines = [f"- {lessons[number - 1]['line']}" for number in accepted]
            (options.out / name).write_text("\n".join(dict.fromkeys(lines)) + "\n", "utf-8")
    typer.echo(summarize(lessons))
    typer.echo(f"the places are in {options.out / LISTED}")
    if accepted:
        typer.echo(f"{len(accepted)} accepted: copy {options.out / FILES[options.agent]} into your project")
    else:
        typer.echo("accept lines with --accept 1,2")


def _read_numbers(accept: str | None, count: int) -> list[int]:
    if accept is None:
        return []
    if accept == "all":
        return list(range(1, count + 1))
    numbers = [int(word) for word in accept.split(",") if re.fullmatch(r"[0-9]{1,6}", word.strip())]
    if len(numbers) != len(accept.split(",")) or not all(1 <= number <= count for number in numbers):
        raise OutputError(f"--accept `{accept}` is not a list of numbers from 1 to {count}, such as 1,3.")
    return numbers


def _word(lessons: list[Json], model: str, provider: str) -> None:
    """Replace the line of each lesson by that of a chat model, if it answers with one."""
    from pimono_sdpo.text import shorten_line
    from processors.judge import Judge, frame, strip_drafts

    shown = ("said", "tried", "instead")
    questions = []
    for lesson in lessons:
        examples = enumerate(lesson["examples"])
        questions.append(frame(QUESTION, {f"{name}_{n}": one[name] for n, one in examples for name in shown}))
    answers = Judge(model, provider).ask(questions, lambda text: shorten_line(strip_drafts(text), 300) or None)
    for lesson, answer in zip(lessons, answers, strict=True):
        lesson["line"] = answer or lesson["line"]


def summarize(lessons: list[Json]) -> str:
    """Return one line for each lesson, with what it cost."""
    lines = []
    for number, one in enumerate(lessons, 1):
        lines += [f"{number:>3}  {one['line']}", f"     {describe_cost(one)}"]
    return "\n".join(lines)


def describe_cost(lesson: Json) -> str:
    """Return in how many sessions a mistake was made, and what it cost."""
    spent = f"{lesson['calls']} calls, {lesson['tokens']:,} tokens, {lesson['minutes']:g} min"
    return f"{lesson['sessions']} sessions, {spent}"


def render(lessons: list[Json]) -> str:
    """Return the lessons as Markdown with the places at which they occurred."""
    parts = ["# Lessons", ""]
    for number, one in enumerate(lessons, 1):
        parts += [f"## {number}. {one['line']}", ""]
        parts += [f"{one['kind']}: {one['mistake']}", ""]
        parts += [f"{one['times']} times. Cost: {describe_cost(one)}.", ""]
        for example in one["examples"]:
            parts += [f"- `{example['source']}`, event {example['event']}: {example['said']}"]
            parts += [f"  - tried: `{' '.join(example['tried'].split())}`"] if example["tried"] else []
            worked = example["instead"] or example["resolved_by"]
            parts += [f"  - worked: `{' '.join(worked.split())}`"] if worked else []
        parts.append("")
    return "\n".join(parts)
