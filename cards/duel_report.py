"""Render the report of a duel with a row per turn, its plot and its dataset card."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from cards.plots import COLOUR, hide_frame, save_figure
from cards.render import SIZES, describe_config, dump_front_matter, make_environment
from pimono_sdpo.schema import DUEL, DUEL_METRICS, FINAL_SCORE, REFINED_SCORE

Json = dict[str, Any]
RANGES = (
    ("final", f">= {FINAL_SCORE:g}"),
    ("refined", f"{REFINED_SCORE:g} to {FINAL_SCORE:g}"),
    ("defeat", f"< {REFINED_SCORE:g}"),
    ("parse_fail", "none"),
)
GREY = "#b0b0b0"
COLUMNS = {
    "turn_id": "id of the turn",
    "instance_id": "the task of the turn; turns of one task are not independent",
    "repo": "repository of the task",
    "messages": "the conversation up to the turn",
    "assistant": "what the recorded agent did",
    "turn": "index of the turn within the trajectory",
    "action_style": "kind of action that the recorded agent took",
    "king": "the answer without the pull request",
    "challenger": "the answer with the pull request",
    "privileged_context": "the hidden pull request",
    "leaked_terms": "terms of the challenger's answer that only the pull request holds",
    "opponent": "what the challenger was compared with",
    "score": "0 to 100, above 50 in favour of the challenger; null without enough votes",
    "metrics": "score per metric",
    "per_judge": "score per judge",
    "n_votes": "judges whose replies could be read",
    "position_consistent": "whether all judges agree with themselves in both orders",
    "bucket": "final, refined, defeat, or parse_fail",
    "reason": "explanations of the judges",
}


def render_duel_report(summary: Json, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return report.md of a duel; `rows` are DUEL rows, read once."""
    templates = make_environment()
    templates.filters |= {
        "points": format_points,
        "signed": format_signed,
        "percent": format_percent,
        "share": format_share,
    }
    values = {**summary, "turns": summary["verdict"]["turns"], "metrics": DUEL_METRICS}
    return templates.get_template("duel_report.md.j2").render(values, ranges=RANGES, rows=rows)


def render_duel_card(report: Json) -> str:
    """Return the dataset card of a finished duel: a configuration per bucket."""
    files = {name: f"data/{name}-*.parquet" for name in report["configs"]}
    configs = [
        describe_config(name, {"train": path}, report["sha256"][name])
        for name, path in files.items()
    ]
    size = sum(report["configs"].values())
    metadata: Json = {
        "configs": configs,
        "pretty_name": f"Duels over {report['source']}",
        "size_categories": [next((name for limit, name in SIZES if size < limit), "n>1M")],
        "task_categories": ["text-generation"],
        "tags": ["agent-traces", "pimono-sdpo", "preference", "llm-as-a-judge"],
    }
    if report["licence"]:
        metadata["license"] = report["licence"]
    columns = [(name, COLUMNS[name]) for name in DUEL]
    template = make_environment().get_template("duel_card.md.j2")
    return template.render(metadata=dump_front_matter(metadata), report=report, columns=columns)


def write_duel_plot(summary: Json, path: Path) -> None:
    """Draw the histogram of scores with the buckets, and the scores per metric and judge."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    bins = summary["histogram"]
    left.bar(
        [bin_["from"] for bin_ in bins],
        [bin_["turns"] for bin_ in bins],
        width=[bin_["to"] - bin_["from"] for bin_ in bins],
        align="edge",
        color=COLOUR,
        edgecolor="white",
    )
    left.margins(y=0.12)
    for limit, name in ((REFINED_SCORE, "refined"), (FINAL_SCORE, "final")):
        left.axvline(limit, color="grey", linestyle="--", linewidth=1)
        left.annotate(
            name, (limit + 1, 0.98), xycoords=("data", "axes fraction"), color="grey", fontsize=8,
            va="top",
        )  # fmt: skip
    left.set_title("turns per score")
    left.yaxis.get_major_locator().set_params(integer=True)
    values = [summary["metrics"][name] or 0.0 for name in DUEL_METRICS]
    bars = middle.barh(DUEL_METRICS, values, color=COLOUR)
    middle.bar_label(bars, fmt="%.0f", padding=2)
    middle.set_title("score per metric")
    names = [judge["name"].rpartition("/")[2] for judge in summary["judges"]]
    scores = [judge["score"] or 0.0 for judge in summary["judges"]]
    bars = right.barh(names, scores, color=COLOUR)
    right.bar_label(bars, fmt="%.0f", padding=2)
    right.set_title("score per judge")
    for axes in (middle, right):
        axes.axvline(50, color="grey", linestyle="--", linewidth=1)
        axes.set_xlim(0, 108)
        axes.invert_yaxis()
    for axes in (left, middle, right):
        hide_frame(axes)
    save_figure(figure, path)


def format_points(value: float | None) -> str:
    """Format points; None is a dash.

    >>> format_points(66.666), format_points(None)
    ('66.7', '-')
    """
    return "-" if value is None else f"{value:.1f}"


def format_signed(value: float | None) -> str:
    """Format points with their sign; None is a dash."""
    return "-" if value is None else f"{value:+.1f}"


def format_percent(value: float | None) -> str:
    """Format a share in percent; None is a dash."""
    return "-" if value is None else f"{100 * value:.0f} %"


def format_share(value: float | None) -> str:
    """Format a number from -1 to 1; None is a dash."""
    return "-" if value is None else f"{value:.2f}"
