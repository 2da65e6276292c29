"""Render a duel: the report with a row per turn, its picture, and the dataset's card.

The same summary and rows give the same bytes.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from cards.plots import COLOUR, plain, save
from cards.render import SIZES, config_of, environment, front_matter
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
    "turn_id": "which turn",
    "instance_id": "the task it comes from; turns of one task are alike",
    "repo": "its repository",
    "messages": "the conversation up to the turn",
    "assistant": "what the recorded agent did",
    "turn": "number of the turn within the trajectory",
    "action_style": "what kind of action the recorded agent took",
    "king": "the answer of the player that is blind",
    "challenger": "the answer of the player that saw the pull request",
    "privileged_context": "the hidden pull request",
    "leaked_terms": "terms of the challenger's answer that only the pull request holds",
    "opponent": "against whom the challenger was judged",
    "score": "0 to 100 in favour of the challenger; null without enough votes",
    "metrics": "the same for each metric",
    "per_judge": "the same for each judge",
    "n_votes": "judges that had a say",
    "position_consistent": "whether all of them said the same in both orders",
    "bucket": "final, refined, defeat, or parse_fail",
    "reason": "what the judges said",
}


def render_duel_report(summary: Json, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return report.md of a duel; `rows` are DUEL rows, read once."""
    told = environment()
    told.filters |= {"points": points, "signed": signed, "percent": percent, "share": share}
    given = {**summary, "turns": summary["verdict"]["turns"], "metrics": DUEL_METRICS}
    return told.get_template("duel_report.md.j2").render(given, ranges=RANGES, rows=rows)


def render_duel_card(report: Json) -> str:
    """Return the dataset card of a finished duel: a configuration per bucket."""
    files = {name: f"data/{name}-*.parquet" for name in report["configs"]}
    configs = [
        config_of(name, {"train": path}, report["sha256"][name]) for name, path in files.items()
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
    template = environment().get_template("duel_card.md.j2")
    return template.render(metadata=front_matter(metadata), report=report, columns=columns)


def write_duel_plot(summary: Json, path: Path) -> None:
    """Draw turns per score with the buckets, the metrics, and the judges."""
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
        plain(axes)
    save(figure, path)


def points(value: float | None) -> str:
    """Write points, or a dash for none.

    >>> points(66.666), points(None)
    ('66.7', '-')
    """
    return "-" if value is None else f"{value:.1f}"


def signed(value: float | None) -> str:
    """Write points with their sign, or a dash for none."""
    return "-" if value is None else f"{value:+.1f}"


def percent(value: float | None) -> str:
    """Write a share in percent, or a dash for none."""
    return "-" if value is None else f"{100 * value:.0f} %"


def share(value: float | None) -> str:
    """Write a number of -1 to 1, or a dash for none."""
    return "-" if value is None else f"{value:.2f}"
