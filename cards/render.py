"""Render cards from what a run wrote down: nothing is typed in by hand.

The same report and run give the same bytes; a value that is missing is an error, not a blank.

The same report gives the same bytes.
"""

import hashlib
import re
import shlex
from pathlib import Path
from typing import Any

import yaml
from datasets import Features
from jinja2 import Environment, PackageLoader, StrictUndefined

from cards.lint import is_repo_id, lint_file
from cards.plots import CURVES, write_evaluation_plot, write_report_plots, write_run_plot
from cards.view import render_page, run_view
from pimono_sdpo.report import MEASURES
from pimono_sdpo.schema import SDPO_ROW
from pimono_sdpo.text import shorten

Json = dict[str, Any]
PREVIEW_CHARS = 1200
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))

COLUMNS = {
    "prompt": "the request, a conversation ending in a user turn",
    "privileged_context": "diagnostics and later corrections; the teacher sees it, the student not",
    "reward_terms": "categories and concrete tokens of the failure",
    "score": "sum of `score_terms`",
    "score_terms": "what added how much",
    "categories": "what went wrong",
    "corrections": "which later messages correct: by which rule, how surely, in which words",
    "session_id": "the session the row is from",
    "source": "its file",
    "harness": "the agent that recorded it",
    "episode": "number of the request within the session (0 for whole sessions)",
    "split": "train or test, by repository",
    "verifier_spec": "JSON: the tools that may be called, the call that failed; or null",
    "counts": "what the session held, and what became of its lines and bytes",
}


def render_dataset_card(report: Json) -> str:
    """Return the dataset card of a filter run."""
    source = report["input"]["source"]
    kept = report["kept"]
    hashes, splits = report["sha256"], report["splits"]
    data = {split: f"data/{split}-*.parquet" for split in ("train", "test") if split in splits}
    configs = [{**config_of("default", data, hashes["data"]), "default": True}]
    if report["rejected"]:
        files = {"train": "rejects/rejects-*.parquet"}
        configs.append(config_of("rejects", files, hashes["rejects"]))
    metadata: Json = {
        "configs": configs,
        "pretty_name": f"SDPO rows from {source}",
        "size_categories": [next((name for size, name in SIZES if kept < size), "n>1M")],
        "task_categories": ["text-generation"],
        "tags": ["agent-traces", "pimono-sdpo", "sdpo", "trl"],
    }
    if report["licence"]:
        metadata["license"] = report["licence"]
    if report["input"]["kind"] == "hub":
        metadata["source_datasets"] = [source]
    columns = [(name, type_of(feature), COLUMNS[name]) for name, feature in SDPO_ROW.items()]
    return (
        environment()
        .get_template("dataset_card.md.j2")
        .render(
            metadata=front_matter(metadata),
            report=report,
            columns=columns,
            sample=_preview(report["first_sample"]),
        )
    )


def render_model_card(report: Json | None, run: Json) -> str:
    """Return the model card of a training run; `report` is None when the rows had none."""
    base = run["base_model"]
    on_hub = _is_hub_id(run)
    metadata: Json = {
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["trl", run["method"], "lora", "pimono-sdpo", "agent-traces", "trackio"],
    }
    if run["arguments"]["load_in_4bit"] or run["arguments"]["load_in_8bit"]:
        metadata["tags"].append("qlora")
    if on_hub:
        metadata["base_model"] = base
        metadata["base_model_relation"] = "adapter"
        metadata["tags"].append(f"base_model:adapter:{base}")
    if run["trackio"]["url"]:
        metadata["tags"].append(f"trackio:{run['trackio']['url']}")
    datasets = [run["dataset"]["id"]]
    if report is not None and report["input"]["kind"] == "hub":
        datasets.append(report["input"]["source"])
    hub_datasets = sorted({name for name in datasets if is_repo_id(name) and "/" in name})
    if hub_datasets:
        metadata["datasets"] = hub_datasets
    if run["licence"]:
        metadata["license"] = run["licence"]
    name = run["hub_model_id"] or run["run_name"]
    if run["evaluation"]:
        metadata["model-index"] = [_model_index(name, run)]
    batch = (
        run["arguments"]["per_device_train_batch_size"]
        * run["arguments"]["gradient_accumulation_steps"]
        * run["hardware"]["count"]
    )
    logged = [entry for entry in run["log_history"] if "loss" in entry]
    steps = _steps(run)
    return (
        environment()
        .get_template("sdpo_card.md.j2" if run["method"] == "sdpo" else "recorded_card.md.j2")
        .render(
            metadata=front_matter(metadata),
            name=name,
            base=base if on_hub else base.rstrip("/").rpartition("/")[2],
            on_hub=on_hub,
            report=report,
            run=run,
            arguments=run["arguments"],
            steps=steps,
            completions=steps * batch,
            # One line, so that nothing in it can end the code block.
            command=" ".join(shlex.join(run["command"]).split("\n")),
            metrics=_metrics(logged),
            mean_reward=_mean(logged, "self_distillation/reward_mean"),
            successes=_mean(logged, "self_distillation/success_group_fraction"),
            sample=_preview(report["first_sample"]) if report is not None else None,
            measures=MEASURES[run["method"]],
            curves=", ".join(title for _, title in CURVES[run["method"]]).capitalize(),
        )
    )


