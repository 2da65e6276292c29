"""Draw the figures of README and documentation into docs/images: python docs/figures.py

`filter.svg` shows a real run of `filter` over the sample sessions that come with the package.
"""

import json
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any

import pyarrow.parquet as pq

from pimono_sdpo.filter_options import NO_REQUEST

IMAGES = Path(__file__).parent / "images"
INK, GREY, BLUE, PALE, AMBER = "#1f2933", "#6b7785", "#4a6fa5", "#ccd3df", "#b06a00"
SAMPLE = "03_rust_borrow.jsonl"
# So many fit into the card in any font.
PROMPT_CHARS = 90


def text(x: float, y: float, words: str, size: int = 13, colour: str = INK, **more: str) -> str:
    """Return a line of text."""
    extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}"{extra}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, radius: float = 4) -> str:
    """Return a rectangle."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" rx="{radius:g}"/>'


def write_svg(name: str, width: int, height: int, title: str, parts: list[str]) -> None:
    """Write a figure on a white ground, readable in light and in dark mode."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, sans-serif">'
    )
    ground = box(0, 0, width, height, "#ffffff", 8)
    lines = [head, f"<title>{escape(title)}</title>", ground, *parts, "</svg>"]
    (IMAGES / name).write_text("\n".join(lines) + "\n")


# The pipeline: columns of boxes, and the arrows between them.
NODES = {
    "sessions": (0, 0, "sessions", "on the Hub or on disk"),
    "filter": (1, 0, "filter", "evidence and score"),
    "sdpo": (2, 0, "SDPO rows", "request + feedback"),
    "train": (3, 0, "train", "LoRA on a 4-bit base"),
    "adapter": (4, 0, "adapter", "card, page, metrics"),
    "steps": (1, 1, "steps, pairs", "next or better action"),
    "answers": (2, 1, "SFT, DPO rows", "prompt + answers"),
    "evaluate": (4, 1, "evaluate", "before against after"),
    "suite": (0, 2, "task suite", "repos with tests"),
    "rollout": (1, 2, "rollout", "an agent at work"),
    "trajectories": (0, 3, "trajectories", "and pull requests"),
    "duel": (1, 3, "duel", "judged by a panel"),
}
ARROWS = (
    ("sessions", "filter"),
    ("sessions", "steps"),
    ("filter", "sdpo"),
    ("sdpo", "train"),
    ("train", "adapter"),
    ("adapter", "evaluate"),
    ("steps", "answers"),
    ("answers", "train"),
    ("suite", "rollout"),
    ("rollout", "steps"),
    ("trajectories", "duel"),
    ("duel", "answers"),
)
COMMANDS = {"filter", "rollout", "duel", "steps", "train", "evaluate"}
NODE_WIDTH, NODE_HEIGHT, GAP, STEP = 146, 50, 42, 76


def draw_pipeline() -> None:
    """Draw what is made from what."""
    places = {name: (14 + column * (NODE_WIDTH + GAP), 16 + row * STEP) for name, (column, row, _, _) in NODES.items()}
    parts = [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{GREY}"/></marker></defs>'
    ]
    for start, end in ARROWS:
        (x1, y1), (x2, y2) = places[start], places[end]
        if x1 == x2:  # to the box above or below
            down = y2 > y1
            x = x1 + NODE_WIDTH / 2
            start_y = y1 + (NODE_HEIGHT if down else 0)
            curve = f"M{x:g} {start_y:g} L{x:g} {y2 + (-3 if down else NODE_HEIGHT + 3):g}"
        else:
            a, b = x1 + NODE_WIDTH, y1 + NODE_HEIGHT / 2
            c, d = x2 - 3, y2 + NODE_HEIGHT / 2
            curve = f"M{a:g} {b:g} C{(a + c) / 2:g} {b:g} {(a + c) / 2:g} {d:g} {c:g} {d:g}"
        parts.append(f'<path d="{curve}" fill="none" stroke="{GREY}" stroke-width="1.4" marker-end="url(#tip)"/>')
    for name, (_, _, label, note) in NODES.items():
        x, y = places[name]
        ours = name in COMMANDS
        parts.append(box(x, y, NODE_WIDTH, NODE_HEIGHT, BLUE if ours else "#e8ecf2", 7))
        ink, small = ("#ffffff", "#e8ecf2") if ours else (INK, GREY)
        weight = {"font_weight": "600", "text_anchor": "middle"}
        parts.append(text(x + NODE_WIDTH / 2, y + 21, label, 14, ink, **weight))
        parts.append(text(x + NODE_WIDTH / 2, y + 38, note, 11, small, text_anchor="middle"))
    width = 14 * 2 + 5 * NODE_WIDTH + 4 * GAP
    write_svg("pipeline.svg", width, 16 * 2 + 3 * STEP + NODE_HEIGHT, "The pipeline", parts)


