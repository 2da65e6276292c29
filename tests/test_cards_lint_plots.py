import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cards.lint import lint_card, lint_file
from cards.plots import Estimate, draw_intervals
from cards.render import render_model_card, write_model_card
from pimono_sdpo.cli import app
from pimono_sdpo.errors import OutputError, SourceError
from tests.card_data import front_matter, report, run
from tests.loopback_hub.card import problems as problems_on_the_hub


@pytest.mark.parametrize(
    ("card", "problem"),
    [
        ("no front matter", "no YAML front matter"),
        ("---\na: [\n---\n# T\n", "is not valid YAML"),
        ("---\n- a\n---\n# T\n", "not a mapping"),
        ("---\nlicense: mine\n---\n# T\n", "`license` is `mine`"),
        (
            "---\nbase_model: /home/a/m\n---\n# T\n",
            "`base_model` holds `/home/a/m`, which is not a valid repository id",
        ),
        ("---\nbase_model: a/b\n---\n# T\n", "'base_model_relation' is a dependency of 'base_model'"),
        ("---\npipeline_tag: chat\n---\n# T\n", "`pipeline_tag` is `chat`"),
        ("---\ndatasets: ['a b']\n---\n# T\n", "`datasets` holds `a b`"),
        ("---\ndatasets: a--b/c\n---\n# T\n", "`datasets` holds `a--b/c`"),
        ("---\ntags: ['base_model:adapter:/a/b']\n---\n# T\n", "is not a valid repository id"),
    ],
)
def test_lint_names_what_is_wrong(card: str, problem: str) -> None:
    assert any(problem in found for found in lint_card(card))


@pytest.mark.parametrize("licence", ["mit", "gemma", "cc-by-nc-2.0", "[mit, apache-2.0]"])
def test_lint_lets_known_licences_pass(licence: str) -> None:
    assert lint_card(f"---\nlicense: {licence}\nbase_model: a/b.c\nbase_model_relation: adapter\n---\n# T\n") == []


def test_a_log_without_every_step_still_counts_all_steps() -> None:
    every_fifth = run()["log_history"][4::5]
    card = render_model_card(None, run(log_history=every_fifth))
    assert [entry["step"] for entry in every_fifth] == [5, 10, 15, 20]
    assert "| optimizer steps | 24 |" in card
    assert "| completions sampled | 48 |" in card
    by_epochs = run(arguments={**run()["arguments"], "max_steps": -1})
    assert "| optimizer steps | 24 |" in render_model_card(None, by_epochs)


def test_arguments_are_not_rounded() -> None:
    arguments = {**run()["arguments"], "learning_rate": 1.23456e-05, "temperature": 0.912345}
    card = render_model_card(None, run(arguments=arguments))
    assert "| learning rate | 1.23456e-05 |" in card
    assert "| temperature | 0.912345 |" in card


@pytest.mark.parametrize(
    ("fractions", "said", "not_said"),
    [
        ([0.0, 0.0], "No rollout reached the success threshold", "was a success."),
        ([0.5, 1.0], "For 75.0 % of the prompts sampled", "No rollout reached"),
        ([], "No held-out evaluation", "was a success."),
    ],
)
def test_the_limitations_say_how_often_it_worked(fractions: list[float], said: str, not_said: str) -> None:
    name = "self_distillation/success_group_fraction"
    history = [{"step": i, "loss": 0.1, name: value} for i, value in enumerate(fractions, 1)]
    limits = render_model_card(None, run(log_history=history)).split("## Limitations")[1]
    assert said in limits
    assert not_said not in limits


@pytest.mark.parametrize(
    ("changes", "tagged", "teacher"),
    [
        ({}, True, "the model's own\nmoving average"),
        ({"load_in_4bit": False, "teacher_model_kind": "base"}, False, "the base model without"),
        ({"load_in_4bit": False, "load_in_8bit": True, "teacher_model_kind": "live"}, True, "the model itself"),
    ],
)
def test_the_card_says_what_this_run_used(changes: dict[str, Any], tagged: bool, teacher: str) -> None:
    card = render_model_card(None, run(arguments={**run()["arguments"], **changes}))
    assert ("qlora" in front_matter(card)["tags"]) is tagged
    assert f"A teacher, {teacher}" in card


