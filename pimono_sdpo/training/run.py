"""The run of a training job, whatever its method: check, preflight, train, save, publish."""

import math
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from cards import write_model_card
from pimono_sdpo import __version__
from pimono_sdpo.errors import PimonoError
from pimono_sdpo.training import held_out, is_main_process, models, resume, rows, say, tracking
from pimono_sdpo.training import output as folders
from pimono_sdpo.training.arguments import parse_job
from pimono_sdpo.training.callbacks import TimeLimit, now, stopped_at, time_limit_of
from pimono_sdpo.training.memory import hardware_of
from pimono_sdpo.training.method import Fitted, Method, Prepared, train
from pimono_sdpo.training.preflight import add_rollouts, as_text, preflight, refuse
from pimono_sdpo.training.publish import (
    HubCheckpoints,
    check_destination,
    checkpoints_of,
    publish_adapter,
    save_adapter,
)
from pimono_sdpo.training.reload import write_probe

Json = dict[str, Any]


def run_job(method: type[Method], argv: list[str], description: str | None) -> int:
    """Run a job; return 0, or 2 after one sentence on stderr for what cannot be used."""
    try:
        run = Run(method, argv, description)
        if run.job.mode == "card":
            run.rewrite_card()
            return 0
        with run.open_output():
            dataset = run.method.find_rows()
            if run.job.mode != "prepare":
                run.train(dataset)
    except PimonoError as problem:
        sys.stderr.write(f"train_{method.CONFIG.METHOD}: {problem}\n")
        return 2
    return 0


