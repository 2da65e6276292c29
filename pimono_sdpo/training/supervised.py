"""SFT and DPO on recorded answers: rows, preflight, memory, trainer and scores.

SFT: loss per token of the answer, and how often the likeliest token is the right one. DPO: whether
the chosen answer is likelier than the rejected one, and by how much (natural logarithm, whole
answers). Rows of a task are alike, so that intervals resample whole tasks.

See memory.py, of whose counts and constants this is made. TRL computes log-probabilities of these
methods in tiles, so that logits of the whole vocabulary exist for a few tokens only.

| part | what it tells | stops a training when |
|---|---|---|
| rows | how many, and which were left out | none is left |
| template | that answers pass through the chat template whole | an answer's row is left out |
| lengths | of prompts and whole rows, beside `max_length` | |
| memory | the peak by shapes | it does not fit |

The arguments are TRL's own SFTConfig or DPOConfig and ModelConfig; what this project decides is
settled here.

reads --dataset / writes OUTPUT/left-out.json, the rows that cannot be trained on whole
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from peft import PeftModel
from trl import DPOTrainer, ModelConfig, SFTTrainer

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.report import MEASURES
from pimono_sdpo.training import models, resume, rows, run
from pimono_sdpo.training.arguments import PairArguments, RecordedArguments
from pimono_sdpo.training.callbacks import Clock
from pimono_sdpo.training.guards import Guards
from pimono_sdpo.training.held_out import Scores, compared
from pimono_sdpo.training.memory import (
    BACKWARD_WIDTHS,
    CONTEXT,
    FORWARD_WIDTHS,
    Estimate,
    Hardware,
    element_size,
    hardware_of,
    read_config,
    weights,
)
from pimono_sdpo.training.models import (
    Adapter,
    load_base,
    lora_config,
    model_init_kwargs,
    open_adapter,
)
from pimono_sdpo.training.preflight import (
    laid_out,
    lengths_of,
    lines_of_memory,
    memory_of,
    refuse,
    too_little_memory,
)
from pimono_sdpo.training.processes import say
from pimono_sdpo.training.rows import refuse_leaks, refuse_test_rows
from pimono_sdpo.training.supervised_rows import (
    ORIGINS,
    TARGETS,
    TEMPLATE,
    common_length,
    fit_recorded,
    uncached,
)
from pimono_sdpo.training.trainer import Fitted, Prepared, build, settle_run

Json = dict[str, Any]


def score_rows(trainer: Any, rows: Dataset) -> dict[str, Scores]:
    """Return each measure of the method, by task; a row without one is a task of its own."""
    method = trainer.args.METHOD
    process, processes = trainer.accelerator.process_index, trainer.accelerator.num_processes
    found: list[tuple[str, dict[str, float]]] = []
    model = trainer.accelerator.unwrap_model(trainer.model)
    was_training = model.training
    model.eval()
    with torch.no_grad(), trainer.accelerator.autocast():
        for number in range(process, len(rows), processes):
            row = rows[number]
            scored = [_answer(trainer, model, row, name) for name in TARGETS[method]]
            origin = next((str(row[name]) for name in ORIGINS if row.get(name)), f"row {number}")
            found.append((origin, _measured(method, scored)))
    model.train(was_training)
    scores: dict[str, Scores] = {name: {} for name in MEASURES[method]}
    for origin, measured in gather_object(found):
        for name, value in measured.items():
            scores[name].setdefault(origin, []).append(value)
    return {name: dict(sorted(by_origin.items())) for name, by_origin in scores.items()}


def summary(before: Json, after: Json, split: str) -> Json:
    """Return every measure before and after, and what they differ by, with intervals of 95 %."""
    first = next(iter(after.values()))
    return {
        "split": split,
        "sessions": len(first),
        "completions": sum(len(values) for values in first.values()),
        **{name: compared(before[name], after[name]) for name in after},
    }


def _measured(method: str, scored: list[tuple[float, float, int]]) -> dict[str, float]:
    """Turn log-probability, right tokens and tokens of each answer into the method's measures."""
    if method == "sft":
        ((log_probability, right, tokens),) = scored
        return {"loss": -log_probability / tokens, "token_accuracy": right / tokens}
    ratio = scored[0][0] - scored[1][0]
    return {"preferred": float(ratio > 0), "log_ratio": ratio}


