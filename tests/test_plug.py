"""Test that a new harness needs one file and one line, a new category one entry, and that both must be complete."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from pimono_sdpo.failures import CATEGORIES, classify, read_categories
from pimono_sdpo.samples import SAMPLE_SESSIONS
from pimono_sdpo.traces.events import decode_json
from pimono_sdpo.traces.harness import HARNESSES
from pimono_sdpo.traces.harness.base import Harness
from pimono_sdpo.traces.parse import detect_harness, read_trace
from rewards.verifiers.tool_calls import check, load_tools
from tests.plug import ROOT, copy_project, insert_line, run_python

TOY_READER = '''
"""Toy sessions: one JSON object with everything that happened."""

from typing import Any

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness.base import Harness, Tool, describe_object

STEPS = ("ask", "call", "failure")


def recognises(entry: dict[str, Any]) -> bool:
    return "toy" in entry


def read_header(objects: list[dict[str, Any]]) -> tuple[str, str]:
    return objects[0]["toy"], "/w/app"


def read(objects: list[dict[str, Any]]) -> list[Event]:
    ask, call, failure = (objects[0][step] for step in STEPS)
    return [
        Event(0, "user", ask),
        Event(1, "tool_call", call_id="c", tool_name="play", arguments=call),
        Event(2, "tool_result", failure, call_id="c", tool_name="play", is_error=True),
    ]


HARNESS = Harness(
    name="toy",
    recognises=recognises,
    read_header=read_header,
    read=read,
    # PARTS
)
'''
PARTS = {
    "about": 'about="toy sessions",',
    "sample": 'sample=\'{"toy": "s", "ask": "Fix the red toy please.", "call": "{\\\\"n\\\\": 1}", '
    '"failure": "AssertionError: it broke"}\',',
    "tools": 'tools={"play": Tool("Play.", (describe_object("n", n={"type": "number"}),))},',
}
JUDGE = """
import json
from rewards.verifiers.tool_calls import verify

for n in (1, "one"):
    calls = [{{"name": "play", "arguments": {{"n": n}}}}]
    print(verify("", {{**{spec!r}, "tool_calls": calls}}).status)
"""
TOY_CATEGORY = """
[toy_trouble]
weight = 0.25
sentence = "A toy broke."

[[toy_trouble.rules]]
example = "it broke"
patterns = ['\\bit broke\\b']
"""


def missing_parts(harness: Harness) -> list[str]:
    """Return the names of the missing parts of a harness."""
    missing = [name for name in ("about", "sample") if not getattr(harness, name)]
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if not any(f"| `{harness.name}` |" in page.read_text() for page in documents):
        missing.append("documentation")
    for name, tool in harness.tools.items():
        missing += [] if tool.description else [f"description of {name}"]
        try:
            for schema in tool.schemas:
                Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            missing.append(f"a valid schema of {name}: {error.message}")
    return missing


@pytest.mark.parametrize("harness", HARNESSES, ids=lambda harness: harness.name)
def test_every_harness_is_complete(harness: Harness) -> None:
    missing = missing_parts(harness)
    assert not missing, f"{harness.name} lacks {'; '.join(missing)}"


# OpenClaw stores lines of Pi; agentsview keeps the names of the agents that it read.
WITH_LINES = [harness for harness in HARNESSES if harness.name not in {"openclaw", "agentsview"}]


@pytest.mark.parametrize("harness", WITH_LINES, ids=lambda harness: harness.name)
def test_the_sample_of_a_harness_shows_a_request_and_a_failing_call(harness: Harness) -> None:
    assert detect_harness(harness.sample.encode()) is harness, "its sample is read by another one"
    trace = read_trace(harness.sample)
    assert (trace.harness, trace.problem) == (harness.name, None)
    assert trace.session_id
    assert trace.cwd or harness.name == "gemini_cli", "Gemini CLI records a hash of the folder only"
    kinds = [event.kind for event in trace.events if event.kind not in {"other", "assistant"}]
    assert kinds == ["user", "tool_call", "tool_result"]
    call, result = (e for e in trace.events if e.kind in {"tool_call", "tool_result"})
    assert result.is_error
    assert classify(result.text)
    if harness.tools:
        tool = load_tools([call.tool_name], harness.name)[call.tool_name]
        assert check(tool, decode_json(call.arguments)).errors == ()


def test_every_category_is_in_a_sample_session_and_in_the_documentation() -> None:
    expected = json.loads((SAMPLE_SESSIONS.parent / "expected.json").read_text())
    shown = {name for session in expected.values() for name in session["categories"]}
    assert set(CATEGORIES) - shown == set(), "no sample session shows them"
    text = "".join(p.read_text() for p in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    assert [name for name in CATEGORIES if f"| `{name}` |" not in text] == []
    assert all(category.weight > 0 and category.sentence for category in CATEGORIES.values())


@pytest.mark.parametrize("part", ["weight", "sentence", "example", "patterns"])
def test_an_incomplete_entry_is_named(part: str) -> None:
    lines = [line for line in TOY_CATEGORY.split("\n") if not line.startswith(part)]
    with pytest.raises(ValueError, match=f"`toy_trouble` has no `{part}`"):
        read_categories("\n".join(lines))


def plug_in(folder: Path, reader: str) -> Path:
    """Add the toy harness and the toy category to a copy of the project."""
    project = copy_project(folder, "tests/plug.py", "tests/test_plug.py", "README.md")
    harnesses = project / "pimono_sdpo/traces/harness"
    (harnesses / "toy.py").write_text(reader)
    listed = harnesses / "__init__.py"
    insert_line(listed, "    toy.HARNESS,", after="    claude_code.HARNESS,")
    insert_line(listed, "    toy,", after="    simple,")
    with (project / "pimono_sdpo/failures.toml").open("a") as table:
        table.write(TOY_CATEGORY)
    return project


def test_a_plugged_harness_and_category_reach_the_row(tmp_path: Path) -> None:
    project = plug_in(tmp_path / "p", TOY_READER.replace("# PARTS", "\n    ".join(PARTS.values())))
    session = tmp_path / "toy.jsonl"
    code = "from pimono_sdpo.traces.harness import HARNESSES; print(HARNESSES[1].sample)"
    session.write_text(run_python(project, "-c", code).stdout)
    out = tmp_path / "out"
    words = ("filter", str(session), "--out", str(out))
    done = run_python(project, "-m", "pimono_sdpo", *words)
    assert done.returncode == 0, done.stderr
    [row] = pq.read_table(out / "data").to_pylist()
    assert row["harness"] == "toy"
    assert row["categories"] == ["test_or_assertion", "toy_trouble"]
    assert row["score_terms"][-1] == {"term": "toy_trouble", "value": 0.25}
    [tool] = json.loads(row["tools"])
    assert tool["function"]["name"] == "play"
    spec = {"tools": [tool], **json.loads(row["verifier_spec"])}
    assert spec["harness"] == "toy"
    (project / "judge.py").write_text(JUDGE.format(spec=spec))
    assert run_python(project, "judge.py").stdout.split() == ["passed", "failed"]


MASKED = """
from pimono_sdpo.traces.events import Event
from processors.diagnostics import find_failures

