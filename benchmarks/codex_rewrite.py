"""Rewrite Codex sessions in the form of code mode, and count how much of them is found again.

    python -m benchmarks.codex_rewrite FOLDER [--out FOLDER]

rewrites the rollouts of FOLDER in which the model calls its tools directly: calls become scripts, often
several in one; commands, patches and results of MCP servers become completed items, messages are mirrored,
and the kinds of their contents are recorded. Then it reads, filters and cuts both forms into steps.
"""

import argparse
import json
import random
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from datasets import load_dataset
from typer.testing import CliRunner

from benchmarks.table import print_table
from pimono_sdpo.cli import app
from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.parse import match_results, read_trace
from processors.diagnostics import find_failures

Json = dict[str, Any]
VERSION = "0.159.3"
SHELLS = {"shell", "shell_command", "exec_command"}
HEAD = re.compile(r"(?:Chunk ID|Exit code|Wall time|Process exited with code)\b")
CODE = re.compile(r"^(?:Exit code:|Process exited with code) (-?\d+)\s*$", re.MULTILINE)
RUNNING = re.compile(r"^Process running with session ID (\d+)\s*$", re.MULTILINE)
ABORTED = "aborted by user"
SCRIPT = re.compile(
    r"\btools\.(?:exec_command|write_stdin|apply_patch|\w+__)|\btext\(|Script (?:completed|failed|error)\b"
)
SCRIPTS_TOGETHER = 3


def payload_of(line: Json) -> Json:
    payload = line.get("payload")
    return payload if isinstance(payload, dict) else {}


def may_be_rewritten(lines: list[Json]) -> bool:
    """Check for direct calls of a shell in lines of the form that is rewritten."""
    names = {payload_of(line).get("name") for line in lines}
    return bool(names & SHELLS) and "exec" not in names and any(line.get("type") == "session_meta" for line in lines)


