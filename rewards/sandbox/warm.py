"""Many short Python runs: one interpreter is started and imports once, each run is a fork of it.

    with Server(imports=["json", "math"]) as server:
        ran = server.run(["main.py"], files={"main.py": answer})

Each run has its own supervisor, folder and uid, and is confined by the same code as a cold one
before it runs anything untrusted. Import only what is trusted: it runs unconfined, once.
"""

import socket
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rewards.sandbox import local
from rewards.sandbox.backends import choose
from rewards.sandbox.limits import NOTHING, Limits, Ran, SandboxError
from rewards.sandbox.supervisor import receive, send

BACKEND = "landlock"


class Server:
    """A warm interpreter; safe to use from several threads."""

    def __init__(self, imports: Sequence[str] = ()) -> None:
        choose(BACKEND)
        self._sending = threading.Lock()
        self._started = local.started([], "warm_server", "-I")
        self._control = self._started.__enter__()
        try:
            send(self._control.fileno(), {"imports": list(imports)})
            receive(self._control.fileno())
        except (EOFError, BrokenPipeError, ConnectionResetError) as ended:
            self.close()
            names = ", ".join(imports)
            raise SandboxError(f"the warm sandbox could not import {names}, see above") from ended

    def run(
        self,
        arguments: Sequence[str],
        *,
        files: Mapping[str, bytes | str] = NOTHING,
        stdin: bytes = b"",
        limits: Limits = Limits(),  # noqa: B008
        collect: Sequence[str] = (),
        env: Mapping[str, str] = NOTHING,
        read: Sequence[str] = (),
    ) -> Ran:
        """Run what `python ARGUMENTS...` would: a file of the folder, `-c CODE`, or `-m MODULE`."""
        return local.run_spec(
            arguments, files, stdin, limits, collect, env, self._exchange, BACKEND, read
        )

    def _exchange(self, spec: dict[str, Any], stdin: bytes) -> dict[str, Any]:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, self._sending:
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
            return local.talk(ours, spec, stdin)

    def close(self) -> None:
        """End the interpreter; runs in progress are killed."""
        self._started.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()
