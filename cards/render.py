"""Render dataset cards, model cards and reports from what a run recorded.

The same report and run give the same bytes; a missing value is an error.
"""

import hashlib
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from datasets import Features
from huggingface_hub import CardData, DatasetCardData, EvalResult, ModelCardData
from jinja2 import Environment, PackageLoader, StrictUndefined

from cards.lint import is_repo_id, lint_file
from cards.view import render_page, run_view
from pimono_sdpo.report import MEASURES
from pimono_sdpo.schema import DUEL, DUEL_METRICS, FINAL_SCORE, REFINED_SCORE, SDPO_ROW
from pimono_sdpo.text import escape_controls, shorten

Json = dict[str, Any]
PREVIEW_CHARS = 1200
REJECTS = {"train": "rejects/rejects-*.parquet"}
PAGE = "training.html"
# The tag of a dataset, by the stage that made its rows.
TAGS = {"steps": "sft", "pairs": "dpo", "sdpo": "sdpo", "recoveries": "sdpo"}
# The scores of the buckets of a duel.
RANGES = (
    ("final", f">= {FINAL_SCORE:g}"),
    ("refined", f"{REFINED_SCORE:g} to {FINAL_SCORE:g}"),
    ("defeat", f"< {REFINED_SCORE:g}"),
    ("parse_fail", "none"),
)
TEACHERS = {
    "ema": "the model's own moving average",
    "base": "the base model without the adapter",
    "live": "the model itself",
}
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))

# Descriptions of the columns, by the kind of rows.
COLUMNS: dict[str, dict[str, str]] = tomllib.loads(files("cards").joinpath("columns.toml").read_text(encoding="utf-8"))
# Descriptions of training metrics: of the whole run, and of a step by method.
METRICS: dict[str, dict[str, str]] = tomllib.loads(files("cards").joinpath("metrics.toml").read_text(encoding="utf-8"))


def render_dataset_card(report: Json) -> str:
    """Return the dataset card of a filter run."""
    source = report["input"]["source"]
    hashes, splits = report["sha256"], report["splits"]
    data = {split: f"data/{split}-*.parquet" for split in ("train", "test") if split in splits}
    configs = [{**describe_config("default", data, hashes["data"]), "default": True}]
    if report["rejected"]:
        configs.append(describe_config("rejects", REJECTS, hashes["rejects"]))
    metadata = {
        "pretty_name": f"SDPO rows from {source}",
        "tags": ["sdpo", "trl"],
        "source_datasets": source.split(", ") if report["input"]["kind"] == "hub" else None,
    }
    columns = [(name, name_type(feature), COLUMNS["filter"][name]) for name, feature in SDPO_ROW.items()]
    sample = _shorten_sample(report["first_sample"])
    return _render_rows_card("dataset_card", report, report["kept"], configs, metadata, columns=columns, sample=sample)


def _render_rows_card(
    template: str, report: Json, rows: int, configs: list[Json], metadata: Json, **values: Any
) -> str:
    """Render a dataset card, with the metadata that all of them have in common."""
    tags = ["agent-traces", "pimono-sdpo", *metadata.pop("tags")]
    data = DatasetCardData(
        configs=configs,
        size_categories=[next((name for size, name in SIZES if rows < size), "n>1M")],
        task_categories=["text-generation"],
        tags=tags,
        license=report["licence"] or None,
        **metadata,
    )
    return _render(template, data, report=report, **values)


def _render(template: str, data: CardData, **values: Any) -> str:
    fields = data.to_dict()  # type: ignore[no-untyped-call] # huggingface_hub leaves it untyped
    metadata = yaml.safe_dump(fields, sort_keys=True, allow_unicode=True)
    return make_environment().get_template(f"{template}.md.j2").render(metadata=metadata, **values)