def test_a_backslash_before_a_pipe_does_not_open_a_column() -> None:
    counts = {"a\\|b": 3}
    card = render_model_card(report(category_counts=counts), run())
    (line,) = [line for line in card.splitlines() if line.startswith("| `a")]
    assert len(re.split(r"(?<!\\)\|", line)) == 4
    assert r"\\|" not in line


def test_a_plot_has_the_intervals_and_stays_in_its_frame() -> None:
    rows = [Estimate("a <b> & c", 0.25, 0.0, 0.5), Estimate("alone", 0.5), Estimate("none", None)]
    drawn = draw_intervals({"pass_rate": rows, "steps": [Estimate("x", 3.0, 3.0, 3.0)]})
    picture = ElementTree.fromstring(drawn)
    assert drawn == draw_intervals({"pass_rate": rows, "steps": [Estimate("x", 3.0, 3.0, 3.0)]})
    space = "{http://www.w3.org/2000/svg}"
    texts = [text.text for text in picture.iter(f"{space}text")]
    assert texts[:3] == ["pass_rate", "0", "0.5"]
    assert {"a <b> & c", "0.25", "missing"} <= {*texts}
    dots = [float(dot.attrib["cx"]) for dot in picture.iter(f"{space}circle")]
    spans = [(float(line.attrib["x1"]), float(line.attrib["x2"])) for line in picture.iter(f"{space}line")]
    width = float(picture.attrib["width"])
    # The axis of the first panel, its interval, the axis of the second panel, its interval of one point.
    axis, interval, other, point = spans
    assert interval == axis == other
    assert dots[:2] == [sum(axis) / 2, axis[1]]
    assert point == (dots[2], dots[2])
    assert all(0 < x < width for pair in spans for x in pair)


def test_a_duel_is_drawn_beside_parity() -> None:
    drawn = [draw_intervals({"open": [Estimate("score", 60, 40, 140)]}, (0, 100), mark) for mark in (None, 50.0)]
    lines = [[line for line in one.splitlines() if line.startswith("<line")] for one in drawn]
    (added,) = {*lines[1]} - {*lines[0]}
    assert 'x1="450.0"' in added
    assert 'x2="660.0"' in lines[0][1], "an interval that leaves the scale ends with it"


MODEL_INDEX = """---
model-index:
- name: me/m
  results:
  - task: {{type: text-generation}}
    dataset: {{name: rows, type: me/rows}}
    metrics: [{{type: reward, value: 0.5}}]
---
# T
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("", "", None),
        ("- name: me/m\n  ", "- ", "'name' is a required property"),
        (", type: me/rows", "", "`model-index.0.results.0.dataset`: 'type' is a required"),
        ("[{type: reward, value: 0.5}]", "[]", "`model-index.0.results.0.metrics`: [] "),
        ("- name: me/m", "  name: me/m", "is not of type 'array'"),
    ],
)
def test_a_model_index_needs_its_keys(old: str, new: str, problem: str | None) -> None:
    card = MODEL_INDEX.format().replace(old, new) if old else MODEL_INDEX.format()
    found = lint_card(card)
    assert (found == []) if problem is None else any(problem in one for one in found)
    if problem is not None:
        assert problems_on_the_hub(card)[0], "the Hub would refuse it, too"


def test_a_card_that_is_not_text_is_named(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    card.write_bytes(b"---\n\xff")
    assert lint_file(card) == ["The card is not valid UTF-8."]


def test_the_command_checks_cards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def card(place: Path) -> None:
        app(["view", "--card", str(place)], standalone_mode=False)

    (tmp_path / "run.json").write_text(json.dumps(run()))
    with pytest.raises(SourceError, match="does not exist"):
        card(tmp_path)
    (tmp_path / "README.md").write_text("# no front matter")
    with pytest.raises(OutputError, match="no YAML front matter"):
        card(tmp_path / "README.md")
    assert write_model_card(None, run(), tmp_path) == []
    card(tmp_path)
    assert "nothing that the Hub would refuse" in capsys.readouterr().out
    (tmp_path / "adapter").mkdir()
    (tmp_path / "README.md").rename(tmp_path / "adapter" / "README.md")
    (tmp_path / "README.md").write_text("no card")
    card(tmp_path)
    assert capsys.readouterr().out.startswith(str(tmp_path / "adapter" / "README.md"))