def _answer(
    trainer: Any, model: Any, row: Mapping[str, Any], name: str
) -> tuple[float, float, int]:
    """Return log-probability, tokens that are the likeliest ones, and tokens of one answer."""
    tokenizer = trainer.processing_class
    template = {"tools": row["tools"], **row[TEMPLATE]}

    def ids(turns: list[Any], **more: Any) -> list[int]:
        encoded = tokenizer.apply_chat_template(
            turns, tokenize=True, return_dict=True, **template, **more
        )
        return list(encoded["input_ids"])

    prompt = ids(row["prompt"], add_generation_prompt=True)
    whole = ids(row["prompt"] + row[name])
    tokens = torch.tensor([whole], device=trainer.accelerator.device)
    labels = tokens.clone()
    labels[:, : common_length(prompt, whole)] = -100
    # The head that the trainer has added computes no logits of the whole vocabulary.
    out = model(
        input_ids=tokens,
        attention_mask=torch.ones_like(tokens),
        labels=labels,
        fused_lm_head=True,
        use_cache=False,
    )
    return float(out.log_probs.sum()), float(out.is_top1.sum()), int(out.label_mask.sum())


# Of TRL's tiles, with their log-softmax and gradient.
TILE_TOKENS, TILE_COPIES = 256, 4


def estimate(
    args: Any, model_args: ModelConfig, revision: str | None, longest: int, adapter: bool
) -> Estimate:
    """Return the peak of one process for rows of at most `longest` tokens."""
    config = read_config(model_args, revision, args.trust_remote_code)
    return of_config(args, model_args, config, longest, adapter)


def of_config(
    args: Any, model_args: ModelConfig, config: Any, longest: int, adapter: bool
) -> Estimate:
    """Return the same for a model's config; DPO takes two answers of a row at once."""
    text = config.get_text_config()
    width = element_size(model_args, config)
    hidden, layers = text.hidden_size, text.num_hidden_layers
    mlp = getattr(text, "intermediate_size", None) or 4 * hidden
    pair = args.METHOD == "dpo"
    tokens = args.per_device_train_batch_size * longest * (2 if pair else 1)
    backward = BACKWARD_WIDTHS[0] * hidden + BACKWARD_WIDTHS[1] * mlp
    kept = layers * hidden + backward if args.gradient_checkpointing else layers * backward
    forward = FORWARD_WIDTHS[0] * hidden + FORWARD_WIDTHS[1] * mlp
    base, lora, _ = weights(config, model_args)
    parts = {
        "base weights": base,
        # Weights, gradient and Adam's two; the adapter of before as reference.
        "LoRA, its gradient, Adam": 4 * lora * (5 if pair and adapter else 4),
        "sequences": int(tokens * kept * width),
        "reference": int(tokens * forward * width) if pair else 0,
        "logits": TILE_COPIES * TILE_TOKENS * text.vocab_size * 4,
        "CUDA context": CONTEXT,
    }
    flags = {
        "base weights": ""
        if model_args.load_in_4bit
        else "--load_in_4bit true (NF4), with --use_bnb_nested_quant true",
        "sequences": "--gradient_checkpointing true, a smaller --per_device_train_batch_size with "
        "more --gradient_accumulation_steps, or a smaller --max_length",
        "reference": "--precompute_ref_log_probs true",
    }
    return Estimate(parts, flags)


