import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pimono_sdpo.cli import app
from pimono_sdpo.errors import SourceError
from pimono_sdpo.traces.drift import TESTED, count_trace, describe_drift, refuse_drift, sum_by_agent
from pimono_sdpo.traces.lines import read_objects
from pimono_sdpo.traces.parse import read_trace
from tests.harness.write_tested import SESSIONS, describe_tested

NEWEST = next(path for path in SESSIONS if path.name == "codex-0.159.jsonl")
Session = list[dict[str, Any]]


def load(path: Path = NEWEST, replaced: Mapping[str, str] | None = None) -> Session:
    """Return the lines of a session in which texts are replaced."""
    text = path.read_text()
    for old, new in (replaced or {}).items():
        assert old in text
        text = text.replace(old, new)
    return read_objects(text.encode()).objects


def drift_of(*sessions: Session) -> list[str]:
    counts = Counter[str]()
    for lines in sessions:
        for one in count_trace(read_trace("\n".join(map(json.dumps, lines)))):
            counts[one["name"]] += one["count"]
    return describe_drift(sum_by_agent(counts))


def test_the_tested_versions_are_those_of_the_sessions() -> None:
    assert describe_tested() == TESTED, "run tests/harness/write_tested.py"
    assert {name for name, of in TESTED.items() if len(of["versions"]) > 1} >= {"claude_code", "codex", "pi"}


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_a_tested_session_has_not_drifted(path: Path) -> None:
    assert drift_of(load(path)) == []


def test_an_invented_type_of_item_is_named() -> None:
    lines = load(replaced={"CommandExecution": "CommandTrial", "0.159.3": "0.171.0"})
    found = sum("CommandTrial" in json.dumps(line) for line in lines)
    (sentence,) = drift_of(lines, load())
    assert sentence.startswith("Codex 0.171.0 is newer than the versions tested (up to 0.159.3): ")
    assert f"{found} of " in sentence
    assert "entries and blocks have unknown types (`item_completed:CommandTrial`)" in sentence


def test_a_line_or_a_block_of_an_invented_type_is_named() -> None:
    claude = load(next(path for path in SESSIONS if path.name == "claude-2.1.jsonl"))
    claude[-1]["message"]["content"].append({"type": "hologram"})
    claude.append({"type": "dream", "sessionId": "s-1"})
    (sentence,) = drift_of(claude)
    assert sentence.startswith("Claude Code 2.1.283: 2 of ")
    assert "(`assistant:hologram`, `dream`); rows of these sessions may be incomplete" in sentence


def test_messages_of_an_invented_form_are_not_silent() -> None:
    lines = load()
    for line in lines:
        line["type"] = line["type"].replace("response_item", "thread_item").replace("event_msg", "thread_event")
    trace = read_trace("\n".join(map(json.dumps, lines)))
    assert (trace.harness, trace.problem) == ("codex", "no_messages")
    assert "`thread_event/item_completed`" in drift_of(lines)[0]


def test_calls_that_are_not_understood_are_counted() -> None:
    lines = load(replaced={'"name": "exec"': '"name": "evaluate"', "0.159.3": "0.171.0"})
    lines = [line for line in lines if line["payload"].get("type") != "item_completed"]
    (sentence,) = drift_of(lines)
    assert sentence == (
        "Codex 0.171.0 is newer than the versions tested (up to 0.159.3): 0 of 4 calls were understood; "
        "rows of these sessions are incomplete"
    )


def test_exit_codes_that_are_gone_are_counted() -> None:
    lines = load(next(path for path in SESSIONS if path.name == "codex-0.77.jsonl"), {"Exit code": "Ended with"})
    assert drift_of(lines) == [
        "Codex 0.77.0: 4 of 4 shell calls have no exit code; rows of these sessions may be incomplete"
    ]


def test_a_report_names_no_text_of_a_session() -> None:
    lines = load(replaced={"item_completed": "my password is hunter2"})
    assert "hunter2" not in json.dumps(count_trace(read_trace("\n".join(map(json.dumps, lines)))))


def test_the_report_and_the_card_repeat_it_and_strict_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    lines = load(replaced={"ImageView": "HologramView"})
    (tmp_path / "in" / "rollout.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = ["filter", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--min-worth", "0"]
    refused = CliRunner().invoke(app, [*words, "--strict"])
    assert isinstance(refused.exception, SourceError | SystemExit), refused.output
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("PIMONO_STRICT", "0")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    counts = report["agents"]["codex"]["0.159.3"]
    assert (counts["sessions"], counts["unknown item_completed:HologramView"]) == (1, 1)
    (sentence,) = report["drift"]
    assert sentence in done.output
    assert sentence in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(SourceError, match="HologramView"):
        refuse_drift(report)