class Run:
    """One run of a training job.

    job, args, method   the arguments of the job and of TRL, and the method with both
    output              the folder that only this run works in, see output.py
    checkpoints         where checkpoints are kept on the Hub, None for nowhere
    limit               when the run must end, None for never
    """

    def __init__(self, method: type[Method], argv: list[str], description: str | None) -> None:
        """Parse and check the arguments; raises TrainingInputError."""
        given = parse_job(argv, method.OPTIONS, method.CONFIG, description, method.RECIPE)
        self.job, self.args, self.model_args, self.recipe = given
        self.command = argv
        self.method = method(self.job, self.args, self.model_args)
        self.output = Path(self.args.output_dir)
        self.checkpoints: HubCheckpoints | None = None
        self.limit: TimeLimit | None = None

    @contextmanager
    def open_output(self) -> Iterator[None]:
        """Hold OUTPUT for this run, and check that it can be written and published.

        With checkpoints on the Hub and none here, the newest one is fetched.
        """
        args, job = self.args, self.job
        alone = folders.only_run(self.output) if is_main_process() else nullcontext()
        with folders.leave_as_found(self.output), alone:
            if job.mode != "prepare":
                if is_main_process():
                    folders.finalize(self.output)
                    folders.check_output(self.output, job.overwrite)
                    check_destination(args, job.mode == "smoke")
                self.limit = time_limit_of(job.time_limit)
                self.checkpoints = checkpoints_of(
                    job.checkpoint_bucket, args, job.mode, job.overwrite
                )
            yield

    def train(self, dataset: str) -> None:
        """Train on the rows, then give OUTPUT its adapter, report and run log, and publish them."""
        job, args, method, output = self.job, self.args, self.method, self.output
        loaded, kept_back = method.load_rows(dataset)
        report = method.load_report(dataset)
        method.load_model()
        start = resume.started_with(method, loaded, kept_back)
        if not job.overwrite:
            resume.check_same_start(output, start)
        fitted = method.fit(loaded, kept_back)
        resumes = folders.last_checkpoint(output) is not None and not job.overwrite
        before = resume.found_before(output) if resumes else {}
        prepared = self._look_ahead(fitted, before, resumes)
        if prepared is None:
            folders.drop_next_data(output)
            return
        trainer = prepared.trainer
        licence = job.license or models.base_model_licence(self.model_args, method.revision)
        tracking.set_up_trackio(args, job.mode == "smoke")
        if not resumes:
            before["trackio_run"] = tracking.free_run_name(args)
            if fitted.held_out is not None:
                before["held_out"] = method.score(trainer, fitted.held_out)
        args.run_name = before.get("trackio_run", args.run_name)
        if is_main_process():
            name = str(self.model_args.model_name_or_path)
            self._begin(resume.local_record(name, start, before), fitted)
        for callback in filter(None, (self.limit, self.checkpoints)):
            trainer.add_callback(callback)
        metrics = train(prepared)
        evaluation = None
        if fitted.held_out is not None and stopped_at(trainer) is None:
            after = method.score(trainer, fitted.held_out)
            evaluation = held_out.compare(before["held_out"], after, job.eval_split)
        if not is_main_process():
            return

        staging = folders.staging_folder(output)
        model = trainer.accelerator.unwrap_model(trainer.model)
        base = models.published_base(str(self.model_args.model_name_or_path))
        files = save_adapter(model, staging, base, method.revision)
        write_probe(model, trainer.processing_class, output)
        log = build_run_log(
            prepared,
            recipe=self.recipe,
            command=self.command,
            licence=licence,
            dataset=rows.dataset_name(job.dataset or getattr(job, "source", None) or dataset),
            before=before,
            evaluation=evaluation,
            metrics=metrics,
            adapter_files=files,
        )
        write_card(report, log, staging)
        folders.finish(output, staging, report, log)
        if evaluation is not None:
            say(held_out.as_sentence(evaluation, args.METHOD))
        for note in method.notes(fitted):
            say(note)
        say(f"the adapter and its card are in {output / folders.ADAPTER}")
        self._publish(trainer)

    def rewrite_card(self) -> None:
        """Write the card of a finished run again; the same run gives the same bytes."""
        report, log = folders.read_finished(self.output)
        write_card(report, log, self.output / folders.ADAPTER)
        say(f"the card is {self.output / folders.ADAPTER / 'README.md'}")

    def _look_ahead(self, fitted: Fitted, before: Json, resumes: bool) -> Prepared | None:
        """Build the trainer and say what can be found before the first step, unless resuming.

        Returns None after --mode preflight; raises TrainingInputError for what stops a training.
        """
        method, job = self.method, self.job
        only_look = job.mode == "preflight"
        if resumes and not only_look:
            return method.build(fitted)
        hardware, prepared = hardware_of(job.flavor), None
        found = preflight(method, fitted, hardware)
        if method.tries_rollouts and (job.force or not found["stops"]):
            # The weights are loaded only when nothing speaks against it.
            prepared = method.build(fitted)
            found = add_rollouts(found, prepared, hardware)
        say(as_text(method, found))
        refuse(found, job.force)
        before["preflight"] = found
        return None if only_look else prepared or method.build(fitted)

    def _begin(self, record: Json, fitted: Fitted) -> None:
        """Write down the start, now that everything has been checked and nothing can be lost."""
        if self.job.overwrite:
            folders.clear_output(self.output, keep_data=self.job.dataset is not None)
            if self.checkpoints is not None:
                self.checkpoints.remove()
        folders.begin(self.output, record)
        if fitted.left_out:
            left_out = {"rows": list(fitted.left_out)}
            folders.write_json(left_out, self.output / folders.LEFT_OUT_FILE)

    def _publish(self, trainer: Any) -> None:
        """Push the adapter when a repository is named, and forget the checkpoints of a whole run.

        They are removed only when the adapter is on the Hub: a job's own disk is lost.
        """
        args, step = self.args, stopped_at(trainer)
        address = None
        if args.hub_model_id:
            private = args.hub_private_repo is not False
            address = publish_adapter(self.output / folders.ADAPTER, args.hub_model_id, private)
            say(address)
        if step is not None:
            say(
                f"the time limit ended the training after step {step} of "
                f"{trainer.state.max_steps}; start it again with the same arguments to resume it"
            )
        elif self.checkpoints is not None and address is not None:
            self.checkpoints.remove()


def write_card(report: Json | None, log: Json, folder: Path) -> None:
    """Write the model card with its plots, and warn of what the Hub may refuse."""
    for problem in write_model_card(report, log, folder):
        sys.stderr.write(f"train_{log['method']}: the Hub may refuse the model card: {problem}\n")