def preflight(
    args: Any,
    model_args: ModelConfig,
    fitted: Fitted,
    revision: str | None,
    hardware: Hardware,
    adapter: bool,
) -> Json:
    """Return everything that is found before the first step; `stops` are reasons not to train."""
    peak = estimate(args, model_args, revision, max(fitted.lengths["sequence"]), adapter)
    memory = memory_of(peak, hardware)
    return {
        "rows": {"given": fitted.given, "used": len(fitted.rows), **fitted.counts},
        "templates_checked": len(fitted.rows),
        "lengths": {
            "prompt": lengths_of(fitted.lengths["prompt"], None),
            "sequence": lengths_of(fitted.lengths["sequence"], args.max_length),
        },
        "memory": memory,
        "stops": too_little_memory(memory),
    }


def as_text(found: Json) -> str:
    """Lay out what was found in lines of a name and what is known of it."""
    rows = found["rows"]
    left_out = ", ".join(f"{reason} {count}" for reason, count in rows["left_out"].items())
    lines = [
        ("rows", f"{rows['used']} of {rows['given']} used; left out: {left_out or 'none'}"),
        ("chat template", f"keeps {found['templates_checked']} rows whole"),
    ]
    if rows["prompts_rendered_otherwise"]:
        lines.append(
            (
                "",
                f"but renders {rows['prompts_rendered_otherwise']} prompts otherwise without an "
                "answer: what is trained there is not what is sampled later",
            )
        )
    if rows["with_tool_output"]:
        lines.append(
            (
                "answers",
                f"{rows['with_tool_output']} hold turns of tools or users, which are trained on, "
                "too; rows of one action each have none",
            )
        )
    for name, told in found["lengths"].items():
        limit = "" if told["budget"] is None else f"; max_length is {told['budget']}"
        lines.append(
            (
                name,
                f"{told['p50']} tokens (median), {told['p90']} (p90), {told['max']} (most){limit}",
            )
        )
    return laid_out([*lines, *lines_of_memory(found["memory"])])


# What a chat template is told unless a row says otherwise; as the SDPO job does.
TEMPLATE_KWARGS = {"enable_thinking": False}


def settle_arguments(args: Any, smoke: bool) -> None:
    """Set in place what holds for every run of SFT and DPO, see settle_run.

    Raises TrainingInputError for arguments that would train on something else than the rows.
    """
    settle_run(args, smoke)
    if args.METHOD == "sft" and args.chat_template_path is not None:
        raise TrainingInputError(
            "--chat_template_path is not taken: the adapter is for the base model with its own "
            "chat template; leave it out."
        )
    if args.METHOD == "sft" and args.completion_only_loss is False:
        raise TrainingInputError(
            "--completion_only_loss false would train the model to write tool results and "
            "requests; leave it out."
        )


def prepare(
    args: Any,
    model_args: ModelConfig,
    fitted: Fitted,
    tokenizer: Any,
    revision: str | None,
    adapter: Adapter | None = None,
) -> Prepared:
    """Build the trainer of the model at this revision, on top of an adapter if there is one.

    Raises TrainingInputError when none can be built.
    """
    args.model_init_kwargs = {**model_init_kwargs(model_args, revision), **args.model_init_kwargs}
    # The trainer reads messages, and takes every other column for data of its own.
    rows, held_out = (_bare(one) for one in (fitted.rows, fitted.held_out))
    make = SFTTrainer if args.METHOD == "sft" else DPOTrainer

    def trainer() -> Any:
        model: Any = model_args.model_name_or_path
        if adapter is not None:
            base = load_base(model_args, args.model_init_kwargs)
            args.model_init_kwargs = None
            model = PeftModel.from_pretrained(base, str(adapter.folder), is_trainable=True)
        weights = None if adapter is None else _trained(model)
        with uncached():
            made = make(
                model=model,
                args=args,
                train_dataset=rows,
                eval_dataset=held_out if args.eval_strategy != "no" else None,
                processing_class=tokenizer,
                peft_config=lora_config(model_args) if adapter is None else None,
            )
        if not args.bf16:
            keep_precision(made.model, weights)
        return made

    clock, guards = Clock(), Guards(args)
    built = build(trainer, model_args)
    built.add_callback(clock)
    built.add_callback(guards)
    return Prepared(built, revision, clock, guards, fitted)