class Rewriter:
    """Rewrites one session; `random` decides how its scripts are written."""

    def __init__(self, lines: list[Json], seed: str) -> None:
        self.lines, self.random = lines, random.Random(seed)
        payloads = [*map(payload_of, lines)]
        self.outputs = {one["call_id"]: one for one in payloads if str(one.get("type")).endswith("_call_output")}
        self.typed = {one["message"] for one in payloads if one.get("type") == "user_message" and one.get("message")}
        self.ends = {one.get("call_id"): one for one in payloads if one.get("type") == "mcp_tool_call_end"}
        # The command and the first output of each terminal.
        self.terminals: dict[str, tuple[str, str]] = {}
        self.time = ""

    def new_id(self) -> str:
        return f"exec-{UUID(int=self.random.getrandbits(128))}"

    def wrap(self, kind: str, payload: Json, **fields: Any) -> Json:
        return {"timestamp": self.time, "type": kind, "payload": payload, **fields}

    def complete(self, kind: str, item_id: str, **fields: Any) -> Json:
        item = {"type": kind, "id": item_id, **fields}
        return self.wrap("event_msg", {"type": "item_completed", "thread_id": "t", "turn_id": "t", "item": item})

    def rewrite(self) -> Iterator[Json]:
        group: list[Json] = []
        for line in self.lines:
            payload, kind = payload_of(line), str(payload_of(line).get("type"))
            self.time = line.get("timestamp") or self.time
            if kind in {"function_call", "custom_tool_call"} and payload.get("call_id") in self.outputs:
                group.append(payload)
            elif kind in {"function_call_output", "custom_tool_call_output"}:
                # The calls up to here were made together; some that follow may be written into the same script.
                answered = {one["call_id"] for one in group}
                if payload["call_id"] not in answered or self.random.randrange(SCRIPTS_TOGETHER):
                    yield from self.write_script(group)
                    group = []
            elif kind in {"reasoning", "agent_reasoning", "token_count", "patch_apply_end", "exec_command_end"}:
                if kind in {"reasoning", "token_count"}:
                    yield line
            elif kind != "mcp_tool_call_end":
                yield from self.write_script(group)
                group = []
                yield from self.rewrite_other(line, payload, kind)
        yield from self.write_script(group)

    def rewrite_other(self, line: Json, payload: Json, kind: str) -> Iterator[Json]:
        if line.get("type") == "session_meta":
            yield {**line, "payload": {**payload, "cli_version": VERSION, "history_mode": "paginated"}}
        elif kind == "user_message":
            content: list[Json] = [{"type": "text", "text": payload.get("message"), "text_elements": []}]
            yield self.complete("UserMessage", self.new_id(), content=content)
        elif kind == "agent_message":
            yield self.complete(
                "AgentMessage", self.new_id(), content=[{"type": "Text", "text": payload.get("message")}]
            )
        elif kind == "message" and payload.get("role") == "user" and self.typed:
            kinds = [self.name_kind(str(block.get("text", ""))) for block in payload["content"]]
            passed = {"turn_id": "t", "content_item_kinds": kinds}
            fields = {} if "user.text" in kinds else {"metadata": {"client_authored": False}}
            new = {**payload, "internal_chat_message_metadata_passthrough": passed}
            yield {**line, "payload": new, **fields}
        else:
            yield line

    def name_kind(self, text: str) -> str:
        if text.startswith("# AGENTS.md"):
            return "agents_md.instructions"
        if text.startswith("<environment_context>"):
            return "environments.environment_context"
        return "user.text" if any(text.strip() in typed or typed in text for typed in self.typed) else "unknown"

    def write_script(self, group: list[Json]) -> Iterator[Json]:
        """Write the calls as a script: its source, the items of what it ran, and what it printed."""
        group = [call for call in group if call["call_id"] in self.outputs]
        if not group:
            return
        sources, items, printed = [], list[Json](), list[str]()
        error = ""
        for number, call in enumerate(group):
            source, item, text, broke = self.write_call(call, f"r{number}")
            sources.append(source)
            items += [item] if item else []
            if broke:
                error = text
                break
            printed.append(text)
        rest = group[len(sources) :] if error else []
        call_id = group[0]["call_id"]
        yield self.wrap(
            "response_item",
            {"type": "custom_tool_call", "call_id": call_id, "name": "exec", "input": "\n".join(sources)},
        )
        # Calls that run at the same time end in any order.
        yield from self.random.sample(items, len(items))
        status = "failed" if error else "completed"
        texts = [f"Script {status}\nWall time 0.1 seconds\nOutput:\n", *printed]
        texts += [f"Script error:\n{error}"] if error else []
        output: Any = [{"type": "input_text", "text": text} for text in texts]
        if error.startswith(ABORTED):
            output = error
        yield self.wrap("response_item", {"type": "custom_tool_call_output", "call_id": call_id, "output": output})
        yield from self.write_script(rest)

    def write_call(self, call: Json, name: str) -> tuple[str, Json | None, str, bool]:
        """Return the JavaScript of a call, its item, what the script prints, and whether it broke off there."""
        text = read_output(self.outputs[call["call_id"]].get("output"))
        tool = str(call["name"])
        if tool == "apply_patch":
            return self.write_patch(str(call.get("input")), text)
        arguments: Any = json.loads(call["arguments"]) if call.get("arguments") else call.get("input")
        if tool in SHELLS:
            return self.write_command(arguments, text, name)
        if tool == "write_stdin":
            return self.write_stdin(arguments, text, name)
        if call.get("namespace"):
            tool = f"{call['namespace'].rstrip('_')}__{tool}"
        source = f"text(await tools.{tool}({json.dumps(arguments)}));"
        server, _, named = tool.removeprefix("mcp__").partition("__")
        if not tool.startswith("mcp__"):
            return source, None, text, False
        ended = self.ends.get(call["call_id"], {}).get("result") or {
            "Ok": {"content": [{"type": "text", "text": text}]}
        }
        failed = {"message": ended["Err"]} if "Err" in ended else None
        fields = {"server": server, "tool": named, "arguments": arguments, "result": ended.get("Ok"), "error": failed}
        status = "failed" if failed else "completed"
        return source, self.complete("McpToolCall", self.new_id(), status=status, **fields), text, False

    def write_command(self, arguments: Json, text: str, name: str) -> tuple[str, Json | None, str, bool]:
        given: Any = arguments.get("cmd", arguments.get("command"))
        is_wrapped = isinstance(given, list) and given[-2:-1] and given[-2] in {"-lc", "-c", "-Command"}
        line = given if isinstance(given, str) else given[-1] if is_wrapped else shlex.join(given)
        code, running, body = split_output(text)
        options = {key: value for key, value in arguments.items() if key in {"workdir", "yield_time_ms"}}
        source = self.vary(f"tools.exec_command({self.write_object({'cmd': line, **options})})", name, code)
        if running:
            self.terminals[running] = (line, body)
            shown = {"chunk_id": "1", "wall_time_seconds": 1, "session_id": int(running), "output": body}
            return f"const {name} = await {source[1]};\ntext(JSON.stringify({name}));", None, json.dumps(shown), False
        if code is None:
            return f"const {name} = await {source[1]};\ntext({name}.output);", None, text, True
        return source[0], self.end_command(line, code, body, self.new_terminal()), source[2](body), False

    def write_stdin(self, arguments: Json, text: str, name: str) -> tuple[str, Json | None, str, bool]:
        code, _, body = split_output(text)
        terminal = str(arguments.get("session_id"))
        source = f"const {name} = await tools.write_stdin({self.write_object(arguments)});\ntext({name}.output);"
        begun = self.terminals.get(terminal)
        if begun is None or code is None:
            return source, None, body, False
        del self.terminals[terminal]
        return source, self.end_command(begun[0], code, begun[1] + body, terminal), body, False

    def new_terminal(self) -> str:
        return str(self.random.randrange(1000, 99999))

    def end_command(self, line: str, code: int, body: str, terminal: str) -> Json:
        command, status = ["/bin/zsh", "-lc", line], "failed" if code else "completed"
        fields = {"command": command, "process_id": terminal, "source": "unified_exec_startup", "status": status}
        return self.complete("CommandExecution", self.new_id(), aggregated_output=body, exit_code=code, **fields)

    def write_object(self, value: Json) -> str:
        """Write an object as models do: as JSON, with bare keys, or with a template."""
        style = self.random.randrange(3)
        if not style:
            return json.dumps(value)
        texts = {key: json.dumps(one) for key, one in value.items()}
        if style == 1:
            quoted = {
                key: str(one).replace("\\", "\\\\").replace("`", "\\`").replace("$", "\\$")
                for key, one in value.items()
            }
            texts = {key: f"`{quoted[key]}`" if isinstance(value[key], str) else text for key, text in texts.items()}
        return "{" + ", ".join(f"{key}: {text}" for key, text in texts.items()) + "}"

    def vary(self, call: str, name: str, code: int | None) -> tuple[str, str, Callable[[str], str]]:
        """Return a script around a call, the call, and a function from its output to what the script prints."""
        style = self.random.randrange(4)
        if style == 0:
            return f"for (const go of [1]) text((await {call}).output);", call, str
        if style == 1:
            fields = {"chunk_id": "1", "wall_time_seconds": 0.1, "exit_code": code}
            return (
                f"const {name} = await {call};\ntext(JSON.stringify({name}));",
                call,
                lambda body: json.dumps({**fields, "output": body}),
            )
        if style == 2:
            return f"text((await {call}).output.slice(0, 900));", call, lambda body: body[:900]
        return f"const {name} = await {call};\ntext({name}.output);", call, str

    def write_patch(self, patch: str, text: str) -> tuple[str, Json | None, str, bool]:
        code, _, body = split_output(text)
        source = f"const patch = {json.dumps(patch)};\ntext(await tools.apply_patch(patch));"
        if code is None or code:
            return source, None, body, True
        fields = {"status": "completed", "auto_approved": True, "stdout": body, "stderr": ""}
        return source, self.complete("FileChange", self.new_id(), changes=list_changes(patch), **fields), "{}", False


