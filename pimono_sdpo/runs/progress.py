"""Show how far a run is: sessions or rows with their rate, the time left, the shards done.

Nothing is shown when stderr is no terminal.
"""

from types import TracebackType

from tqdm.auto import tqdm


class Progress:
    """A bar over the sessions of a run, or other units, closed at the end of its `with`."""

    def __init__(
        self, sessions: int, shards: int, desc: str = "filter", unit: str = "session"
    ) -> None:
        self._shards = shards
        self._done = 0
        self._bar = tqdm(total=sessions, unit=unit, desc=desc, disable=None)

    def sessions(self, count: int) -> None:
        """So many were read."""
        self._bar.update(count)

    def shard(self) -> None:
        """A shard is finished."""
        self._done += 1
        self._bar.set_postfix(shards=f"{self._done}/{self._shards}")

    def resumed(self, sessions: int) -> None:
        """A shard was finished by an earlier run; its sessions are no part of the rate."""
        if not self._bar.disable:
            self._bar.initial += sessions
        self._bar.n += sessions
        self.shard()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
