"""Render the self-contained HTML page of `view`, and build its data from a training run.

The data is compressed JSON in base64, which cannot contain markup, and the page's content security
policy allows only the page's own script, so text of a trace is never executed.

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

from pimono_sdpo.report import MEASURES

Json = dict[str, Any]
REWARD = "self_distillation/reward_mean"
# The curves of a method: the metric logged at each step, and its title.
CURVES = {
    "sdft": (
        ("self_distillation/kl", "divergence from the teacher (nats per token)"),
        ("self_distillation/entropy", "entropy (nats per token)"),
        ("completions/mean_length", "completion length (tokens)"),
    ),
    "sdpo": (
        (REWARD, "mean reward"),
        ("self_distillation/kl", "divergence from the teacher (nats per token)"),
        ("completions/mean_length", "completion length (tokens)"),
    ),
    "sft": (("loss", "loss"), ("mean_token_accuracy", "token accuracy"), ("entropy", "entropy (nats per token)")),
    "dpo": (
        ("loss", "loss"),
        ("rewards/margins", "reward margin"),
        ("rewards/accuracies", "pairs with the higher reward for the chosen answer"),
    ),
}


def render_page(view: Json) -> str:
    """Return the page of a view, such as that of `rows_view` or `run_view`; the same view gives the same bytes."""
    style = _read_asset("page.css")
    script = "".join(map(_read_asset, ("charts.js", "review.js", "page.js")))
    content = json.dumps(view, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # By default gzip stores the time.
    packed = gzip.compress(show_overrides(content).encode(), mtime=0)
    environment = Environment(loader=PackageLoader("cards", "view"), undefined=StrictUndefined, autoescape=True)
    return environment.get_template("page.html.j2").render(
        title=show_overrides(view["title"]),
        style=style,
        script=script,
        style_hash=_hash_source(style),
        script_hash=_hash_source(script),
        data=base64.b64encode(packed).decode(),
    )


def show_overrides(text: str) -> str:
    """Make characters visible that override the direction of the text after them."""
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
    "blocks": "Answer and feedback",
    "sort": ["where", 1],
}


def run_view(run: Json) -> Json:
    """Return the view of a training run: before and after, curves, sampled answers, alerts and arguments."""
    titles = {name: f"{title[:1].upper()}{title[1:]}" for name, title in CURVES[run["method"]]}
    others = sorted({name for entry in run["log_history"] for name in entry} - titles.keys() - NO_CURVES)
    main_curves = _build_curves(run, titles)
    rows = _build_rollouts(run)
    shown = f"{len(rows)} answers from steps across the training, with the feedback that the teacher read."
    return {
        "title": f"Training {run['run_name']}",
        "subtitle": f"{run['base_model']} trained on {run['dataset']['rows_used']:,} rows of "
        f"{run['dataset']['id']}; recipe {run['recipe']}, mode {run['mode']}.",
        "categories": [],
        "groups": [group for group in ([_compare(run, main_curves)], main_curves) if group],
        "folded": _build_curves(run, {name: name for name in others}),
        "tables": _build_tables(run),
        "list": LIST | {"shown": shown},
        "rows": rows,
    }


def _compare(run: Json, curves: list[Json]) -> Json:
    """Return the scores before and after training, on held-out rows or else at the first and last steps."""
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
            tenth = max(1, len(values) // 10)
            before, after = sum(values[:tenth]) / tenth, sum(values[-tenth:]) / tenth
            changes.append({"name": chart["title"], "before": {"mean": before}, "after": {"mean": after}})
    return {"kind": "changes", "title": "Before and after", "note": note, "changes": changes}


def _build_rollouts(run: Json) -> list[Json]:
    """Return the sampled answers in the form of the filter's rows."""
    rows = []
    for number, rollout in enumerate(run["rollouts"], 1):
        reward = rollout["reward"]
        # Without a reward there are no successes.
        success = reward is None or reward >= run["arguments"]["success_reward_threshold"]
        texts = {"Answer": rollout["completion"], "Feedback": rollout["feedback"]}
        rows.append(
            {
                **{name: [] for name in ("terms", "categories", "history", "words")},
                "id": str(number),
                "kept": success,
                "outcome": "answer" if reward is None else "success" if success else "below the threshold",
                "score": reward,
                "prompt": rollout["prompt"],
                "where": rollout["step"],
                "facts": [("step", rollout["step"])],
                "blocks": [build_block(title, text) for title, text in texts.items() if text],
            }
        )
    return rows


def build_block(title: str, text: str) -> Json:
    """Return a block of text without marks."""
    return {"title": title, "categories": [], "parts": [[text, None]]}


def _build_curves(run: Json, titles: dict[str, str]) -> list[Json]:
    """Return the charts of the metrics that were logged."""
    curves = []
    for name, title in titles.items():
        values = ((entry["step"], entry.get(name)) for entry in run["log_history"])
        points = [[step, value] for step, value in values if isinstance(value, int | float)]
        threshold = run["arguments"]["success_reward_threshold"] if name == REWARD else None
        if points:
            curves.append({"kind": "curve", "title": title, "points": points, "threshold": threshold})
    return curves


def _build_tables(run: Json) -> list[Json]:
    alerts = [(f"step {item['step']}", item["guard"]) for item in run["guards"]["alerts"]]
    arguments = [(key, value) for key, value in run["arguments"].items() if value is not None]
    return [
        {"title": "Alerts", "rows": alerts or [("none", "no guard raised an alert")]},
        {"title": "Arguments", "rows": arguments},
    ]
