"""SDPO: sample completions, score them, and distil a teacher that has read the feedback.

The arguments are TRL's own SDPOConfig and ModelConfig; what this project decides is set here.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from trl import ModelConfig

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training import models, preflight, rows
from pimono_sdpo.training.arguments import GuardedSDPOConfig, SDPOArguments
from pimono_sdpo.training.callbacks import make_resumable
from pimono_sdpo.training.held_out import Scores, score_rewards, score_rollouts
from pimono_sdpo.training.memory import Hardware, estimate_sdpo, read_config
from pimono_sdpo.training.method import Method
from pimono_sdpo.training.prompt_rows import COLUMNS, Reprompt, check_template, fit_rows
from pimono_sdpo.training.rewards import (
    PASS_THROUGH,
    TRACE_TEMPLATE,
    Feedback,
    FeedbackBuilder,
    Mode,
    Scoring,
    check_call_format,
    hash_own,
    refuse_unsound,
    scoring_of,
)
from pimono_sdpo.training.trainer import DistillationTrainer
from rewards.verifiers.tool_calls import DECLARED, definitions

Json = dict[str, Any]


class SDPO(Method):
    """SDPO with the arguments of one run.

    scoring    what scores completions
    feedback   what the teacher of a failed completion reads
    """

    OPTIONS, CONFIG, RECIPE = SDPOArguments, GuardedSDPOConfig, "gemma4_12b"
    COLUMNS = (*COLUMNS, "verifier_spec")

    scoring: Scoring
    feedback: Feedback

    def __init__(self, job: SDPOArguments, args: GuardedSDPOConfig, model_args: ModelConfig) -> None:
        # Before anything is downloaded.
        hash_own([job.reward])
        if job.generations is not None:
            batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
            rounds = math.ceil(job.generations / (batch * args.world_size))
            args.max_steps = rounds * args.num_iterations
        super().__init__(job, args, model_args)
        if args.method != "sdpo":
            # Neither needs a teacher; without an EMA none is kept or averaged.
            args.teacher_model_kind = "base"
            args.distillation_weight = 0.0
            job.feedback = job.feedback or "none"
        every = args.steps_per_generation * args.num_iterations
        aligned = args.save_steps * args.gradient_accumulation_steps % every == 0
        on_steps = args.save_strategy == "steps" and args.save_steps >= 1
        if args.num_iterations > 1 and on_steps and not aligned:
            raise TrainingInputError(
                f"--save_steps {args.save_steps:g} is in the middle of a batch of rollouts, which "
                "no checkpoint keeps; give a multiple of --num_iterations."
            )
        if args.num_iterations > 1 and args.steps_per_generation % args.gradient_accumulation_steps:
            raise TrainingInputError(
                f"--num_iterations {args.num_iterations} would repeat completions within one "
                "update; leave out --steps_per_generation (--sample_at_once saves memory)."
            )
        if args.use_teacher_server:
            raise TrainingInputError(
                "--use_teacher_server is not supported: the loss in float32 needs all logits of "
                "the teacher; leave it out."
            )
        # The guards say it once, and can end the training.
        args.diagnostics_warning_interval = 0
        args.chat_template_kwargs = {"enable_thinking": False, **(args.chat_template_kwargs or {})}
        if job.tools is not None:
            if job.tools not in DECLARED:
                raise TrainingInputError(f"--tools is {job.tools}, and not one of {', '.join(DECLARED)}.")
            args.chat_template_kwargs["tools"] = definitions(job.tools)

    def find_rows(self) -> str:
        """Return --dataset, or the folder of the rows that --source gives."""
        if self.job.dataset is not None and self.job.mode != "prepare":
            return str(self.job.dataset)
        with PartialState().main_process_first():
            return rows.filter_source(self.job, Path(self.args.output_dir), self.args.seed)

    def load_report(self, dataset: str) -> Json | None:
        """Return the report of the filter that made the rows, None without one."""
        return rows.load_report(dataset)

    def load_model(self) -> None:
        """Load the tokenizer, the reward and the words of the feedback."""
        super().load_model()
        job = self.job
        ends = models.end_ids(self.model_args, self.revision)
        self.scoring = scoring_of(job.reward, job.gate, job.grade, self.tokenizer, ends)
        mode: Mode = job.feedback or ("trace" if self.scoring.feedback is None else "both")
        trace_template = TRACE_TEMPLATE if job.trace_template is None else job.trace_template
        self.feedback = Feedback(self.args.feedback_template, mode, trace_template, job.feedback_tokens)

    def teaching(self) -> Json:
        """Return what decides the result beside TRL's arguments."""
        job = self.job
        names = ["reward", "gate", "grade", "tools", "eval_split", "eval_generations"]
        found = {name: getattr(job, name) for name in [*names, *(() if job.dataset else rows.FILTERED)]}
        if job.source and not job.dataset:
            found["source"] = models.public_name(job.source)
        if own := hash_own([job.reward, *job.gate, *job.grade]):
            found["own_code"] = own
        return {
            **found,
            "feedback": self.feedback.mode,
            "feedback_tokens": self.feedback.tokens,
            "trace_template": self.feedback.trace_template,
        }

    def fit(self, dataset: Dataset, held_out: Dataset | None = None) -> None:
        """Fit prompts and contexts to their budgets, and set the arguments of the builder.

        Raises TrainingInputError for rows, a reward or feedback that cannot be trained with.
        """
        args, scoring, feedback = self.args, self.scoring, self.feedback
        if feedback.asks_reward and scoring.feedback is None:
            raise TrainingInputError(
                f"--feedback {feedback.mode} needs a reward that says what is wrong with a "
                "completion; give --reward verifiers, or --feedback trace."
            )
        scoring.check(args.success_reward_threshold, args.reward_weights, dataset.column_names)
        check_call_format(self.job.reward, self.tokenizer, dataset)
        budgets = (args.max_prompt_length or args.max_reprompt_len, args.max_reprompt_len)
        reprompt = Reprompt(args, feedback)
        fitted = fit_rows(dataset, self.tokenizer, *budgets, reprompt)
        unscored = scoring.find_unscored(fitted.rows)
        if unscored and self.job.reward == "trace_grounding":
            # TRL would count them as failures.
            scored = sorted({*range(len(fitted.rows))} - {*unscored})
            if not scored:
                raise TrainingInputError(
                    f"None of the {len(unscored)} rows names a concrete term in `reward_terms`; give --reward outcome."
                )
            fitted = replace(fitted, rows=fitted.rows.select(scored))
        per_step = args.generation_batch_size // args.num_generations
        if len(fitted.rows) < per_step:
            raise TrainingInputError(
                f"There are {len(fitted.rows)} rows and each step takes {per_step} prompts; give "
                "more rows, a smaller batch or more num_generations."
            )
        if held_out is not None:
            held_out = fit_rows(held_out, self.tokenizer, *budgets, reprompt).rows
        # The rows fit already; left to itself TRL would cut off <bos> and the head of the task.
        args.max_prompt_length = None
        args.include_environment_feedback = feedback.mode != "none"
        args.feedback_template = PASS_THROUGH
        counts = {**fitted.counts, "without_reward": len(unscored)}
        self.fitted = replace(fitted, held_out=held_out, counts=counts)

    def estimate(self) -> dict[str, int]:
        """Estimate the peak for prompts that use their whole budget."""
        config = read_config(self.model_args, self.revision, self.args.trust_remote_code)
        return estimate_sdpo(self.args, self.model_args, config, self.fitted.budgets["prompt"] or 0)

    def check(self) -> Json:
        """Check that prompts pass through the chat template whole and open no turn, and refuse a
        reward that completions can win without solving the task."""
        args, used = self.args, self.fitted.rows
        return {
            "templates_checked": check_template(used, self.tokenizer, args.chat_template_kwargs),
            "reward_tried_on_rows": refuse_unsound(self.scoring, used, args.success_reward_threshold),
        }

    def try_rollouts(self, hardware: Hardware) -> tuple[Json, list[str], int | None] | None:
        """Sample from the model, see preflight.py; vLLM samples whole groups, without weights so far."""
        if not self.job.preflight_rows or self.args.use_vllm or self.job.mode == "smoke":
            return None
        lengths = self.fitted.lengths["teacher_prompt"]
        probe = preflight.probe(self.build().trainer, self.job.preflight_rows, lengths.index(max(lengths)))
        found = preflight.summarise(probe, self.args, len(self.fitted.rows), hardware)
        return found, preflight.stops_of(found, self.args.method), probe.peak_bytes

    def make_trainer(self) -> DistillationTrainer:
        """Load the model and return the trainer with its teacher."""
        trainer = DistillationTrainer(
            model=self.model_args.model_name_or_path,
            reward_funcs=[self.scoring.reward],
            args=self.args,
            train_dataset=self.fitted.rows,
            processing_class=self.tokenizer,
            peft_config=models.lora_config(self.model_args),
        )
        trainer.teacher_context_builder = FeedbackBuilder(trainer, self.feedback, self.scoring.feedback)
        make_resumable(trainer)
        return trainer

    def score(self, held_out: Dataset) -> Scores:
        """Return rewards and pass rates of sampled completions, by session."""
        rewards = score_rollouts(self.trainer, held_out, self.job.eval_generations)
        return score_rewards(rewards, self.args.success_reward_threshold)

    def notes(self) -> list[str]:
        """Add how many rows had no reward, if any."""
        unscored, used = self.fitted.counts["without_reward"], len(self.fitted.rows)
        why = {
            "verifiers": f"of {used} rows have no verifier_spec, so nothing scores them",
            "trace_grounding": "rows name no concrete term and were left out",
        }.get(self.job.reward, f"of {used} rows get no reward, which counts as 0")
        notes = [f"{unscored} {why}"] if unscored else []
        if self.job.reward == "trace_grounding":
            notes.append(
                "trace_grounding is a smoke test: a fluent wrong answer scores like a right one; "
                "the default, --reward outcome, grades calls by what the session recorded"
            )
        return super().notes() + notes
