"""Write the self-contained HTML page, and lay out a training run for it.

The data are compressed JSON in base64, which cannot contain markup, and the page's content security
policy allows only our own script: text of a trace is never executed.

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
    """Return the page of a view made by `rows_view`, `review_view` or `run_view`.

    The same view gives the same bytes.
    """
    style = _read_asset("page.css")
    script = "".join(map(_read_asset, ("charts.js", "review.js", "page.js")))
    environment = Environment(
        loader=PackageLoader("cards", "view"), undefined=StrictUndefined, autoescape=True
    )
    return environment.get_template("page.html.j2").render(
        title=view["title"],
        style=style,
        script=script,
        style_hash=_hash_source(style),
        script_hash=_hash_source(script),
        data=_pack(view),
    )


def _pack(view: Json) -> str:
    content = json.dumps(view, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # gzip would store the time.
    return base64.b64encode(gzip.compress(content.encode(), mtime=0)).decode()


def _read_asset(name: str) -> str:
    return files("cards").joinpath("view", name).read_text(encoding="utf-8")


def _hash_source(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


REWARD = "self_distillation/reward_mean"
NO_CURVES = frozenset({"step", "epoch"})


def run_view(run: Json) -> Json:
    """Lay out a training run: curves, alerts, held-out scores and arguments."""
    names = dict.fromkeys(key for entry in run["log_history"] for key in entry)
    known = dict(CURVES[run["method"]])
    others = sorted(key for key in names if key not in NO_CURVES and key not in known)
    first = [
        _build_curve(run, key, f"{title[:1].upper()}{title[1:]}") for key, title in known.items()
    ]
    more = [_build_curve(run, key, key) for key in others]
    drawn = [[chart for chart in group if chart["points"]] for group in (first, more)]
    return {
        "title": f"Training {run['run_name']}",
        "subtitle": f"{run['mode']} of {run['base_model']} on {run['dataset']['rows_used']:,} rows "
        f"of {run['dataset']['id']}, recipe {run['recipe']}.",
        "categories": [],
        "groups": [group for group in drawn if group],
        "tables": _build_tables(run),
        "list": {},
        "rows": [],
    }


def _build_curve(run: Json, name: str, title: str) -> Json:
    points = [
        [entry["step"], entry[name]]
        for entry in run["log_history"]
        if isinstance(entry.get(name), int | float)
    ]
    threshold = run["arguments"]["success_reward_threshold"] if name == REWARD else None
    return {"kind": "curve", "title": title, "points": points, "threshold": threshold}


def _build_tables(run: Json) -> list[Json]:
    alerts = [(f"step {item['step']}", item["guard"]) for item in run["guards"]["alerts"]]
    tables = [{"title": "Alerts", "rows": alerts or [("none", "no guard raised one")]}]
    if run["evaluation"]:
        tables.append(
            {"title": "Held-out rows", "rows": _build_evaluation(run["evaluation"], run["method"])}
        )
    arguments = [(key, value) for key, value in run["arguments"].items() if value is not None]
    return [*tables, {"title": "Arguments", "rows": arguments}]


def _build_evaluation(evaluation: Json, method: str) -> list[tuple[str, str]]:
    rows = []
    for key, title in MEASURES[method].items():
        for when in ("before", "after", "difference"):
            found = evaluation[key][when]
            sure = "" if found["low"] is None else f" ({found['low']:.4g} to {found['high']:.4g})"
            rows.append((f"{title}, {when}", f"{found['mean']:.4g}{sure}"))
    return rows