call = Event(0, "tool_call", call_id="c", tool_name="bash", arguments='{"command": "toys run | tail -5"}')
result = Event(1, "tool_result", "winding up\\nit broke", call_id="c", tool_name="bash", exit_code=0)
print([failure["categories"] for failure in find_failures([call, result])])
"""


def test_a_plugged_category_is_found_behind_a_pipe(tmp_path: Path) -> None:
    project = plug_in(tmp_path, TOY_READER.replace("# PARTS", "\n    ".join(PARTS.values())))
    done = run_python(project, "-c", MASKED)
    assert done.stdout == "[['toy_trouble']]\n", done.stderr


def test_an_unknown_role_is_named() -> None:
    with pytest.raises(ValueError, match="`toy_trouble` has the unknown role `signatur`"):
        read_categories(TOY_CATEGORY.replace("weight", 'roles = ["signatur"]\nweight'))


def test_missing_parts_of_a_plugged_harness_are_named(tmp_path: Path) -> None:
    reader = TOY_READER.replace("# PARTS", 'about="", sample="",')
    project = plug_in(tmp_path, reader)
    checks = ("--noconftest", "-p", "no:cacheprovider", "tests/test_plug.py", "-k", "complete and toy")
    failed = run_python(project, "-m", "pytest", "-q", *checks)
    assert failed.returncode == 1, failed.stdout
    assert "toy lacks about; sample; documentation" in failed.stdout


TOY_RECIPE = "# A toy run.\nmodel_name_or_path: toy\nuse_cpu: true\nbf16: false\nnum_generations: 2\n{more}"


@pytest.mark.slow
def test_a_plugged_recipe_is_found_by_its_name_and_documented(tmp_path: Path) -> None:
    project = copy_project(tmp_path, "docs/generate.py")
    (project / "jobs/recipes/toy.yaml").write_text(TOY_RECIPE.format(more=""))
    script = ("jobs/train_sdpo.py", "--config", "toy", "--mode", "preflight", "--dataset", "nowhere")
    found = run_python(project, *script)
    assert found.returncode == 2
    assert "nowhere" in found.stderr, "the recipe was read, and only its dataset is missing"
    code = "import sys; sys.path.insert(0, 'docs'); import generate; print(generate.describe_recipes())"
    page = run_python(project, "-c", code).stdout
    assert "A toy run." in page
    assert "num_generations: 2" in page


@pytest.mark.parametrize("recipe", sorted((ROOT / "jobs/recipes").glob("*.yaml")), ids=lambda one: one.stem)
def test_every_recipe_begins_with_what_it_is_for(recipe: Path) -> None:
    assert recipe.read_text().startswith("# "), f"{recipe.name} does not begin with a comment"


@pytest.mark.slow
def test_an_option_that_a_plugged_recipe_misspells_is_named(tmp_path: Path) -> None:
    project = copy_project(tmp_path)
    (project / "jobs/recipes/toy.yaml").write_text(TOY_RECIPE.format(more="num_generation: 2\n"))
    failed = run_python(project, "jobs/train_sdpo.py", "--config", "toy", "--dataset", "nowhere")
    assert failed.returncode == 2
    assert "num_generation" in failed.stderr
