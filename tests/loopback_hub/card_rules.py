"""The Hub's rules for single fields of a README's metadata, in its own words where they are known."""

import re
from collections.abc import Iterator
from typing import Any

# One segment is an old id (gpt2); a path has a leading dot, slash or drive, or more segments.
REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[A-Za-z0-9]{2,8})*|code|multilingual")
RELATIONS = ("adapter", "finetune", "merge", "quantized")
SIZES = ["n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M"]
SIZES += ["100M<n<1B", "1B<n<10B", "10B<n<100B", "100B<n<1T", "n>1T"]
TASKS = frozenset(
    """
    any-to-any audio-classification audio-to-audio audio-text-to-text automatic-speech-recognition
    depth-estimation document-question-answering feature-extraction fill-mask graph-ml
    image-classification image-feature-extraction image-segmentation image-text-to-image
    image-text-to-text image-text-to-video image-to-3d image-to-image image-to-text image-to-video
    keypoint-detection mask-generation multiple-choice object-detection other question-answering
    reinforcement-learning robotics sentence-similarity summarization table-question-answering
    table-to-text tabular-classification tabular-regression tabular-to-text text-classification
    text-generation text-ranking text-retrieval text-to-3d text-to-audio text-to-image
    text-to-speech text-to-video time-series-forecasting token-classification translation
    unconditional-image-generation video-classification video-text-to-text video-to-video
    visual-document-retrieval visual-question-answering voice-activity-detection
    zero-shot-classification zero-shot-image-classification zero-shot-object-detection
    """.split()
)


def listed(field: object) -> list[Any]:
    if field is None:
        return []
    return field if isinstance(field, list) else [field]


def errors_in(metadata: dict[str, Any]) -> Iterator[str]:
    """What a README is refused for, its licence apart."""
    for key in ("base_model", "datasets", "source_datasets", "new_version"):
        for value in listed(metadata.get(key)):
            told = key == "source_datasets" and value in ("original", "extended")
            if not told and not (isinstance(value, str) and REPO_ID.fullmatch(value)):
                yield f'"{key}" with value "{value}" is not valid. Use a model id from the Hub.'
    for key in ("tags", "language", "task_categories", "size_categories"):
        for number, value in enumerate(listed(metadata.get(key))):
            if not isinstance(value, str):
                yield f'"{key}[{number}]" must be a string'
            elif key == "language" and not LANGUAGE.fullmatch(value):
                yield f'"language[{number}]" must be an ISO 639 code in lowercase characters'
    for key in ("pipeline_tag", "library_name", "pretty_name", "license_name", "license_link"):
        if key in metadata and not isinstance(metadata[key], str):
            yield f'"{key}" must be a string'
    relation = metadata.get("base_model_relation")
    if relation is not None and relation not in RELATIONS:
        yield f'"base_model_relation" must be one of [{", ".join(RELATIONS)}]'
    yield from model_index(metadata.get("model-index"))
    yield from configs(metadata.get("configs"))


def model_index(index: object) -> Iterator[str]:
    """Results by task and data set, each with its metrics."""
    if index is None:
        return
    if not isinstance(index, list):
        yield '"model-index" must be an array'
        return
    for m, model in enumerate(index):
        here = f"model-index[{m}]"
        if not isinstance(model, dict) or not isinstance(model.get("results"), list):
            yield f'"{here}.results" is required'
            continue
        if not isinstance(model.get("name"), str):
            yield f'"{here}.name" is required'
        for r, result in enumerate(model["results"]):
            there = f"{here}.results[{r}]"
            for path in ("task.type", "dataset.type", "dataset.name"):
                outer, inner = path.split(".")
                if not isinstance(result.get(outer), dict) or not result[outer].get(inner):
                    yield f'"{there}.{path}" is required'
            if not result.get("metrics"):
                yield f'"{there}.metrics" is required'
            for n, metric in enumerate(listed(result.get("metrics"))):
                for name in ("type", "value"):
                    if name not in metric:
                        yield f'"{there}.metrics[{n}].{name}" is required'


def configs(field: object) -> Iterator[str]:
    """Which files are which configuration and split of a dataset."""
    names = []
    for number, config in enumerate(listed(field)):
        if not isinstance(config, dict) or "config_name" not in config:
            yield f'"configs[{number}].config_name" is required'
        else:
            names.append(config["config_name"])
    if len(names) != len(set(names)):
        yield '"configs" contains a duplicate config_name'


def warnings_in(metadata: dict[str, Any]) -> Iterator[str]:
    """What a README is accepted with."""
    known = {"task_categories": TASKS, "size_categories": SIZES, "pipeline_tag": TASKS}
    for key, values in known.items():
        for value in listed(metadata.get(key)):
            if isinstance(value, str) and value not in values:
                yield f'The {key} "{value}" is not in the official list'