def run_filter(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Filter the sample sessions; return the report and one row."""
    from pimono_sdpo.samples import write_samples

    traces = folder / "traces"
    traces.mkdir(parents=True)
    write_samples(traces)
    command = [sys.executable, "-m", "pimono_sdpo", "filter", "traces", "--out", "rows"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    report = json.loads((folder / "rows" / "report.json").read_text())
    files = sorted((folder / "rows" / "data").glob("*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return report, next(row for row in rows if row["source"].endswith(SAMPLE))


def draw_filter() -> None:
    """Draw the funnel and the scores of a run, and one of its rows."""
    with tempfile.TemporaryDirectory() as folder:
        report, row = run_filter(Path(folder))
    parts = [*draw_funnel(report, 24, 20), *draw_scores(report["score"], 470, 20)]
    card, bottom = draw_row(row, 24, 206)
    title = f"{report['sessions']} sample sessions, filtered into {report['kept']} rows"
    write_svg("filter.svg", 880, bottom + 20, title, [*parts, *card])


def draw_funnel(report: dict[str, Any], x: float, y: float) -> list[str]:
    """Draw a bar each for the sessions, the requests in them, and the rows."""
    reasons = {name: count for name, count in report["drop_reasons"].items() if name not in NO_REQUEST}
    requests = report["kept"] + sum(reasons.values())
    parts = [text(x, y + 12, "From sessions to rows", 14, font_weight="600")]
    scale = 270 / max(report["sessions"], requests)
    bars = {"sessions": report["sessions"], "requests": requests, "rows": report["kept"]}
    for place, (name, count) in enumerate(bars.items()):
        top = y + 30 + place * 48
        parts.append(text(x, top + 17, name, 13, GREY))
        parts.append(box(x + 72, top, count * scale, 24, BLUE, 3))
        parts.append(text(x + 80, top + 17, str(count), 13, "#ffffff", font_weight="600"))
    dropped = ", ".join(f"{name} {count}" for name, count in reasons.items())
    return [*parts, text(x + 72, y + 166, f"no row: {dropped}", 11, GREY)]


def draw_scores(score: dict[str, Any], x: float, y: float) -> list[str]:
    """Draw the histogram of scores."""
    parts = [text(x, y + 12, "Rows by score", 14, font_weight="600")]
    bins = score["histogram"]
    most = max(one["rows"] for one in bins)
    width = 370 / len(bins)
    for place, one in enumerate(bins):
        height = 78 * one["rows"] / most
        left = x + place * width
        parts.append(box(left, y + 122 - height, width - 3, height, BLUE, 2))
        if one["rows"]:
            middle = {"text_anchor": "middle"}
            label = text(left + width / 2, y + 117 - height, str(one["rows"]), 11, GREY, **middle)
            parts.append(label)
        parts.append(text(left, y + 138, f"{one['from']:g}", 11, GREY))
    return parts


def draw_row(row: dict[str, Any], x: float, y: int) -> tuple[list[str], int]:
    """Draw one row: request, score terms and what the teacher may see; also return where it ends."""
    first, *rest = wrap(row["prompt"][-1]["content"], PROMPT_CHARS)
    context = [line for line in row["privileged_context"].splitlines() if line.strip() not in {"", "|"}]
    bottom = y + 140 + 16 * len(rest) + 17 * len(context)
    parts = [box(x, y, 832, bottom - y, "#f4f6f9", 8)]
    parts.append(text(x + 16, y + 26, "One row", 14, font_weight="600"))
    where = f"{row['harness']} session {Path(row['source']).name}"
    parts.append(text(x + 816, y + 26, where, 11, GREY, text_anchor="end"))
    parts.append(text(x + 16, y + 52, "prompt", 11, GREY))
    parts.append(text(x + 136, y + 52, first, 12))
    for line in rest:
        y += 16
        parts.append(text(x + 136, y + 52, line, 12))
    parts.append(text(x + 16, y + 80, "score", 11, GREY))
    parts.append(text(x + 136, y + 80, f"{row['score']:g}", 13, font_weight="600"))
    left = x + 176.0
    for term in row["score_terms"]:
        words = f"{term['term']} +{term['value']:g}"
        parts.append(box(left, y + 65, 7.2 * len(words) + 12, 21, PALE, 10))
        parts.append(text(left + 8, y + 80, words, 12))
        left += 7.2 * len(words) + 22
    parts.append(text(x + 16, y + 108, "privileged_context", 11, GREY))
    for number, line in enumerate(context):
        colour = AMBER if line.startswith(("error", "Resolved by")) else INK
        shown = (line if len(line) <= PROMPT_CHARS else f"{line[:PROMPT_CHARS]} …").replace(" ", "\u00a0")
        mono = {"font_family": "ui-monospace, Menlo, Consolas, monospace"}
        parts.append(text(x + 136, y + 108 + 17 * number, shown, 12, colour, **mono))
    parts.append(text(x + 16, bottom - 16, "reward_terms", 11, GREY))
    parts.append(text(x + 136, bottom - 16, "   ".join(row["reward_terms"]), 12))
    return parts, bottom


if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    draw_pipeline()
    draw_filter()
