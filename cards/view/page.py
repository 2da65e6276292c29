"""Put data, style and script into one HTML file; lay out a training for it.

The data are compressed JSON in base64, whose alphabet holds no markup, and a policy in the page
lets no script run but ours: whatever a trace says stays text.

reads   run.json
"""

import base64
import gzip
import hashlib
import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from cards.plots import CURVES
from pimono_sdpo.report import MEASURES

Json = dict[str, Any]


def render_page(view: Json) -> str:
    """Return the page of a view (`rows_view`, `run_view`); the same view gives the same bytes."""
    style, script = _file("page.css"), _file("charts.js") + _file("page.js")
    environment = Environment(
        loader=PackageLoader("cards", "view"), undefined=StrictUndefined, autoescape=True
    )
    return environment.get_template("page.html.j2").render(
        title=view["title"],
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=_packed(view),
    )


def _packed(view: Json) -> str:
    content = json.dumps(view, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Without the time the same data are the same bytes.
    return base64.b64encode(gzip.compress(content.encode(), mtime=0)).decode()


def _file(name: str) -> str:
    return files("cards").joinpath("view", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


REWARD = "self_distillation/reward_mean"
NO_CURVES = frozenset({"step", "epoch"})


def run_view(run: Json) -> Json:
    """Return what the page of a training shows."""
    names = dict.fromkeys(key for entry in run["log_history"] for key in entry)
    known = dict(CURVES[run["method"]])
    others = sorted(key for key in names if key not in NO_CURVES and key not in known)
    first = [_curve(run, key, f"{title[:1].upper()}{title[1:]}") for key, title in known.items()]
    more = [_curve(run, key, key) for key in others]
    drawn = [[chart for chart in group if chart["points"]] for group in (first, more)]
    return {
        "title": f"Training {run['run_name']}",
        "subtitle": f"{run['mode']} of {run['base_model']} on {run['dataset']['rows_used']:,} rows "
        f"of {run['dataset']['id']}, recipe {run['recipe']}.",
        "categories": [],
        "groups": [group for group in drawn if group],
        "tables": _tables(run),
        "list": {},
        "rows": [],
    }


def _curve(run: Json, name: str, title: str) -> Json:
    points = [
        [entry["step"], entry[name]]
        for entry in run["log_history"]
        if isinstance(entry.get(name), int | float)
    ]
    threshold = run["arguments"]["success_reward_threshold"] if name == REWARD else None
    return {"kind": "curve", "title": title, "points": points, "threshold": threshold}


def _tables(run: Json) -> list[Json]:
    alerts = [(f"step {item['step']}", item["guard"]) for item in run["guards"]["alerts"]]
    tables = [{"title": "Alerts", "rows": alerts or [("none", "no guard spoke")]}]
    if run["evaluation"]:
        tables.append(
            {"title": "Held-out rows", "rows": _evaluation(run["evaluation"], run["method"])}
        )
    arguments = [(key, value) for key, value in run["arguments"].items() if value is not None]
    return [*tables, {"title": "Arguments", "rows": arguments}]


def _evaluation(evaluation: Json, method: str) -> list[tuple[str, str]]:
    rows = []
    for key, title in MEASURES[method].items():
        for when in ("before", "after", "difference"):
            found = evaluation[key][when]
            sure = "" if found["low"] is None else f" ({found['low']:.4g} to {found['high']:.4g})"
            rows.append((f"{title}, {when}", f"{found['mean']:.4g}{sure}"))
    return rows
