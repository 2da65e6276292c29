"""Find failures masked by a successful exit status, which a chain or a pipe has overwritten."""

import re

from pimono_sdpo.failures import SAYS_PASSED, classify, may_fail
from pimono_sdpo.shell import Pipeline, Stage, loses_status, parse_command

TAIL_LINES = 15
SCRIPT_TAIL_LINES = 6
TAIL_CHARS = 40_000
_TIMED_OUT = re.compile(r"(?:Error: )?Command timed out after \d")
_CODE_LINE = re.compile(
    r"\W{0,8}(?:[a-z]{1,12}[ _-])?(?:exit|rc|status|code|ret)[a-z]{0,8}(?:[ _-]code)?\W{1,4}"
    r"[1-9]\d{0,2}\W{0,8}",
    re.IGNORECASE,
)
_SCRIPTED = re.compile(r"(?:python|node|ruby|perl|php|bun|deno|tsx|ts-node|osascript)[\d.]*")
_PRINTS_TEXT = re.compile(
    r"(?:\A|[-_.])(?:read|fetch|search|get|show|view|browse|scrape|query|list|print|dump|logs?"
    r"|extract|content|crawl|find)(?:[-_.]|\Z)"
)
IS_CHECK = re.compile(r"test|spec|check|lint|build|compile|tsc|verify", re.IGNORECASE)
_CHECKED = frozenset({"test_or_assertion", "build_lint_compile"})
SIGNATURE = _CHECKED | {"runtime_exception", "command_error"}
_COMPLAINED = frozenset({"missing_file_or_command", "permission_auth"})
_SUSPICIOUS = SIGNATURE | _COMPLAINED
_CHANGERS = frozenset("cp mv rm mkdir chmod chown ln touch".split())
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "-bash"})
_IN_SCRIPT = re.compile(r" (?:line )?\d{1,6}: ")
NOT_OF_A_COMMAND = frozenset({"policy_block", "tool_schema_validation"})


def may_mask_failure(command: str, text: str) -> bool:
    """Return, without parsing the command, whether it may mask a failure.

    `command` may also be the JSON that contains it.
    """
    if "$?" in command or "PIPESTATUS" in command:
        return True
    tail = "\n".join(text[-TAIL_CHARS:].rsplit("\n", 2 * TAIL_LINES)[-2 * TAIL_LINES :])
    return "timed out" in tail or "not found" in tail or may_fail(tail, _SUSPICIOUS)


def find_masked_failures(command: str, text: str) -> set[str]:
    """Return the categories of a failure of a command whose exit status reports success."""
    # A line of the command itself was echoed.
    lines = [line for line in _take_last_lines(text) if line.strip() not in command]
    asks = "$?" in command or "PIPESTATUS" in command
    said = classify("\n".join(lines))
    if not lines or not (asks or _is_suspicious(lines, said)):
        return set()
    pipelines = parse_command(command)
    stages = [stage for pipeline in pipelines for stage in pipeline.stages]
    if _TIMED_OUT.match(text) or (_TIMED_OUT.match(lines[-1]) and find_last_role(stages) == "runs"):
        return {"command_error"}
    if any("not found" in line and _is_missing(line, stages) for line in lines):
        return {"missing_file_or_command"}
    at = _find_last_speaker(pipelines)
    if at is None or not loses_status(pipelines, *at):
        return _classify_complaints(lines[-3:], pipelines)
    stage = pipelines[at[0]].stages[at[1]]
    told = {"command_error"} if asks and any(map(_CODE_LINE.fullmatch, lines[-3:])) else set()
    signature = SIGNATURE
    prints_text = _SCRIPTED.fullmatch(stage.program) or _PRINTS_TEXT.search(stage.program)
    if prints_text and not IS_CHECK.search(" ".join(stage.arguments)[:200]):
        # Its output may be any text; only the end of it may be its own error.
        lines, signature = lines[-SCRIPT_TAIL_LINES:], frozenset({"runtime_exception"})
        said = classify("\n".join(lines))
    found = set(said) - NOT_OF_A_COMMAND
    if not found & signature:
        return told
    is_provoked = not found & (_CHECKED | {"command_error"}) and SAYS_PASSED.search(
        "\n".join(lines)
    )
    return told if is_provoked else found | told


def _take_last_lines(text: str) -> list[str]:
    lines = text[-TAIL_CHARS:].rsplit("\n", 2 * TAIL_LINES)
    filled = [line for line in lines[1:] if line.strip()]
    if len(filled) < TAIL_LINES:
        filled = [line for line in text[-TAIL_CHARS:].split("\n") if line.strip()]
    return filled[-TAIL_LINES:]


def _is_suspicious(lines: list[str], said: list[str]) -> bool:
    """Return, without parsing the command, whether the last lines may show a failure."""
    if any("timed out" in line or "not found" in line for line in lines):
        return True
    return not _SUSPICIOUS.isdisjoint(said)


def _is_missing(line: str, stages: list[Stage]) -> bool:
    """Check for a complaint of the shell about a program of this command, or in its script."""
    said, _, rest = line.partition(":")
    words = set(re.split(r"[:\s]+", rest))
    if said.rsplit("/", 1)[-1] in _SHELLS:
        return any(stage.program in words for stage in stages)
    script = said.removeprefix("./")
    ran = {word.removeprefix("./") for s in stages for word in (s.program, *s.arguments)}
    return script in ran and bool(_IN_SCRIPT.match(rest))


def _classify_complaints(lines: list[str], pipelines: list[Pipeline]) -> set[str]:
    """Classify the complaints of programs that are silent on success, unlike those that print."""
    found: set[str] = set()
    for at, pipeline in enumerate(pipelines):
        for number, stage in enumerate(pipeline.stages):
            if stage.program not in _CHANGERS or not loses_status(pipelines, at, number):
                continue
            own = (line for line in lines if line.startswith(f"{stage.program}: "))
            found.update(name for line in own for name in classify(line))
    return found & _COMPLAINED


def _find_last_speaker(pipelines: list[Pipeline]) -> tuple[int, int] | None:
    """Return the position of the program that printed the end of the output, None for a reader."""
    for at in range(len(pipelines) - 1, -1, -1):
        stages = pipelines[at].stages
        for number in range(len(stages) - 1, -1, -1):
            if stages[number].role == "runs":
                return at, number
        if stages[0].role != "quiet":
            return _find_writer(pipelines[:at], stages[0])
    return None


def _find_writer(pipelines: list[Pipeline], reader: Stage) -> tuple[int, int] | None:
    """Return the position of the program whose redirected output a viewer shows."""
    for at in range(len(pipelines) - 1, -1, -1):
        for number, stage in enumerate(pipelines[at].stages):
            wrote = {file for part in pipelines[at].stages[number:] for file in part.targets}
            if stage.role == "runs" and wrote & set(reader.arguments):
                return at, number
    return None


def find_last_role(stages: list[Stage]) -> str:
    """Role of the program whose status counts; what is quiet does not fail."""
    return next((stage.role for stage in reversed(stages) if stage.role != "quiet"), "quiet")
