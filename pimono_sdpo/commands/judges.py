"""What judges the files an agent leaves: a verdict that is known, else the tests in the sandbox."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pimono_sdpo.agent.driver import Judge
    from pimono_sdpo.agent.tools import Workspace


@contextmanager
def judges(
    tasks: Sequence[Mapping[str, Any]], journal: Path
) -> "Iterator[Callable[[Mapping[str, Any]], Judge | None]]":
    """Yield what gives the judge of a task, None for one without tests.

    Verdicts are kept in `journal`. Tests run in a warm interpreter where one can be had: starting
    one is most of what a test run costs.
    """
    from pimono_sdpo.agent.task_tests import Judged, run_tests
    from pimono_sdpo.agent.verdicts import Kept, Verdicts, key_of
    from pimono_sdpo.suites.suite import has_tests
    from rewards.sandbox import SandboxError
    from rewards.sandbox.warm import Server
    from rewards.verifiers.outcomes import Python, cold
    from rewards.verifiers.tests import IMPORTS, in_server

    verdicts = Verdicts(journal)
    with ExitStack() as stack:
        python: Python = cold
        if any(task["verifier_spec"] for task in tasks):
            # It needs Landlock; without, each run chooses what else holds.
            with suppress(SandboxError):
                python = in_server(stack.enter_context(Server(IMPORTS)))

        def judge_of(task: Mapping[str, Any]) -> "Judge | None":
            if not has_tests(task):
                return None

            async def judge(space: "Workspace") -> Kept | Judged:
                key = key_of(task, space.changed())
                if (known := verdicts.get(key)) is not None:
                    return known
                said = await asyncio.to_thread(run_tests, task, space.root, python)
                return said if said.ok is None else verdicts.put(key, said.ok, said.output)

            return judge

        yield judge_of
