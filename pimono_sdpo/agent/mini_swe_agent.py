"""Run mini-swe-agent, from its package, on a task; its commands run in the sandbox.

Prompts and output limits come from its `mini.yaml`. Every command starts with the files that the
previous command left, without hidden ones. Its output is stored in the journal, so that a repeated
run shows the model the same text.
"""

import asyncio
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import yaml

# Without it, the package prints a banner.
os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.exceptions import FormatError
from minisweagent.models.utils.actions_toolcall import (
    BASH_TOOL,
    format_toolcall_observation_messages,
    parse_toolcall_actions,
)

from pimono_sdpo.agent.driver import RunRules
from pimono_sdpo.agent.imported_runs import make_rollout
from pimono_sdpo.agent.task_tests import TaskResult, TaskTests, hash_repo, list_repo, make_limits, stabilize
from pimono_sdpo.agent.tools import unified_diff
from pimono_sdpo.errors import InferenceError
from pimono_sdpo.llm.calls import Json, Reply, Request
from pimono_sdpo.llm.chat import Chat
from pimono_sdpo.suites.suite import decode_text, has_tests, is_hidden
from pimono_sdpo.text import replace_surrogates
from pimono_sdpo.traces.harness.simple import encode_session
from pimono_sdpo.traces.trajectories.swe_agent import read_trajectory
from processors.duel.answers import sum_usage
from rewards import sandbox
from rewards.sandbox import SandboxError

STATE = ".state.tar"
# The files are packed in the sandbox, after the command has run there.
SCRIPT = (
    f'bash -c "$1" 2>&1; code=$?; tar --hard-dereference --exclude=./{STATE} -cf {STATE} . 2>/dev/null; exit $code'
)
ENDED = {"LimitsExceeded": "max_iters", "RepeatedFormatError": "parse_errors"}
CONFIG = yaml.safe_load((builtin_config_dir / "mini.yaml").read_text(encoding="utf-8"))
Ask = Callable[[list[Json]], Reply]


class Model:
    """The model interface of mini-swe-agent, on top of our chat client."""

    format_message = dict

    def __init__(self, name: str, ask: Ask) -> None:
        self.config = SimpleNamespace(model_name=name)
        self.ask = ask
        self.replies: list[Reply] = []
        self.parse_errors = 0
        self.is_cancelled = False

    def query(self, messages: list[Json], **_: Any) -> Json:
        """Return the model's next message with its commands; raises FormatError."""
        sent = [{key: turn[key] for key in turn if key != "extra"} for turn in messages]
        reply = Reply(error="cancelled") if self.is_cancelled else self.ask(sent)
        if reply.error is not None:
            raise InferenceError(reply.error)
        self.replies.append(reply)
        calls = [
            SimpleNamespace(id=call["id"], function=SimpleNamespace(**call["function"])) for call in reply.tool_calls
        ]
        try:
            actions = parse_toolcall_actions(
                calls,
                format_error_template=CONFIG["model"]["format_error_template"],
                template_kwargs={"finish_reason": reply.finish_reason},
            )
        except FormatError:
            self.parse_errors += 1
            raise
        message = {"role": "assistant", "content": reply.text, "tool_calls": [*reply.tool_calls]}
        return {**message, "extra": {"actions": actions}}

    def format_observation_messages(
        self, message: Json, outputs: list[Json], template_vars: Json | None = None
    ) -> list[Json]:
        """Return the outputs of commands as messages."""
        observations: list[Json] = format_toolcall_observation_messages(
            actions=message["extra"]["actions"],
            outputs=outputs,
            observation_template=CONFIG["model"]["observation_template"],
            template_vars=template_vars,
        )
        return observations

    def get_template_vars(self, **_: Any) -> Json:
        """Return the variables of prompts about the model."""
        return {"model_name": self.config.model_name}

    def serialize(self) -> Json:
        """Return the part of a trajectory that names the model."""
        return {"info": {"config": {"model": self.get_template_vars()}}}