def keep_precision(model: Any, weights: dict[str, torch.Tensor] | None) -> None:
    """Train LoRA in float32, from `weights` if there are some.

    On a quantised base SFTTrainer and DPOTrainer turn the LoRA weights into bfloat16, which cannot
    hold three of four steps of Adam at a learning rate of 1e-5; SDPOTrainer does not.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
            if weights is not None:
                parameter.data.copy_(weights[name])


def _trained(model: Any) -> dict[str, torch.Tensor]:
    named = model.named_parameters()
    return {name: one.detach().float().clone() for name, one in named if one.requires_grad}


def _bare(rows: Dataset | None) -> Dataset | None:
    if rows is None:
        return None
    known = ("prompt", "completion", "chosen", "rejected", "tools", "chat_template_kwargs")
    return rows.select_columns([name for name in known if name in rows.column_names])


def get_ready(job: RecordedArguments, args: Any, model_args: ModelConfig) -> run.Ready | None:
    """Check everything and build the trainer; None after --mode preflight."""
    if job.dataset is None:
        raise TrainingInputError("There is nothing to train on; give --dataset (rows).")
    output, method = Path(args.output_dir), args.METHOD
    loaded = rows.load_rows(job.dataset, config=job.dataset_config)
    held_out = None
    if job.eval_split:
        held_out = rows.load_rows(job.dataset, job.eval_split, job.dataset_config)
    refuse_test_rows(loaded, job.dataset)
    tested = None
    if job.test_suite is not None:
        tested = refuse_leaks(loaded, Path(job.test_suite))
    revision = models.base_model_revision(model_args)
    adapter = _adapter(job, model_args)
    models.lora_config(model_args)
    tokenizer = models.load_tokenizer(model_args, revision, args.trust_remote_code)
    teaching = {
        "adapter": None if adapter is None else adapter.name,
        "eval_split": job.eval_split,
        "test_tasks": tested,
    }
    own = {**teaching, "adapter": None if adapter is None else adapter.identity}
    columns = ("prompt", *TARGETS[method], "tools", TEMPLATE)
    start = resume.started_with(args, model_args, revision, loaded, own, held_out, columns)
    if not job.overwrite:
        resume.check_same_start(output, start)
    fitted, left_out = fit_recorded(
        method, loaded, tokenizer, args.max_length, TEMPLATE_KWARGS, held_out
    )
    goes_on, before = run.found_before(output, job.overwrite)
    if job.mode == "preflight" or not goes_on:
        hardware = hardware_of(job.flavor)
        found = preflight(args, model_args, fitted, revision, hardware, adapter is not None)
        say(as_text(found))
        refuse(found, job.force)
        before["preflight"] = found
    if job.mode == "preflight":
        return None
    prepared = prepare(args, model_args, fitted, tokenizer, revision, adapter)
    score = None
    if fitted.held_out is not None:
        score = partial(score_rows, prepared.trainer, fitted.held_out)
    return run.Ready(
        prepared,
        rows.dataset_name(job.dataset),
        None,
        start,
        teaching,
        before,
        goes_on,
        score,
        partial(summary, split=str(job.eval_split)),
        _notes(left_out, fitted.given),
        left_out,
    )


def _adapter(job: RecordedArguments, model_args: ModelConfig) -> Adapter | None:
    if not isinstance(job, PairArguments) or job.adapter is None:
        return None
    return open_adapter(job.adapter, model_args)


def _notes(left_out: list[Json], given: int) -> list[str]:
    if not left_out:
        return []
    first = left_out[0]
    return [
        f"{len(left_out)} of {given} rows were left out, see left-out.json; the first, row "
        f"{first['row']}: {first['reason']} ({first['detail']})"
    ]
