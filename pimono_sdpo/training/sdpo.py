"""SDPO: fit prompts and contexts to token budgets, score completions, and distil a teacher with feedback.

TRL truncates token ids from the left: the student's prompt at `max_prompt_length` and the teacher's
at `max_reprompt_len`. Either loses <bos> and the start of the task, and the two see different tasks.
Here the oldest turns are dropped first, then texts are shortened in the middle, a context block by
block, and only as far as necessary.

reads prompt, privileged_context, reward_terms / writes prompt, privileged_context
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Formatter
from typing import Any, TypedDict

import msgspec
from accelerate import PartialState
from datasets import Dataset, List, Value
from jinja2 import TemplateError
from trl import ModelConfig
from trl.experimental.sdpo import SDPOConfig

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.schema import MESSAGE
from pimono_sdpo.text import TRIMMED
from pimono_sdpo.training import models, preflight
from pimono_sdpo.training.arguments import GuardedSDPOConfig, SDPOArguments
from pimono_sdpo.training.callbacks import make_resumable
from pimono_sdpo.training.held_out import Scores, score_rewards, score_rollouts
from pimono_sdpo.training.memory import Hardware, estimate_sdpo
from pimono_sdpo.training.method import Method
from pimono_sdpo.training.options import check_generations
from pimono_sdpo.training.rewards import (
    PASS_THROUGH,
    SEAM_TOKENS,
    TOKENS_READ_BACK,
    VERIFYING,
    Feedback,
    FeedbackBuilder,
    Mode,
    Scoring,
    check_call_format,
    hash_own,
    refuse_unsound,
    scoring_of,
    set_response_template,
)
from pimono_sdpo.training.rows import FILTERED, Fitted, LeftOut, filter_source, fit_rows, load_report
from pimono_sdpo.training.token_budget import (
    neutralise,
    shorten_blocks,
    shorten_to_budget,
    special_tokens,
    templated_ids,
)
from pimono_sdpo.training.trainer import DistillationTrainer
from rewards.verifiers.tool_calls import TOOL_SETS, definitions

Json = dict[str, Any]
Row = dict[str, Any]
COUNTS = ("prompts_shortened", "contexts_shortened", "special_tokens_neutralised")
WRITTEN = {"prompt": List(MESSAGE), "privileged_context": Value("string")}


@dataclass(frozen=True)
class Reprompt:
    """The wording of the teacher's prompt, by the templates and limits of an SDPOConfig."""

    args: SDPOConfig
    feedback: Feedback

    def format(self, prompt: str, context: str) -> str:
        """Return the teacher's last user turn with an empty demonstration and one character of feedback."""
        text: str = self.args.reprompt_template.format(
            prompt=prompt,
            solution=self.args.solution_template.format(successful_previous_attempt=""),
            feedback=self.feedback.format("-", context),
        )
        return text

    def check(self) -> None:
        """Raise TrainingInputError for a template that cannot be filled or leaves feedback out."""
        templates = {
            "reprompt_template": (self.args.reprompt_template, {"prompt", "solution", "feedback"}),
            "solution_template": (self.args.solution_template, {"successful_previous_attempt"}),
            "feedback_template": (self.feedback.rollout_template, {"feedback_raw"}),
            "trace_template": (self.feedback.trace_template, {"feedback_raw"}),
        }
        for name, (template, allowed) in templates.items():
            try:
                fields = {field for _, field, *_ in Formatter().parse(template) if field is not None}
            except ValueError:
                fields = set()
            if not fields or not fields <= allowed:
                needed = " ".join(f"{{{field}}}" for field in sorted(allowed))
                raise TrainingInputError(f"{name} cannot be filled; put {needed} in it, and no other braces.")

    def reserved_tokens(self) -> int:
        """Return the tokens to reserve for a demonstration and the reward's feedback, besides `format`."""
        feedback = self.feedback.tokens + SEAM_TOKENS if self.feedback.asks_reward else 0
        return TOKENS_READ_BACK * int(self.args.max_completion_length) + feedback