SECTIONS_OF_METHOD = {
    "sdpo": (
        "method num_iterations num_generations max_completion_length max_reprompt_len "
        "temperature top_p top_k beta "
        "loss_type success_reward_threshold use_successful_as_teacher "
        "include_environment_feedback environment_feedback_only_without_solution "
        "distillation_weight distillation_mode distillation_alpha distillation_topk "
        "teacher_model_kind teacher_update_rate teacher_sync_steps teacher_start"
    ).split(),
    "sft": "max_length packing completion_only_loss assistant_only_loss loss_type".split(),
    "dpo": "max_length beta loss_type loss_weights label_smoothing".split(),
}
PACKAGES = (
    "trl transformers peft bitsandbytes torch accelerate datasets huggingface_hub trackio".split()
)


def build_run_log(
    prepared: Prepared,
    *,
    recipe: str,
    command: list[str],
    licence: str | None,
    dataset: str,
    before: Json,
    evaluation: Json | None,
    metrics: dict[str, float],
    adapter_files: dict[str, int],
) -> Json:
    """Return the run as JSON: arguments, hardware, versions, metrics and the log of each step.

    `before` holds what was found before the first step, `evaluation` the scores of held-out rows.
    """
    trainer, method = prepared.trainer, prepared.method
    args, model_args = trainer.args, method.model_args
    model = trainer.accelerator.unwrap_model(trainer.model)
    settings, space = args.to_dict(), args.trackio_space_id
    target = model.peft_config["default"].target_modules
    guards = prepared.guards.record(args)
    if stopped_at(trainer) is not None:
        guards["stopped_by"] = folders.CUT_SHORT
    run = {
        "pimono_sdpo": __version__,
        "method": args.METHOD,
        "run_name": args.run_name,
        "mode": method.job.mode,
        "recipe": recipe,
        "command": [_without_machine_path(word) for word in command],
        "licence": licence,
        "base_model": models.published_base(str(model_args.model_name_or_path)),
        "base_model_revision": method.revision,
        "base_model_class": type(model.get_base_model()).__name__,
        "dataset": {
            "id": dataset,
            "rows": prepared.fitted.given,
            "rows_used": len(trainer.train_dataset),
            **prepared.fitted.counts,
        },
        "teaching": method.teaching(),
        "preflight": before.get("preflight"),
        "evaluation": evaluation,
        "hub_model_id": args.hub_model_id,
        "trackio": {
            "project": args.project,
            "space_id": space,
            "url": f"https://huggingface.co/spaces/{space}" if space else None,
        },
        "arguments": {
            **{
                name: settings[name]
                for name in (*tracking.TRAINING_ARGUMENTS, *SECTIONS_OF_METHOD[args.METHOD])
            },
            "max_prompt_length": prepared.fitted.prompt_budget,
            **{name: vars(model_args)[name] for name in tracking.MODEL_ARGUMENTS},
            "lora_target_modules": target if isinstance(target, str) else sorted(target),
        },
        "hardware": _hardware(args.device),
        "versions": {name: version(name) for name in PACKAGES},
        "started_at": prepared.clock.started_at,
        "resumed_at": prepared.clock.resumed_at,
        "finished_at": now(),
        "metrics": metrics,
        "guards": guards,
        # The summary of the whole run comes last in the history and is `metrics` already.
        "log_history": [
            entry for entry in trainer.state.log_history if "train_runtime" not in entry
        ],
        "adapter": {
            "files": adapter_files,
            "trainable_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        },
    }
    finite: Json = _finite(run)
    return finite


def _without_machine_path(word: str) -> str:
    """Keep only the name of a path that leaves the working folder."""
    option, equals, value = word.rpartition("=")
    path = Path(value)
    leaves = path.is_absolute() or ".." in path.parts or value.startswith("~")
    return f"{option}{equals}{path.name}" if leaves else word


def _hardware(device: torch.device) -> Json:
    if device.type == "cuda":
        return {
            "device": "cuda",
            "name": torch.cuda.get_device_name(device),
            "count": torch.cuda.device_count(),
        }
    return {"device": device.type, "name": platform.processor() or platform.machine(), "count": 1}


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON cannot hold, by null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
