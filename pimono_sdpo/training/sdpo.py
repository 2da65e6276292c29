"""Build the SDPO trainer of a run.

The arguments are TRL's own SDPOConfig (as our TrainingConfig) and ModelConfig; what this project
decides is settled here.
"""

import math
from typing import Any

from datasets import Dataset
from trl import ModelConfig
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.callbacks import Clock, make_resumable
from pimono_sdpo.training.feedback import AS_IT_IS, Feedback, FeedbackBuilder, check_feedback
from pimono_sdpo.training.guards import Guards
from pimono_sdpo.training.models import lora_config, model_init_kwargs
from pimono_sdpo.training.prompt_rows import Reprompt, fit_rows
from pimono_sdpo.training.rewards import Scoring
from pimono_sdpo.training.trackio_run import log_rollouts
from pimono_sdpo.training.trainer import Fitted, Prepared, build, settle_run


def settle_arguments(args: SDPOConfig, model_args: ModelConfig, smoke: bool) -> None:
    """Set in place what holds for every run of this job, see settle_run."""
    settle_run(args, smoke)
    args.chat_template_kwargs = {"enable_thinking": False, **(args.chat_template_kwargs or {})}


def settle_tools(args: SDPOConfig, tools: list[dict[str, Any]] | None) -> None:
    """Have the chat template declare tools, OpenAI-style, to student and teacher alike."""
    if tools is not None:
        args.chat_template_kwargs = {**args.chat_template_kwargs, "tools": tools}


def settle_length(args: SDPOConfig, generations: int | None) -> None:
    """Train for a number of completions in place of steps; raises TrainingInputError for none."""
    if generations is None:
        return
    if generations < 1:
        raise TrainingInputError(f"--generations is {generations}; give a number from 1.")
    per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    args.max_steps = math.ceil(generations / per_step)


def fit(
    args: SDPOConfig,
    rows: Dataset,
    tokenizer: Any,
    scoring: Scoring,
    feedback: Feedback,
    held_out: Dataset | None = None,
) -> Fitted:
    """Fit the rows to the budgets of the arguments, which are settled for the builder in place.

    Raises TrainingInputError for rows, a reward or feedback that cannot be trained with.
    """
    check_feedback(feedback, scoring.told)
    scoring.check(args.success_reward_threshold, args.reward_weights, rows.column_names)
    per_step = args.generation_batch_size // args.num_generations
    if len(rows) < per_step:
        raise TrainingInputError(
            f"There are {len(rows)} rows and each step takes {per_step} prompts; give more rows, a "
            "smaller batch or more num_generations."
        )
    prompt_budget = args.max_prompt_length
    budgets = (prompt_budget or args.max_reprompt_len, args.max_reprompt_len)
    reprompt = Reprompt(
        args.reprompt_template,
        args.solution_template,
        feedback,
        args.max_completion_length,
        args.chat_template_kwargs,
    )
    fitted, counts, lengths = fit_rows(rows, tokenizer, *budgets, reprompt)
    if held_out is not None:
        held_out, _, _ = fit_rows(held_out, tokenizer, *budgets, reprompt)
    counts["without_reward"] = scoring.silent_rows(fitted)
    # The rows fit already; left to itself TRL would cut off <bos> and the head of the task.
    args.max_prompt_length = None
    args.include_environment_feedback = feedback.mode != "none"
    args.feedback_template = AS_IT_IS
    return Fitted(fitted, held_out, len(rows), prompt_budget, counts, lengths)


def prepare(
    args: SDPOConfig,
    model_args: ModelConfig,
    fitted: Fitted,
    tokenizer: Any,
    revision: str | None,
    scoring: Scoring,
    feedback: Feedback,
) -> Prepared:
    """Build the trainer of the model at this revision; raises TrainingInputError when none can."""
    clock, guards = Clock(), Guards(args)
    lora = lora_config(model_args)
    args.model_init_kwargs = {**model_init_kwargs(model_args, revision), **args.model_init_kwargs}
    trainer = build(
        lambda: SDPOTrainer(
            model=model_args.model_name_or_path,
            reward_funcs=[scoring.reward],
            args=args,
            train_dataset=fitted.rows,
            processing_class=tokenizer,
            peft_config=lora,
        ),
        model_args,
    )
    record = log_rollouts if "trackio" in args.report_to else None
    trainer.teacher_context_builder = FeedbackBuilder(trainer, feedback, scoring.told, record)
    make_resumable(trainer)
    trainer.add_callback(clock)
    trainer.add_callback(guards)
    return Prepared(trainer, revision, clock, guards, fitted)
