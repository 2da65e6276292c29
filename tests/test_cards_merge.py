"""A second push keeps the text that its owner has written on a card."""

import yaml

from cards.merge import merge_cards, split_card

OURS = """---
configs:
- config_name: default
  data_files:
  - path: data/train-*.parquet
    split: train
pretty_name: SDPO rows from traces
size_categories:
- n<1K
tags:
- sdpo
---

# SDPO rows from traces

{text}
"""
FIRST, SECOND = (OURS.format(text=f"{count} rows.") for count in (3, 5))
LATER = SECOND.replace("n<1K", "1K<n<10K").replace("- sdpo", "- trl")


def marked(text: str) -> str:
    return f"<!-- pimono-sdpo:rows -->\n# SDPO rows from traces\n\n{text}\n<!-- /pimono-sdpo:rows -->"


def edit(card: str, **changes: object) -> str:
    """The card with changes of its metadata, as its owner would make them on the Hub."""
    metadata, body = split_card(card)
    return f"---\n{yaml.safe_dump(metadata | changes)}---\n{body}"


def test_the_owners_words_stay_and_ours_are_replaced() -> None:
    first, note = merge_cards("rows", FIRST, "")
    assert split_card(first) == (split_card(FIRST)[0], f"\n{marked('3 rows.')}\n")
    assert merge_cards("rows", FIRST, first) == (first, ""), "nothing changed"
    edited = edit(first, license="mit", language="en", tags=["sdpo", "own"])
    edited = edited.replace("<!-- pimono", "Read this first.\n\n<!-- pimono", 1) + "\n## Notes\n\nNot on Fridays.\n"
    second, told = merge_cards("rows", LATER, edited)
    metadata, body = split_card(second)
    assert body == f"\nRead this first.\n\n{marked('5 rows.')}\n\n## Notes\n\nNot on Fridays.\n"
    theirs = {"license": "mit", "language": "en", "tags": ["own", "sdpo", "trl"]}
    assert metadata == {**split_card(LATER)[0], **theirs}
    assert note == told == ""
    assert merge_cards("rows", LATER, second) == (second, "")


def test_marks_in_a_session_do_not_end_our_section() -> None:
    quoted = OURS.format(text="It says <!-- /pimono-sdpo:rows -->\nand <!-- pimono-sdpo:steps -->.")
    first, _ = merge_cards("rows", quoted, "")
    second, _ = merge_cards("rows", SECOND, first + "\nMine.\n")
    assert split_card(second)[1] == f"\n{marked('5 rows.')}\n\nMine.\n"


def test_a_card_without_marks_stays_above_ours() -> None:
    second, note = merge_cards("rows", SECOND, FIRST)
    assert split_card(second)[1] == f"{split_card(FIRST)[1].rstrip()}\n\n{marked('5 rows.')}\n"
    assert "the earlier text of the card stays above the new one" in note
    third, note = merge_cards("rows", FIRST, second)
    assert split_card(third)[1] == f"{split_card(FIRST)[1].rstrip()}\n\n{marked('3 rows.')}\n"
    assert note == ""
    card, note = merge_cards("rows", FIRST, "---\nlicense: mit\ntags: own\n---\n")
    metadata, body = split_card(card)
    assert (metadata["license"], metadata["tags"], body) == ("mit", ["own", "sdpo"], f"\n{marked('3 rows.')}\n")
    assert metadata["configs"] == split_card(FIRST)[0]["configs"]
    assert note == ""


def test_the_next_adapter_takes_the_scores_of_the_last_one_away() -> None:
    card = "---\nlibrary_name: peft\n{more}tags:\n- {tag}\n---\n\n# me/adapter\n"
    results = "model-index:\n- name: me/adapter\n  results: []\n"
    first, _ = merge_cards("adapter", card.format(more=results, tag="base_model:adapter:a/b"), "")
    second, _ = merge_cards("adapter", card.format(more="", tag="base_model:adapter:c/d"), edit(first, x=1))
    assert split_card(second)[0] == {"library_name": "peft", "tags": ["base_model:adapter:c/d"], "x": 1}


STEPS = """---
configs:
- config_name: steps
  data_files:
  - path: data/train-*.parquet
    split: train
  default: true
pretty_name: Agent steps
tags:
- sft
---

# Agent steps
"""


def test_the_sections_of_other_stages_stay() -> None:
    first, _ = merge_cards("rows", FIRST, "")
    both, note = merge_cards("steps", STEPS, first)
    metadata, body = split_card(both)
    assert [one["config_name"] for one in metadata["configs"]] == ["default", "steps"]
    assert metadata["configs"][1]["data_files"][0]["path"] == "steps/train-*.parquet"
    assert (metadata["pretty_name"], metadata["tags"]) == ("SDPO rows from traces", ["sdpo", "sft"])
    steps = "<!-- pimono-sdpo:steps -->\n# Agent steps\n<!-- /pimono-sdpo:steps -->"
    assert body == f"\n{marked('3 rows.')}\n\n{steps}\n"
    again, _ = merge_cards("rows", LATER, both)
    assert split_card(again)[1] == f"\n{marked('5 rows.')}\n\n{steps}\n"
    assert split_card(again)[0]["tags"] == ["sdpo", "sft", "trl"]
    assert note == ""
