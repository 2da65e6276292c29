"""The HTML page of `view`, one self-contained file, and how a training run is laid out on it.

The data are compressed JSON in base64, which cannot contain markup, and the page's content security
policy allows only our own script: text of a trace is never executed.

reads   run.json
"""

import base64
import gzip
import hashlib
import json
import re
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from cards.plots import CURVES, REWARD
from pimono_sdpo.report import MEASURES

Json = dict[str, Any]


def render_page(view: Json) -> str:
    """Return the page of `rows_view`, `review_view` or `run_view`; the same view gives the same bytes."""
    style = _read_asset("page.css")
    script = "".join(map(_read_asset, ("charts.js", "review.js", "page.js")))
    environment = Environment(loader=PackageLoader("cards", "view"), undefined=StrictUndefined, autoescape=True)
    return environment.get_template("page.html.j2").render(
        title=show_overrides(view["title"]),
        style=style,
        script=script,
        style_hash=_hash_source(style),
        script_hash=_hash_source(script),
        data=_pack(view),
    )


def _pack(view: Json) -> str:
    content = json.dumps(view, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # gzip would store the time.
    packed = gzip.compress(show_overrides(content).encode(), mtime=0)
    return base64.b64encode(packed).decode()


def show_overrides(text: str) -> str:
    """Show the characters that would change the direction of the text after them."""
    return re.sub("[\u202a-\u202e\u2066-\u2069]", lambda m: f"⟨U+{ord(m[0]):04X}⟩", text)


def _read_asset(name: str) -> str:
    return files("cards").joinpath("view", name).read_text(encoding="utf-8")


def _hash_source(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


NO_CURVES = frozenset({"step", "epoch"})
LIST = {
    "title": "Sampled answers",
    "kept": "Successes",
    "dropped": "Below",
    "columns": {"score": "Reward", "where": "Step"},
    "blocks": "The answer, and what its teacher read",
    "sort": ["where", 1],
}


def run_view(run: Json) -> Json:
    """Lay out a training run: before and after, curves, sampled answers, alerts and arguments."""
    names = dict.fromkeys(key for entry in run["log_history"] for key in entry)
    known = dict(CURVES[run["method"]])
    others = sorted(key for key in names if key not in NO_CURVES and key not in known)
    first = [_build_curve(run, key, f"{title[:1].upper()}{title[1:]}") for key, title in known.items()]
    more = [_build_curve(run, key, key) for key in others]
    drawn = [[chart for chart in group if chart["points"]] for group in (first, more)]
    rows = _build_rollouts(run)
    shown = f"{len(rows)} answers from steps across the training, with what the teacher of each read."
    return {
        "title": f"Training {run['run_name']}",
        "subtitle": f"{run['base_model']} trained on {run['dataset']['rows_used']:,} rows of "
        f"{run['dataset']['id']}; recipe {run['recipe']}, mode {run['mode']}.",
        "categories": [],
        "groups": [group for group in ([_compare(run, drawn[0])], drawn[0]) if group],
        "folded": drawn[1],
        "tables": _build_tables(run),
        "list": LIST | {"shown": shown},
        "rows": rows,
    }


def _compare(run: Json, curves: list[Json]) -> Json:
    """Lay out what the model did before and after: on held-out rows, else in its own steps."""
    evaluation = run["evaluation"]
    if evaluation:
        note = f"{evaluation['completions']} held-out answers, with 95 % intervals."
        changes = [
            {"name": title, **{when: evaluation[key][when] for when in ("before", "after")}}
            for key, title in MEASURES[run["method"]].items()
        ]
    else:
        note = "No rows were held out: the mean of the first and of the last tenth of the steps."
        changes = []
        for chart in curves[:1]:
            values = [value for _, value in chart["points"]]
            part = max(1, len(values) // 10)
            ends = {"before": values[:part], "after": values[-part:]}
            means = {when: {"mean": sum(those) / part} for when, those in ends.items()}
            changes.append({"name": chart["title"], **means})
    return {"kind": "changes", "title": "Before and after", "note": note, "changes": changes}


def _build_rollouts(run: Json) -> list[Json]:
    """Lay out the sampled answers like rows of the filter."""
    rows = []
    for number, rollout in enumerate(run["rollouts"], 1):
        reward = rollout["reward"]
        success = reward is not None and reward >= run["arguments"]["success_reward_threshold"]
        texts = {"Answer": rollout["completion"], "Feedback": rollout["feedback"]}
        rows.append(
            {
                **{name: [] for name in ("terms", "categories", "history", "words")},
                "id": str(number),
                "kept": success,
                "outcome": "success" if success else "below the threshold",
                "score": reward,
                "prompt": rollout["prompt"],
                "where": rollout["step"],
                "facts": [("step", rollout["step"])],
                "blocks": [build_block(title, text) for title, text in texts.items() if text],
            }
        )
    return rows


def build_block(title: str, text: str) -> Json:
    """Lay out a text without marks."""
    return {"title": title, "categories": [], "parts": [[text, None]]}


def _build_curve(run: Json, name: str, title: str) -> Json:
    points = [[entry["step"], entry[name]] for entry in run["log_history"] if isinstance(entry.get(name), int | float)]
    threshold = run["arguments"]["success_reward_threshold"] if name == REWARD else None
    return {"kind": "curve", "title": title, "points": points, "threshold": threshold}


def _build_tables(run: Json) -> list[Json]:
    alerts = [(f"step {item['step']}", item["guard"]) for item in run["guards"]["alerts"]]
    arguments = [(key, value) for key, value in run["arguments"].items() if value is not None]
    return [
        {"title": "Alerts", "rows": alerts or [("none", "no guard raised one")]},
        {"title": "Arguments", "rows": arguments},
    ]
