"""What a run has cost, as a small table. It is shown and never published: no two runs agree.

Columns: a name, a count of sessions or rows, MB (10^6 bytes), or MB per second.
"""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

from pimono_sdpo.runs.runner import Finished
from pimono_sdpo.runs.workers import peak_memory

Json = dict[str, Any]
MB = 1_000_000


@dataclass
class Usage:
    """Bytes of traces read by this run (not by one it resumed), seconds of reading, peak bytes."""

    bytes: int = 0
    seconds: float = 0.0
    worker_peak: int = 0

    def add(self, finished: Finished, started: float) -> None:
        """Note what reading has cost that began at `started` and ends now."""
        self.seconds += perf_counter() - started
        self.bytes += sum(_bytes(finished.records[index]) for index in finished.fresh)
        self.worker_peak = max(self.worker_peak, finished.peak)


def _bytes(record: Json) -> int:
    """Bytes of the traces of a shard: read at once, read after repair, or lost."""
    counts = record["columns"].get("counts", {})
    read = record["columns"].get("volume", {}).get("bytes_parsed", 0)
    return int(read + counts.get("bytes_repaired", 0) + counts.get("bytes_skipped", 0))


def table(sessions: int, kept: int, dropped: dict[str, int], usage: Usage | None = None) -> str:
    """Align what went in, what came out, what was dropped and, if known, what it cost."""
    rows = [("sessions in", f"{sessions}"), ("rows kept", f"{kept}")]
    rows.append(("rows dropped", f"{sum(dropped.values())}"))
    rows += [(f"  {reason}", f"{count}") for reason, count in dropped.items()]
    if usage is not None:
        rows += [
            ("MB of traces read", f"{usage.bytes / MB:.1f}"),
            ("MB/s", f"{usage.bytes / MB / usage.seconds:.1f}" if usage.bytes else "-"),
            ("peak memory, MB", f"{peak_memory() / MB:.0f}"),
        ]
        if usage.worker_peak:
            rows.append(("  biggest worker", f"{usage.worker_peak / MB:.0f}"))
    name_width, width = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{name:<{name_width}}  {value:>{width}}" for name, value in rows)