def render_model_card(report: Json | None, run: Json) -> str:
    """Return the model card of a training run; `report` is that of its rows, None if they have none."""
    base, arguments, method = run["base_model"], run["arguments"], run["method"]
    # Only a model on the Hub has a revision.
    on_hub = run["base_model_revision"] is not None and is_repo_id(base)
    tags = ["trl", method, "lora", "pimono-sdpo", "agent-traces", "trackio"]
    if arguments["load_in_4bit"] or arguments["load_in_8bit"]:
        tags.append("qlora")
    if on_hub:
        tags.append(f"base_model:adapter:{base}")
    if run["trackio"]["url"]:
        tags.append(f"trackio:{run['trackio']['url']}")
    datasets = [run["dataset"]["id"]]
    if report is not None and report["input"]["kind"] == "hub":
        datasets += report["input"]["source"].split(", ")
    name = run["hub_model_id"] or run["run_name"]
    results = _list_results(run) if run["evaluation"] else None
    data = ModelCardData(
        library_name="peft",
        pipeline_tag="text-generation",
        tags=tags,
        base_model=base if on_hub else None,
        base_model_relation="adapter" if on_hub else None,
        datasets=sorted({one for one in datasets if is_repo_id(one) and "/" in one}) or None,
        license=run["licence"] or None,
        model_name=name if results else None,
        eval_results=results,
    )
    metrics = _summarize_metrics(run["log_history"], METRICS[method])
    means = {metric: mean for metric, _, _, mean in metrics}
    # Not every step of a finished run may have been logged.
    steps = max((entry["step"] for entry in run["log_history"]), default=0)
    if arguments["max_steps"] > 0 and run["guards"]["stopped_by"] is None:
        steps = arguments["max_steps"]
    batch = arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"]
    return _render(
        "model_card",
        data,
        name=name,
        base=base if on_hub else base.rstrip("/").rpartition("/")[2],
        on_hub=on_hub,
        report=report,
        run=run,
        arguments=arguments,
        objective=arguments.get("method", method),
        teacher=TEACHERS.get(arguments.get("teacher_model_kind"), ""),
        preflight=run.get("preflight") or {},
        steps=steps,
        completions=steps * batch * run["hardware"]["count"] // arguments.get("num_iterations", 1),
        command=_join(run["command"]),
        # Only in a job of Hugging Face.
        job=run.get("job"),
        submitted=_join(run.get("submitted_with", [])),
        metrics=metrics,
        meanings=METRICS,
        mean_reward=means.get("self_distillation/reward_mean"),
        successes=means.get("self_distillation/success_group_fraction"),
        sample=_shorten_sample(report["first_sample"]) if report is not None else None,
        measures=MEASURES[method],
    )


def _join(words: list[str]) -> str:
    """Return a command on one line, so that it cannot close a code block."""
    return " ".join(shlex.join(words).split("\n"))


def _list_results(run: Json) -> list[EvalResult]:
    """Return the scores on held-out rows for the metadata of the card."""
    evaluation, dataset = run["evaluation"], run["dataset"]["id"]
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=dataset,
            dataset_name=dataset,
            dataset_split=evaluation["split"],
            metric_type=metric,
            metric_name=f"{title} on held-out rows",
            metric_value=round(evaluation[metric]["after"]["mean"], 4),
        )
        for metric, title in MEASURES[run["method"]].items()
    ]


def _summarize_metrics(history: list[Json], names: Iterable[str]) -> list[tuple[str, float, float, float]]:
    """Return name, first, last and mean value of each metric that was logged with the loss."""
    steps = [entry for entry in history if "loss" in entry]
    rows = []
    for name in names:
        values = [entry[name] for entry in steps if isinstance(entry.get(name), int | float)]
        if values:
            rows.append((name, values[0], values[-1], sum(values) / len(values)))
    return rows


def describe_config(name: str, data: dict[str, str], sha256: str) -> Json:
    """Return the description of a config for `load_dataset`."""
    # `datasets` caches a local folder by this description; the hash makes it reload changed files.
    files = [{"split": split, "path": path} for split, path in data.items()]
    return {"config_name": name, "data_files": files, "description": f"sha256 {sha256}"}


def _shorten_sample(row: Json) -> Json:
    return {
        "prompt": shorten(row["prompt"][-1]["content"], PREVIEW_CHARS),
        "context": shorten(row["privileged_context"], PREVIEW_CHARS),
        "terms": row["reward_terms"],
        "categories": row["categories"],
        "score": row["score"],
        "score_terms": row["score_terms"],
    }


