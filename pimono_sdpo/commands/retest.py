"""Apply patches to fresh copies of a task's repo and test them again, in the sandbox."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pimono_sdpo.errors import SourceError

Verdict = tuple[bool | None, str]


@contextmanager
def retests(
    tasks: Sequence[Mapping[str, Any]],
) -> Iterator[Callable[[Mapping[str, Any], str], Verdict]]:
    """Yield what applies a patch to a task's files and runs its tests.

    It gives True, False, or None when nothing could be judged, and why. A patch that does not apply
    is False.
    """
    from rewards.sandbox import SandboxError
    from rewards.sandbox.warm import Server
    from rewards.verifiers.outcomes import Python, cold
    from rewards.verifiers.tests import IMPORTS, in_server

    with ExitStack() as stack:
        python: Python = cold
        if any(task["verifier_spec"] for task in tasks):
            # It needs Landlock; without, each run chooses what else holds.
            with suppress(SandboxError):
                python = in_server(stack.enter_context(Server(IMPORTS)))

        def retest(task: Mapping[str, Any], patch: str) -> Verdict:
            with TemporaryDirectory(prefix="retest-") as folder:
                return _judged(task, patch, Path(folder) / "work", python)

        yield retest


def _judged(task: Mapping[str, Any], patch: str, folder: Path, python: Any) -> Verdict:
    from pimono_sdpo.agent.task_tests import run_tests
    from pimono_sdpo.suites.suite import has_tests
    from pimono_sdpo.suites.workspace import files_of, visible_copy
    from rewards.verifiers.candidate import Refusal
    from rewards.verifiers.patches import apply_patch

    if not has_tests(task):
        return None, "the task has no tests"
    try:
        visible_copy(task, folder)
    except SourceError as missing:
        return None, str(missing)
    spec = {"files": files_of(folder), "allowed": ["*"], "locked": []}
    applied = apply_patch(patch, spec)
    if isinstance(applied, Refusal):
        return False, f"the patch does not apply, {applied.why}"
    for path in applied.changed:
        target = folder / path
        if path not in applied.files:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(applied.files[path], newline="")
    said = run_tests(task, folder, python)
    return said.ok, said.error or said.output


def visible_files(task: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a task's repo that an agent may see; none when the repo is not here."""
    from pimono_sdpo.suites.workspace import files_of

    if not Path(task["repo"]).is_dir():
        return {}
    return files_of(Path(task["repo"]), task["hide"])