def read_output(output: Any) -> str:
    """Return the text of an output: text, JSON in a text, or a list of texts."""
    if isinstance(output, list):
        return "\n".join(str(block.get("text", "")) for block in output)
    if isinstance(output, dict):
        return str(output.get("content") or output.get("output") or "")
    return str(output)


def split_output(text: str) -> tuple[int | None, str, str]:
    """Return exit code, the terminal of a command that goes on, and the output of a command."""
    if text.startswith('{"output"'):
        fields = json.loads(text)
        return (fields.get("metadata") or {}).get("exit_code"), "", fields["output"]
    head, separator, body = text.partition("Output:\n")
    if not separator or not HEAD.search(head):
        return None, "", text
    code, running = CODE.search(head), RUNNING.search(head)
    return int(code[1]) if code else None, running[1] if running else "", body


def list_changes(patch: str) -> Json:
    """Return the changes that a patch makes, as its item lists them."""
    changes: Json = {}
    for part in re.split(r"(?m)^(?=\*\*\* (?:Add|Update|Delete) File: )", patch)[1:]:
        head, _, body = part.partition("\n")
        kind, path = re.fullmatch(r"\*\*\* (\w+) File: (.*)", head.rstrip("\r")).groups()  # type: ignore[union-attr]
        lines = [line for line in body.split("\n") if not line.startswith("*** ")]
        if kind == "Update":
            move = re.search(r"(?m)^\*\*\* Move to: (.*)", body)
            changes[path] = {
                "type": "update",
                "unified_diff": "\n".join(lines),
                "move_path": move[1] if move else None,
            }
        else:
            content = "\n".join(line[1:] for line in lines)
            changes[path] = {"type": kind.lower(), "content": content}
    return changes