def _model_index(name: str, run: Json) -> Json:
    """Return our own scores on held-out rows the way the Hub lists them."""
    evaluation, dataset = run["evaluation"], run["dataset"]["id"]
    metrics = [
        {"type": name, "name": f"{title} on held-out rows", "value": round(score, 4)}
        for name, title in MEASURES[run["method"]].items()
        for score in [evaluation[name]["after"]["mean"]]
    ]
    return {
        "name": name,
        "results": [
            {
                "task": {"type": "text-generation"},
                "dataset": {"name": dataset, "type": dataset, "split": evaluation["split"]},
                "metrics": metrics,
            }
        ],
    }


def _is_hub_id(run: Json) -> bool:
    """A Hub model is pinned to a commit by the run; a local folder is not."""
    return run["base_model_revision"] is not None and is_repo_id(run["base_model"])


def _steps(run: Json) -> int:
    """Return the optimizer steps of a finished run; its log need not have a line for each."""
    asked: int = run["arguments"]["max_steps"]
    if asked > 0 and run["guards"]["stopped_by"] is None:
        return asked
    return max((entry["step"] for entry in run["log_history"]), default=0)


def _metrics(steps: list[Json]) -> list[tuple[str, float, float, float]]:
    """Name, first, last and mean of what was logged at each step."""
    names = dict.fromkeys(name for entry in steps for name in entry)
    rows = []
    for name in sorted(names):
        values = [entry[name] for entry in steps if isinstance(entry.get(name), int | float)]
        if name not in {"step", "epoch"} and values:
            rows.append((name, values[0], values[-1], sum(values) / len(values)))
    return rows


def _mean(steps: list[Json], name: str) -> float | None:
    values = [entry[name] for entry in steps if entry.get(name) is not None]
    return sum(values) / len(values) if values else None


def config_of(name: str, data: dict[str, str], sha256: str) -> Json:
    """Describe a configuration; `load_dataset` caches a local folder by this description alone.

    Without the hash, a folder that was written again would give its old rows.
    """
    files = [{"split": split, "path": path} for split, path in data.items()]
    return {"config_name": name, "data_files": files, "description": f"sha256 {sha256}"}


def front_matter(metadata: Json) -> str:
    """Return the YAML of a card."""
    text: str = yaml.safe_dump(metadata, sort_keys=True, allow_unicode=True)
    return text


def _preview(row: Json) -> Json:
    return {
        "prompt": shorten(row["prompt"][-1]["content"], PREVIEW_CHARS),
        "context": shorten(row["privileged_context"], PREVIEW_CHARS),
        "terms": row["reward_terms"],
        "score": row["score"],
        "score_terms": row["score_terms"],
    }


def environment() -> Environment:
    """Return what renders the templates; a value that is missing is an error."""
    environment = Environment(
        loader=PackageLoader("cards", "."),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # Markdown, not HTML; values go through `cell` and `fence`
    )
    environment.filters |= {"cell": cell, "fence": fence, "number": number, "title": title}
    return environment


def cell(value: object) -> str:
    r"""Make a value safe inside a Markdown table or heading.

    >>> cell("a|b\n`c`")
    "a\\|b 'c'"
    """
    text = " ".join(str(value).split()).replace("`", "'")
    # A backslash before the pipe would undo the one that protects it.
    return re.sub(r"\\(?=\|)", r"\\ ", text).replace("|", r"\|")