def fit_prompts(
    dataset: Dataset,
    held_out: Dataset | None,
    tokenizer: Any,
    prompt_tokens: int,
    reprompt_tokens: int,
    reprompt: Reprompt,
) -> Fitted:
    """Shorten prompts and contexts to both budgets; leave out the rows for which that is impossible.

    Lengths are those before shortening; the teacher's include the tokens reserved for a demonstration
    and the reward's feedback.
    """
    reprompt.check()
    special = special_tokens(tokenizer)
    template = reprompt.args.chat_template_kwargs or {}

    def shorten(text: str, budget: int, count: Callable[[str], int], what: str, option: str) -> str:
        shortened = shorten_to_budget(text, budget, count)
        if shortened is None:
            raise LeftOut("too_long", f"{count(TRIMMED)} tokens {what}, over the {budget} of {option}")
        return shortened

    def fit(row: Row, number: int) -> tuple[Row, Row]:
        _check_row(row, number)
        texts, neutralised = zip(*(neutralise(turn["content"], special) for turn in row["prompt"]), strict=True)
        full_context, in_context = neutralise(row["privileged_context"] or "", special)
        *history, last = [
            {"role": turn["role"], "content": text} for turn, text in zip(row["prompt"], texts, strict=True)
        ]
        task = full_task = last["content"]
        context = full_context

        def count(user_text: str) -> int:
            return len(templated_ids(tokenizer, [*history, {"role": "user", "content": user_text}], **template))

        def count_reprompt(context: str) -> int:
            return count(reprompt.format(task, context)) + reprompt.reserved_tokens()

        lengths = {"prompt": count(task), "teacher_prompt": count_reprompt(context)}
        # Behind a system prompt stands the request, which is kept; in other rows it is the last turn.
        fixed = 2 if history and history[0]["role"] == "system" else 0
        while len(history) > fixed and count(task) > prompt_tokens:
            # The request matters more than earlier turns; the oldest exchange is dropped first.
            dropped = 1 if history[fixed]["role"] == "assistant" and not fixed else 2
            history = history[:fixed] + history[fixed + dropped :]
        task = shorten(task, prompt_tokens, count, "without its last user text", "max_prompt_length")
        if count_reprompt(context) > reprompt_tokens:
            what = "for the teacher's prompt without any feedback"
            context = shorten_blocks(context, lambda text: count_reprompt(text) <= reprompt_tokens) or shorten(
                context, reprompt_tokens, count_reprompt, what, "max_reprompt_len"
            )
        prompt = [*history, {"role": "user", "content": task}]
        prompt_shortened = task != full_task or len(prompt) < len(texts)
        counts = (prompt_shortened, context != full_context, in_context + sum(neutralised))
        fitted = {"prompt": prompt, "privileged_context": context}
        return fitted, lengths | dict(zip(COUNTS, map(int, counts), strict=True))

    budgets = {"prompt": prompt_tokens, "teacher_prompt": reprompt_tokens}
    try:
        return fit_rows(dataset, held_out, fit, WRITTEN, COUNTS, budgets)
    except TemplateError as error:
        raise TrainingInputError(
            f"The chat template refuses a prompt ({' '.join(str(error).split())}); give rows with "
            "turns that it accepts, or another model."
        ) from error


class _Turn(TypedDict):
    role: str
    content: str


class _Row(TypedDict):
    prompt: list[_Turn]
    privileged_context: str | None
    reward_terms: list[str] | None


def _check_row(row: Row, number: int) -> None:
    """Raise TrainingInputError unless the prompt is a list of messages that ends in a turn of the user."""
    try:
        turns = msgspec.convert(dict(row), _Row)["prompt"]
        if turns and turns[-1]["role"] == "user":
            return
        problem = f"its prompt ends in a turn of `{turns[-1]['role']}`" if turns else "its prompt ends in no turn"
    except msgspec.ValidationError as error:
        is_text = isinstance(row["prompt"], str)
        problem = "its prompt is text; write a list of messages with `role` and `content`" if is_text else str(error)
    raise TrainingInputError(
        f"Row {number} cannot be trained on ({problem}); give rows written by "
        "`pimono-sdpo filter`, whose prompts end in a turn of the user."
    )


def check_template(rows: Dataset, tokenizer: Any, template: Mapping[str, Any]) -> int:
    """Check that the chat template keeps the text of every prompt; return the number of prompts.

    Raises TrainingInputError.
    """
    special = special_tokens(tokenizer)
    for number, prompt in enumerate(rows["prompt"], 1):
        empty = [{**turn, "content": "x"} for turn in prompt]
        text, frame = (tokenizer.decode(templated_ids(tokenizer, turns, **template)) for turns in (prompt, empty))
        # Compare decoded text, since some tokenizers normalise it.
        ids = tokenizer([turn["content"] for turn in prompt], add_special_tokens=False)["input_ids"]
        if any(tokenizer.decode(one).strip() not in text for one in ids):
            raise TrainingInputError(
                f"The chat template changes the prompt of row {number}; give a model whose "
                "template keeps the text of its turns."
            )
        if any(text.count(token) > frame.count(token) for token in special):
            raise TrainingInputError(
                f"Text of row {number} becomes control tokens in the chat template; give a "
                "tokenizer that declares its special tokens."
            )
    return len(rows)