def make_environment() -> Environment:
    """Return the Jinja environment of the templates; a missing value is an error."""
    environment = Environment(
        loader=PackageLoader("cards", "."),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # Markdown, not HTML; values go through `cell` and `fence`
        # File names and texts of sessions may hold control characters.
        finalize=lambda value: escape_controls(value) if isinstance(value, str) else value,
    )
    formats = {"points": ".1f", "signed": "+.1f", "percent": ".0%", "share": ".2f"}
    environment.filters |= {name: partial(format_figure, spec=spec) for name, spec in formats.items()}
    environment.filters |= {"cell": escape_cell, "fence": fence_text, "number": format_number, "title": escape_title}
    return environment


def escape_cell(value: object) -> str:
    """Escape a value for a Markdown table or heading."""
    text = " ".join(str(value).split()).replace("`", "'")
    # A backslash before a pipe would escape the backslash that escapes the pipe.
    return re.sub(r"\\(?=\|)", r"\\ ", text).replace("|", r"\|")


def escape_title(value: object) -> str:
    """Escape a value for a heading, where HTML would be rendered."""
    return escape_cell(value).replace("<", "&lt;")


def fence_text(text: str) -> str:
    """Put text into a code block that the text cannot close."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}text\n{text}\n{marks}"


def format_figure(value: float | None, spec: str) -> str:
    """Format a number by a format specification; None is a dash."""
    return "-" if value is None else format(value, spec).replace("%", " %")


def format_number(value: object) -> str:
    """Format a number with four significant digits; None is a dash."""
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def name_type(feature: Any) -> str:
    """Return the type of a column for the card."""
    return escape_cell(feature.dtype if type(feature).__name__ == "Value" else "list")


def render_stage_card(report: Json, features: Features) -> str:
    """Return the dataset card of a folder of steps, pairs or duel rows."""
    stage = report["stage"]
    configs: list[Json] = []
    if report["rows"]:
        files = {split: f"data/{split}-*.parquet" for split in report["splits"]}
        configs.append({**describe_config(stage, files, _combine(report["sha256"]["data"])), "default": True})
    if report["rejected"]:
        configs.append(describe_config(f"{stage}_rejects", REJECTS, _combine(report["sha256"]["rejects"])))
    metadata = {"pretty_name": f"Agent {stage} from {report['source']}", "tags": [TAGS[stage], "trl"]}
    columns = [(name, name_type(feature), COLUMNS["stage"][name]) for name, feature in features.items()]
    return _render_rows_card("stage_card", report, report["rows"], configs, metadata, columns=columns)


def _combine(hashes: list[str]) -> str:
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()


def write_model_card(report: Json | None, run: Json, folder: Path) -> list[str]:
    """Write README.md and the page that it links to; return the problems found in the card."""
    (folder / PAGE).write_text(render_page(run_view(run)), encoding="utf-8")
    (folder / "README.md").write_text(render_model_card(report, run))
    return lint_file(folder / "README.md")


def render_comparison(report: Json) -> str:
    """Return the report of an evaluation in Markdown: how two models compare on a suite."""
    return make_environment().get_template("comparison.md.j2").render(report)


def render_duel_report(summary: Json, rows: Iterable[Mapping[str, Any]], singles: Sequence[Mapping[str, Any]]) -> str:
    """Return report.md of a duel; `rows` are DUEL rows, `singles` the turns of the gate."""
    values = {**summary, "metrics": DUEL_METRICS, "singles": singles}
    template = make_environment().get_template("duel_report.md.j2")
    return template.render(values, ranges=RANGES, rows=rows)


def render_duel_card(report: Json) -> str:
    """Return the dataset card of a finished duel: a configuration per bucket."""
    files = {name: f"data/{name}-*.parquet" for name in report["configs"]}
    configs = [describe_config(name, {"train": path}, report["sha256"][name]) for name, path in files.items()]
    metadata = {"pretty_name": f"Duels over {report['source']}", "tags": ["preference", "llm-as-a-judge"]}
    columns = [(name, COLUMNS["duel"][name]) for name in DUEL]
    rows = sum(report["configs"].values())
    return _render_rows_card("duel_card", report, rows, configs, metadata, columns=columns)