def find_files(arguments: str) -> tuple[str, ...]:
    return tuple(sorted(re.findall(r"\*\*\* (?:Add|Update|Delete) File: ([^\\\"\n]+)", arguments)))


def count_found(events: tuple[Event, ...]) -> dict[str, Counter[Any]]:
    """Count what is compared: commands, edits, exit codes, errors and failures."""
    found: dict[str, Counter[Any]] = {name: Counter() for name in MEASURES}
    for call, at in match_results(events).items():
        called, result = events[call], events[at]
        if called.tool_name == "bash":
            line = json.loads(called.arguments).get("command")
            found["commands"][line] += 1
            if result.exit_code is not None:
                found["exit codes"][line, result.exit_code] += 1
        if called.tool_name == "edit":
            found["edits"][find_files(called.arguments)] += 1
        if result.is_error:
            found["errors"][called.tool_name, find_files(called.arguments)] += 1
    for failure in find_failures(events):
        target = find_files(failure["target"]) or re.sub(r"\s", "", failure["target"])
        found["failures"][failure["tool"], target] += 1
        found["their categories"][failure["tool"], target, *failure["categories"]] += 1
    return found


MEASURES = ("commands", "edits", "exit codes", "errors", "failures", "their categories")


def run(*words: object) -> None:
    done = CliRunner().invoke(app, [*map(str, words)])
    assert not done.exit_code, done.output


def load_rows(folder: Path) -> list[Json]:
    files = [str(path) for path in sorted((folder / "data").glob("*.parquet"))]
    return [*load_dataset("parquet", data_files=files, split="train")]