class SDPO(Method):
    """SDPO with the arguments of one run."""

    OPTIONS, CONFIG, RECIPE = SDPOArguments, GuardedSDPOConfig, "gemma4_12b"
    COLUMNS = ("prompt", "privileged_context", "reward_terms", "verifier_spec", "tools")

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
            # Neither `rft` nor `grpo` needs a teacher, so no EMA is kept.
            args.teacher_model_kind = "base"
            args.distillation_weight = 0.0
            job.feedback = job.feedback or "none"
        micro_batches = args.steps_per_generation * args.num_iterations
        aligned = args.save_steps * args.gradient_accumulation_steps % micro_batches == 0
        on_steps = args.save_strategy == "steps" and args.save_steps >= 1
        if args.num_iterations > 1 and on_steps and not aligned:
            raise TrainingInputError(
                f"--save_steps {args.save_steps:g} would write checkpoints in the middle of a batch of rollouts, "
                "which is lost on resume; give a multiple of --num_iterations."
            )
        if args.num_iterations > 1 and args.steps_per_generation % args.gradient_accumulation_steps:
            raise TrainingInputError(
                f"--num_iterations {args.num_iterations} would repeat completions within one "
                "update; leave out --steps_per_generation (--sample_at_once saves memory)."
            )
        mode: Mode = job.feedback or ("both" if job.reward in VERIFYING else "trace")
        self.feedback = Feedback(args.feedback_template, mode, tokens=job.feedback_tokens)
        check_generations(args.method, args.num_generations, args.distillation_weight >= 1 and mode != "none")
        if args.distillation_mode == "topk_logits" and not args.distillation_topk:
            raise TrainingInputError(
                "--distillation_mode topk_logits needs a number of tokens; give --distillation_topk."
            )
        if args.use_teacher_server:
            raise TrainingInputError(
                "--use_teacher_server is not supported: the loss in float32 needs all logits of "
                "the teacher; leave it out."
            )
        args.chat_template_kwargs = {"enable_thinking": False, **(args.chat_template_kwargs or {})}
        if job.tools is not None:
            if job.tools not in TOOL_SETS:
                raise TrainingInputError(f"--tools is {job.tools}, and not one of {', '.join(TOOL_SETS)}.")
            args.chat_template_kwargs["tools"] = definitions(job.tools)

    def find_rows(self) -> str:
        """Return --dataset, or the folder of the rows filtered from --source."""
        if self.job.dataset is not None:
            return str(self.job.dataset)
        with PartialState().main_process_first():
            return filter_source(self.job, Path(self.args.output_dir), self.args.seed)

    def load_rows(self, dataset: str) -> tuple[Dataset, Dataset | None]:
        """Load the rows, and refuse those from which the teacher could read nothing."""
        loaded, held_out = super().load_rows(dataset)
        columns = {"privileged_context"} if self.feedback.mode in ("trace", "both") else set()
        columns |= {"verifier_spec"} if self.feedback.asks_reward else set()
        texts = [text for name in columns & {*loaded.column_names} for text in loaded[name]]
        if self.args.distillation_weight and columns and not any(str(text or "").strip() for text in texts):
            raise TrainingInputError(
                f"No row of `{dataset}` has a text in {' or '.join(sorted(columns))}, so the teacher of --feedback "
                f"{self.feedback.mode} would read nothing; give rows that `filter` wrote, or --feedback none."
            )
        return loaded, held_out

    def load_report(self, dataset: str) -> Json | None:
        """Return the report of the filter that made the rows, None if there is none."""
        return load_report(dataset)

    def load_model(self) -> None:
        """Load the tokenizer and the reward."""
        super().load_model()
        args, tokens = self.args, len(self.tokenizer)
        if args.distillation_mode == "topk_logits" and args.distillation_topk > tokens:
            raise TrainingInputError(
                f"--distillation_topk is {args.distillation_topk}, and the model has {tokens} tokens; give a smaller "
                "number."
            )
        job = self.job
        set_response_template(self.tokenizer)
        end_ids = {self.tokenizer.eos_token_id, *models.end_ids(self.model_args, self.revision)}
        self.scoring = scoring_of(job.reward, job.gate, job.grade, end_ids)

    def teaching(self) -> Json:
        """Return the settings besides TRL's arguments that decide the result."""
        job = self.job
        names = ["reward", "gate", "grade", "tools", "eval_split", "eval_generations"]
        settings = {name: getattr(job, name) for name in [*names, *(() if job.dataset else FILTERED)]}
        if job.source and not job.dataset:
            settings["source"] = models.public_name(job.source)
        if hashes := hash_own([job.reward, *job.gate, *job.grade]):
            settings["own_code"] = hashes
        return {
            **settings,
            "feedback": self.feedback.mode,
            "feedback_tokens": self.feedback.tokens,
            "trace_template": self.feedback.trace_template,
        }

    def fit(self, dataset: Dataset, held_out: Dataset | None = None) -> None:
        """Fit prompts and contexts to their budgets, and set TRL's arguments on prompts and feedback."""
        args, scoring, feedback = self.args, self.scoring, self.feedback
        if feedback.asks_reward and scoring.feedback is None:
            raise TrainingInputError(
                f"--feedback {feedback.mode} needs a reward that says what is wrong with a "
                "completion; give --reward verifiers, or --feedback trace."
            )
        scoring.check(args.success_reward_threshold, args.reward_weights, dataset.column_names)
        check_call_format(self.job.reward, self.tokenizer, dataset)
        budgets = (args.max_prompt_length or args.max_reprompt_len, args.max_reprompt_len)
        fitted = fit_prompts(dataset, held_out, self.tokenizer, *budgets, Reprompt(args, feedback))
        unscored = scoring.find_unscored(fitted.rows)
        if unscored and self.job.reward == "trace_grounding":
            # TRL would count their completions as failures.
            scored = sorted({*range(len(fitted.rows))} - {*unscored})
            if not scored:
                raise TrainingInputError(
                    f"None of the {len(unscored)} rows names a concrete term in `reward_terms`; give other rows, or "
                    "another --reward."
                )
            lengths = {name: [values[index] for index in scored] for name, values in fitted.lengths.items()}
            fitted = replace(fitted, rows=fitted.rows.select(scored), lengths=lengths)
        per_step = args.generation_batch_size // args.num_generations
        if len(fitted.rows) < per_step:
            raise TrainingInputError(
                f"There are {len(fitted.rows)} rows and each step takes {per_step} prompts; give "
                "more rows, a smaller batch or more num_generations."
            )
        # The rows fit already; TRL would cut off <bos> and the start of the task.
        args.max_prompt_length = None
        args.include_environment_feedback = feedback.mode != "none"
        args.feedback_template = PASS_THROUGH
        self.fitted = replace(fitted, counts={**fitted.counts, "without_reward": len(unscored)})

    def estimate(self, config: Any) -> dict[str, int]:
        """Estimate the peak for prompts that use their whole budget."""
        return estimate_sdpo(self.args, self.model_args, config, self.fitted.budgets["prompt"] or 0)

    def check(self) -> Json:
        """Check that the chat template keeps the prompts, and refuse a reward that can be won without solving."""
        args, rows = self.args, self.fitted.rows
        return {
            "templates_checked": check_template(rows, self.tokenizer, args.chat_template_kwargs),
            "reward_tried_on_rows": refuse_unsound(self.scoring, rows, args.success_reward_threshold),
        }

    def try_rollouts(self, hardware: Hardware) -> tuple[Json, list[str], int | None] | None:
        """Sample from the model, see preflight.py; not with vLLM, which samples whole groups and lacks weights yet."""
        if not self.job.preflight_rows or self.args.use_vllm or self.lacks_gpu or self.job.mode == "smoke":
            return None
        lengths = self.fitted.lengths["teacher_prompt"]
        trainer, longest = self.build().trainer, lengths.index(max(lengths))
        sampled, peak = preflight.sample(trainer, self.job.preflight_rows, longest, hardware)
        return sampled, preflight.stops_of(sampled, self.args.method), peak

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
        """Add how many rows had no reward, if any, and a warning about `trace_grounding`."""
        unscored, used = self.fitted.counts["without_reward"], len(self.fitted.rows)
        reason = {
            "verifiers": f"of {used} rows have no verifier_spec, so nothing scores them",
            "trace_grounding": "rows name no concrete term and were left out",
        }.get(self.job.reward, f"of {used} rows get no reward, which counts as 0")
        return super().notes() + ([f"{unscored} {reason}"] if unscored else [])
