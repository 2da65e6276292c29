import json
from pathlib import Path

import pytest

from pimono_sdpo.failures import CATEGORIES
from pimono_sdpo.samples import SAMPLE_SESSIONS

SESSIONS = sorted(SAMPLE_SESSIONS.glob("*.jsonl"))
EXPECTED = json.loads((SAMPLE_SESSIONS.parent / "expected.json").read_text())
BROKEN_ON_PURPOSE = {
    "12_two_objects_on_a_line.jsonl": "Extra data",
    "13_bad_escape.jsonl": "Invalid \\escape",
    "14_cut_last_line.jsonl": "Unterminated string",
}


def problems(path: Path) -> list[str]:
    found = []
    for line in path.read_text().rstrip("\n").split("\n"):
        try:
            json.loads(line)
        except json.JSONDecodeError as error:
            found.append(error.msg)
    return found


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_a_session_is_broken_only_where_it_is_meant_to_be(path: Path) -> None:
    expected = BROKEN_ON_PURPOSE.get(path.name)
    found = problems(path)
    assert len(found) == (expected is not None)
    assert all(message.startswith(expected or "") for message in found)


def test_the_samples_cover_what_they_promise() -> None:
    assert set(EXPECTED) == {path.name for path in SESSIONS}
    kept = [truth for truth in EXPECTED.values() if truth["kept"]]
    dropped = {truth["drop_reason"] for truth in EXPECTED.values() if not truth["kept"]}
    assert len(kept) >= 16
    assert {category for truth in kept for category in truth["categories"]} == set(CATEGORIES)
    assert dropped == {"no_evidence", "no_prompt", "no_messages", "only_a_slip"}
    headers = [json.loads(path.read_text().split("\n", 1)[0]) for path in SESSIONS]
    assert {header.get("version") for header in headers} == {None, 3}