class Environment(LocalEnvironment):  # type: ignore[misc]
    """The files of a task, and commands in the sandbox."""

    def __init__(self, task: Mapping[str, Any], run_id: str, tester: TaskTests) -> None:
        super().__init__()
        self.task, self.tester = task, tester
        repo = list_repo(task["repo"], tuple(task["hide"]))
        self.before = {path: file.read_bytes() for path, file in repo.items()}
        self.files = dict(self.before)
        self.key = run_id + hash_repo(task)

    def execute(self, action: Json, cwd: str = "", *, timeout: int | None = None) -> Json:
        """Run a command; raises Submitted if it prints that the task is complete."""
        command = replace_surrogates(str(action["command"])).replace("\0", "")
        environment = {**CONFIG["environment"]["env"], "PYTHONDONTWRITEBYTECODE": "1"}
        ran = sandbox.run(
            ["bash", "-c", SCRIPT, "bash", command],
            files=self.files, limits=make_limits(self.config.timeout, self.files), collect=[STATE], env=environment,
        )  # fmt: skip
        text = stabilize(replace_surrogates(ran.stdout.decode(errors="replace")))
        packed = ran.files.get(STATE)
        lost = f"The files that the command left are lost: it reached the limit of {ran.stopped or 'size'}."
        result: Json = {
            "output": text,
            "returncode": -1 if ran.exit_code is None else ran.exit_code,
            "exception_info": lost if packed is None else "",
        }
        self.files = self._unpack(packed or b"")
        # The key identifies a sequence of commands; the first output of a sequence is the one that counts.
        self.key = hashlib.sha256(f"{self.key}\0{command}".encode()).hexdigest()
        if self.tester.store is not None:
            stored = TaskResult(True, json.dumps(result))
            result = json.loads(self.tester.store.put(self.key, stored).output)
        self._check_finished(result)
        return result

    def _unpack(self, packed: bytes) -> dict[str, bytes]:
        """Return the packed files, or the previous files if they cannot be read."""
        files: dict[str, bytes] = {}
        try:
            with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
                for member in tar:
                    path = member.name.removeprefix("./")
                    parts = PurePosixPath(path).parts
                    if not member.isreg() or member.issparse() or {"..", "/"} & {*parts}:
                        continue
                    stored = tar.extractfile(member)
                    # Rows cannot store names that are not UTF-8.
                    if stored and replace_surrogates(path) == path:
                        files[path] = stored.read()
        except tarfile.TarError:
            return self.files
        return {path: content for path, content in sorted(files.items()) if not is_hidden(path, self.task["hide"])}

    def changed(self) -> dict[str, bytes | None]:
        """Return the changed files by path, None for a removed file."""
        return {
            path: self.files.get(path)
            for path in sorted({*self.before, *self.files})
            if self.before.get(path) != self.files.get(path)
        }

    def get_template_vars(self, **_: Any) -> Json:
        """Return the variables of prompts about the system, which are the same on every machine."""
        return {"system": "Linux", "release": "", "version": "", "machine": ""}


async def run_task(
    task: Json, run_id: str, request: Request, chat: Chat, rules: RunRules, tester: TaskTests, trace: Path | None
) -> Json:
    """Run the agent on a task and return the columns of ROLLOUT without sampling and rules.

    `request` has the sampling parameters. The run is written to `trace` in the Hub's Session Trace Simple Format.
    """
    loop = asyncio.get_running_loop()

    def ask(messages: list[Json]) -> Reply:
        reply = chat.ask(replace(request, messages=messages, tools=[BASH_TOOL]))
        return asyncio.run_coroutine_threadsafe(reply, loop).result()

    model, environment = Model(request.model, ask), Environment(task, run_id, tester)
    limits = {"step_limit": rules.max_iters, "cost_limit": 0}
    agent = DefaultAgent(model, environment, **{**CONFIG["agent"], **limits})
    error, result = None, TaskResult(None, "")
    try:
        await asyncio.to_thread(agent.run, task["goal"])
    except (InferenceError, SandboxError) as problem:
        error = str(problem)
    except Exception as problem:
        # One failed run must not stop the others; its row has the error and is run again.
        error = f"{type(problem).__name__}: {problem}"
    finally:
        # A thread cannot be cancelled, but it ends at its next query.
        model.is_cancelled = True
    changed = environment.changed()
    if error is None and rules.test_policy != "never" and has_tests(task):
        result = await tester.test(task, changed)
        if result.ok is None:
            error = f"tests could not be run: {result.error}"
    run = read_trajectory(agent.serialize(), task["task_id"])
    run.run_id, run.tools = run_id, [BASH_TOOL]
    row, _ = make_rollout(run, task["suite"], task["seed"])
    if trace is not None:
        trace.write_bytes(encode_session({**row, "suite": "mini-swe-agent"}))
    texts = {
        path: content
        for path, content in changed.items()
        if not any(version and decode_text(version) is None for version in (content, environment.before.get(path)))
    }
    return {
        **row,
        **sum_usage(model.replies),
        "tests_ok": result.ok,
        "test_output": None if result.ok is None else result.output,
        "n_test_runs": int(result.ok is not None),
        "patch": unified_diff(environment.before, texts),
        "files_touched": [*changed],
        "parse_errors": model.parse_errors,
        "error": error,
        "ended": "error" if error else ENDED.get(run.ended, run.ended),
    }