def compare_rows(work: Path) -> list[list[str]]:
    """Filter both forms, and cut them into steps."""
    table, failed = list[list[str]](), dict[str, Counter[Any]]()
    for form in ("old", "new"):
        run("filter", work / form, "--out", work / f"{form}-rows", "--min-worth", 0, "--no-dedupe")
        run("steps", work / form, "--out", work / f"{form}-steps")
    old, new = (load_rows(work / f"{form}-rows") for form in ("old", "new"))
    shown = [
        [bool(SCRIPT.search(json.dumps([row["prompt"], row["privileged_context"]]))) for row in rows]
        for rows in (old, new)
    ]
    texts = [row["privileged_context"] for row in old], [row["privileged_context"] for row in new]
    table.append(["rows", str(len(old)), str(len(new)), ""])
    for name, sign in (("diagnostics", "diagnostic "), ("resolved", "Resolved by")):
        counts = [sum(text.count(sign) for text in form) for form in texts]
        table.append([name, *map(str, counts), ""])
    table.append(["rows with words of a script", *(str(sum(form)) for form in shown), ""])
    for form in ("old", "new"):
        targets: Counter[Any] = Counter()
        for row in load_rows(work / f"{form}-steps"):
            for turn in row["completion"]:
                for call in turn["tool_calls"] or ():
                    arguments = call["function"]["arguments"]
                    given = json.dumps(arguments) if not isinstance(arguments, str) else arguments
                    command = arguments.get("command") if isinstance(arguments, dict) else ""
                    targets[row["task_id"], call["function"]["name"], command or find_files(given)] += 1
        failed[form] = targets
    table.append(["calls learnt by steps", str(failed["old"].total()), str(failed["new"].total()), ""])
    only_failed = Counter(list_only_failed(work / "old"))
    learnt = sum(failed["new"][call] > 0 for call in only_failed)
    table.append(["failed calls", str(len(only_failed)), str(learnt), "learnt in the new form"])
    return table


def list_only_failed(folder: Path) -> Iterator[tuple[str, str, Any]]:
    """Yield session, tool and command of the calls that failed each time that they were made."""
    for path in sorted(folder.glob("*.jsonl")):
        trace = read_trace(path.read_bytes())
        ended: dict[tuple[str, str, Any], set[bool]] = {}
        for call, at in match_results(trace.events).items():
            called = trace.events[call]
            arguments = json.loads(called.arguments)
            target = arguments.get("command") or find_files(called.arguments)
            ended.setdefault((trace.session_id, called.tool_name, target), set()).add(trace.events[at].is_error)
        yield from (call for call, errors in ended.items() if errors == {True} and call[1] in {"bash", "edit"})


def main() -> None:
    """Rewrite the sessions of a folder and print what is found again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="keep both forms here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = given.out or Path(temporary)
        totals = {name: Counter[str]() for name in MEASURES}
        sessions = 0
        for path in sorted(given.folder.rglob("*.jsonl")):
            lines = [json.loads(line) for line in path.read_text(errors="replace").splitlines() if line.strip()]
            if not may_be_rewritten(lines):
                continue
            sessions += 1
            texts = {"old": lines, "new": [*Rewriter(lines, path.name).rewrite()]}
            found = {}
            for form, written in texts.items():
                (work / form).mkdir(exist_ok=True, parents=True)
                text = "".join(json.dumps(line) + "\n" for line in written)
                (work / form / path.name).write_text(text)
                found[form] = count_found(read_trace(text).events)
            for name in MEASURES:
                old, new = found["old"][name], found["new"][name]
                totals[name].update(old=old.total(), new=new.total(), again=(old & new).total())
        table = [
            [name, str(of["old"]), str(of["new"]), f"{of['again'] / max(of['old'], 1):.2%}"]
            for name, of in totals.items()
        ]
        print(f"{sessions} sessions")
        print_table([["", "old", "new", "found again"], *table, *compare_rows(work)])


if __name__ == "__main__":
    main()