def title(value: object) -> str:
    """Make a value safe inside a heading, where HTML would be read as such.

    >>> title("<b>x")
    '&lt;b>x'
    """
    return cell(value).replace("<", "&lt;")


def fence(text: str) -> str:
    """Put text into a code block that the text cannot end.

    >>> fence("x").splitlines()
    ['```text', 'x', '```']
    """
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}text\n{text}\n{marks}"


def number(value: object) -> str:
    """Write a number as short as it can be read back; None is a dash."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def type_of(feature: Any) -> str:
    """Name the type of a column."""
    return cell(feature.dtype if type(feature).__name__ == "Value" else "list")


WHAT = {
    "steps": "Next-action rows for supervised fine-tuning: what a coding agent had read, and its "
    "next tool call.",
    "pairs": "Preference pairs for DPO: of one beginning, the better continuation and the worse.",
    "sdpo": "Rows for SDPO: a turn, and apart from it what the teacher alone may see.",
}
TAGS = {"steps": "sft", "pairs": "dpo", "sdpo": "sdpo"}
STAGE_COLUMNS = {
    "prompt": "what the model had read, a conversation",
    "privileged_context": "what only the teacher sees",
    "reward_terms": "concrete tokens of it",
    "score": "of the turn in its duel, 0 to 100",
    "completion": "the action to learn, an assistant's turn",
    "chosen": "the better continuation",
    "rejected": "the worse one",
    "tools": "definitions of the tools (native protocol)",
    "task_id": "the task of the suite, or the session",
    "run_id": "the rollout, or the session",
    "step": "number of the action in its run",
    "n_tokens": "tokens of prompt and completion, when they were counted",
    "split": "train or test, by task",
    "target": "what is compared: step, patch, last_write, truncated, summary, full, edit, branch, "
    "turn",
    "score_chosen": "the score of the better run, compared place by place",
    "score_rejected": "that of the worse run",
    "run_chosen": "the better run",
    "run_rejected": "the worse run",
    "suite": "the suite of the task",
    "model": "the model that made the runs",
    "seed_chosen": "seed of the better run",
    "seed_rejected": "seed of the worse run",
}


def render_stage_card(report: Json, features: Features) -> str:
    """Return the card of a folder of such rows."""
    stage = report["stage"]
    configs: list[Json] = []
    if report["rows"]:
        files = {split: f"data/{split}-*.parquet" for split in report["splits"]}
        config = config_of(stage, files, _digest(report["sha256"]["data"]))
        configs.append({**config, "default": True})
    if report["rejected"]:
        rejects = {"train": "rejects/rejects-*.parquet"}
        digest = _digest(report["sha256"]["rejects"])
        configs.append(config_of(f"{stage}_rejects", rejects, digest))
    count = report["rows"]
    metadata: Json = {
        "configs": configs,
        "pretty_name": f"Agent {stage} from {report['source']}",
        "size_categories": [next((name for size, name in SIZES if count < size), "n>1M")],
        "task_categories": ["text-generation"],
        "tags": ["agent-traces", "pimono-sdpo", TAGS[stage], "trl"],
    }
    if report["licence"]:
        metadata["license"] = report["licence"]
    columns = [(name, type_of(feature), STAGE_COLUMNS[name]) for name, feature in features.items()]
    return (
        environment()
        .get_template("stage_card.md.j2")
        .render(metadata=front_matter(metadata), report=report, what=WHAT[stage], columns=columns)
    )


def _digest(of_files: list[str]) -> str:
    return hashlib.sha256(" ".join(of_files).encode()).hexdigest()


PLOT, PAGE = "training.png", "training.html"
EVALUATION_PLOT = "evaluation.png"


def write_model_card(report: Json | None, run: Json, folder: Path) -> list[str]:
    """Write README.md, the plots it shows and the page it links.

    Returns what the Hub may refuse in the card.
    """
    write_run_plot(run, folder / PLOT)
    if report is not None:
        write_report_plots(report, folder)
    (folder / PAGE).write_text(render_page(run_view(run)), encoding="utf-8")
    if run["evaluation"]:
        write_evaluation_plot(run, folder / EVALUATION_PLOT)
    card = render_model_card(report, run)
    (folder / "README.md").write_text(card)
    return lint_file(folder / "README.md")
