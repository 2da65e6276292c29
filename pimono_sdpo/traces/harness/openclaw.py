"""Find OpenClaw sessions: lines as Pi writes them, in JSONL files and since 2026.8.1 in SQLite files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pimono_sdpo.traces.harness import pi
from pimono_sdpo.traces.harness.base import Store, Table, find_home

_EVENTS = Table("transcript_events", "session_id", "seq", "created_at", json="event_json", zstd="event_zstd")


def find_homes(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Return the folder with a folder for each agent."""
    return [find_home(environ, "OPENCLAW_STATE_DIR", home / ".openclaw") / "agents"]


HARNESS = replace(
    pi.HARNESS,
    name="openclaw",
    title="OpenClaw",
    word="openclaw",
    homes=find_homes,
    about="OpenClaw's SQLite files; its lines are Pi's, and rows name `pi`",
    # Pi's reader does.
    recognises=lambda entry: False,
    store=Store((_EVENTS,)),
)
