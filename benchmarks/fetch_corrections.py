"""Fetch the public sessions whose messages were labelled, and write the labels beside them.

    python -m benchmarks.fetch_corrections OUT
    python -m benchmarks.corrections OUT/held_out.csv OUT

tests/data/corrections names each session by repository, commit and path, with the label of each
message by its number; the texts stay with their authors. `fitted*.csv` were used for the weights,
`fitted_second.csv` is a second, independent labelling of most of `fitted.csv`, as `fitted_fourth_second.csv`
and `fitted_fourth_third.csv` are of a part of `fitted_fourth.csv`, and `held_out.csv` was unread when an earlier model was measured on it; the weights are now fitted to it, too.
`held_out_second.csv` was unread when the weights were fitted. What is gone or was moved is reported
and left out. Sessions of SpecStory are Markdown and are written as Pi sessions.
"""

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

LABELS = Path(__file__).parents[1] / "tests" / "data" / "corrections"
URL = "https://raw.githubusercontent.com/{repository}/{commit}/{path}"
SECONDS = 60
_TURN = re.compile(r"^_\*\*(User|Assistant|Agent)[^*\n]*\*\*_\s*$", re.MULTILINE)
_TOOL = re.compile(r"tool-use|Edited|<details>|Read file|Searched|```diff")
_EDIT = re.compile(r"Edit|diff|search_replace|edit_file|write")
_HIDDEN = re.compile(r"<(think|details|tool-use)[\s\S]*?</\1>")


def read_sessions(labels: Path) -> list[dict[str, str]]:
    """Return one row for each labelled session."""
    with labels.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def expand_labels(session: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Return the labels of a session as `benchmarks.corrections` reads them."""
    for item in session["labels"].split():
        ordinal, label = item.split(":")
        yield {
            "file": name_file(session),
            "user_ordinal": ordinal,
            "label": label,
            "person": session["repository"].partition("/")[0],
            "harness": session["harness"],
        }


def name_file(session: Mapping[str, str]) -> str:
    """Return the path of a session below the output folder."""
    owner, name = session["repository"].split("/")
    return f"{owner}__{name}/{session['path'].replace('/', '__')}.jsonl"


def write_as_pi(markdown: str) -> str:
    """Return a SpecStory history as the lines of a Pi session."""
    parts = list(_TURN.finditer(markdown))
    ends = [*(part.start() for part in parts[1:]), len(markdown)]
    lines: list[object] = [{"type": "session", "version": 3, "id": "s", "cwd": "/home/x/app"}]
    for part, end in zip(parts, ends, strict=True):
        text = markdown[part.end() : end].strip().strip("-").strip()
        if part[1] == "User":
            lines.append({"type": "message", "message": {"role": "user", "content": text}})
            continue
        if _TOOL.search(text):
            name = "edit" if _EDIT.search(text) else "read"
            call = {"type": "toolCall", "id": f"c{len(lines)}", "name": name, "arguments": {}}
            lines.append(_answer(call, "toolUse"))
        said = {"type": "text", "text": _HIDDEN.sub("", text)[-3000:]}
        lines.append(_answer(said, "stop"))
    return "\n".join(json.dumps(line) for line in lines)


def _answer(block: Mapping[str, object], stop: str) -> dict[str, object]:
    message = {"role": "assistant", "content": [block], "stopReason": stop}
    return {"type": "message", "message": message}


def main(out: Path) -> int:
    """Fetch every session once and write the labels of those that were found."""
    for labels in sorted(LABELS.glob("*.csv")):
        rows: list[dict[str, str]] = []
        for session in read_sessions(labels):
            target = out / name_file(session)
            if not target.exists():
                url = URL.format(**{key: quote(value) for key, value in session.items()})
                try:
                    with urlopen(url, timeout=SECONDS) as answer:
                        content = answer.read()
                except URLError as error:
                    sys.stderr.write(f"{url}: {error}\n")
                    continue
                if session["harness"] == "specstory":
                    content = write_as_pi(content.decode("utf-8", "replace")).encode()
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            rows += expand_labels(session)
        with (out / labels.name).open("w", encoding="utf-8", newline="") as lines:
            writer = csv.DictWriter(lines, ["file", "user_ordinal", "label", "person", "harness"])
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
