"""Run a training job of any method: check, preflight, train, save, publish."""

import hashlib
import json
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from os import environ
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from datasets import Dataset

from cards.render import write_model_card
from pimono_sdpo.errors import OutputError, PimonoError, TrainingInputError
from pimono_sdpo.program import allow_cleanup, check_hub
from pimono_sdpo.push import Repo, remove_empty
from pimono_sdpo.runs.folders import read_json
from pimono_sdpo.text import escape_line, is_this_machine, shorten_line
from pimono_sdpo.training import held_out, models, output, publish, tracking
from pimono_sdpo.training.arguments import parse_job
from pimono_sdpo.training.callbacks import TimeLimit, now, time_limit_of
from pimono_sdpo.training.console import is_main_process, say, warn
from pimono_sdpo.training.launch import COMMAND
from pimono_sdpo.training.memory import hardware_of
from pimono_sdpo.training.method import Method
from pimono_sdpo.training.options import SMOKE_TEST, check_folder, is_local
from pimono_sdpo.training.preflight import as_text, preflight, refuse
from pimono_sdpo.training.sdpo import SDPO
from pimono_sdpo.training.supervised import DPO, SFT
from pimono_sdpo.version import __version__

# Names and prefixes of arguments that do not affect the weights: where a run writes and logs to.
NO_EFFECT = (
    *("output_dir", "run_name", "project", "report_to", "disable_tqdm", "log_", "logging_"),
    *("save_", "hub_", "push_to_hub", "trackio_", "diagnostics_", "skip_memory_metrics"),
)
HEAD_BYTES = 2**20
SHOWN_DIFFERENCES = 3
Json = dict[str, Any]


METHODS: dict[str, type[Method]] = {"sdpo": SDPO, "rft": SDPO, "grpo": SDPO, "sft": SFT, "dpo": DPO}


def run_job(method: str, argv: list[str], description: str | None = None) -> Path:
    """Run the job of a method with command-line arguments; return OUTPUT. Raises PimonoError."""
    if method not in METHODS:
        raise TrainingInputError(f"`{method}` is not a method; use one of {', '.join(METHODS)}.")
    if method in ("rft", "grpo"):
        argv = [*argv, "--method", method]
    run = Run(METHODS[method], argv, description)
    with run.open_output():
        run.train()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        # Otherwise its threads abort a process that exits before the others.
        torch.distributed.destroy_process_group()
    return run.folder


def run_script(method: str, argv: list[str], description: str | None) -> int:
    """Run a script of jobs/; return 0, or 2 after one sentence on stderr."""
    allow_cleanup()
    try:
        check_hub()
        run_job(method, argv, description)
    except PimonoError as error:
        sys.stderr.write(f"{escape_line(f'train_{method}: {error}')}\n")
        return 2
    return 0


class Run:
    """One run of a training job, with exclusive use of `folder`, see output.py."""

    limit: TimeLimit | None = None
    # Where checkpoints are stored, and where the adapter is published.
    checkpoints: publish.HubCheckpoints | None = None
    destination: Repo | None = None

    def __init__(self, method: type[Method], argv: list[str], description: str | None) -> None:
        """Parse and check the arguments; raises TrainingInputError."""
        self.job, self.args, self.model_args, self.recipe = parse_job(
            argv, method.OPTIONS, method.CONFIG, description, method.RECIPE
        )
        self.command = argv
        if getattr(self.job, "reward", None) == "trace_grounding":
            say(SMOKE_TEST)
        say(f"recipe {self.recipe}, model {self.model_args.model_name_or_path}")
        if self.job.dataset is not None:
            check_folder(self.job.dataset)
        self.method = method(self.job, self.args, self.model_args)
        if self.method.lacks_gpu and self.job.mode != "preflight":
            raise TrainingInputError(
                f"This machine has no GPU, which the recipe {self.recipe} needs; train with --on hf:FLAVOR, or give "
                "--use_cpu true for a small model."
            )
        self.folder = Path(self.args.output_dir)

    @contextmanager
    def open_output(self) -> Iterator[None]:
        """Lock OUTPUT, check that the adapter can be published, and fetch checkpoints from the Hub."""
        args, job = self.args, self.job
        # With --source, a preflight writes the rows.
        writes_nothing = job.mode == "preflight" and job.dataset is not None
        with output.only_run(self.folder) if is_main_process() else nullcontext():
            if is_main_process():
                output.check_output(self.folder, job.overwrite or writes_nothing)
                self.destination = publish.open_destination(args, job.mode)
            try:
                self.limit = time_limit_of(job.time_limit)
                self.checkpoints = publish.open_checkpoints(job.checkpoint_bucket, args, job.mode, job.overwrite)
                yield
            except BaseException:
                if self.destination is not None:
                    remove_empty(self.destination)
                raise

    def train(self) -> None:
        """Train on the rows, write adapter, report and run log to OUTPUT, and publish them."""
        job, args, method = self.job, self.args, self.method
        self._print_destinations()
        dataset = method.find_rows()
        train_rows, eval_rows = method.load_rows(dataset)
        report = method.load_report(dataset)
        method.load_model()
        start = started_with(method, train_rows, eval_rows)
        resumed = None if job.overwrite or job.mode == "preflight" else check_same_start(self.folder, start)
        method.fit(train_rows, eval_rows)
        before = resumed or {}
        if resumed is None:
            before["preflight"] = self._run_preflight()
        if job.mode == "preflight":
            return
        trainer, eval_rows = method.build().trainer, method.fitted.held_out
        licence = job.license or models.base_model_licence(self.model_args, method.revision)
        tracking.set_up_trackio(args, job.mode == "smoke")
        if resumed is None:
            before["trackio_run"] = tracking.free_run_name(args)
            if eval_rows is not None:
                before["held_out"] = method.score(eval_rows)
        args.run_name = before["trackio_run"]
        if is_main_process():
            self._begin(start, before)
        for callback in filter(None, (self.limit, self.checkpoints)):
            trainer.add_callback(callback)
        metrics, evaluation = method.run_steps(), None
        stopped_at = self.limit and self.limit.stopped_at
        if eval_rows is not None and stopped_at is None:
            evaluation = held_out.compare(before["held_out"], method.score(eval_rows), job.eval_split)
        if not is_main_process():
            return
        log = describe_run(method) | {
            "recipe": self.recipe,
            "command": [_without_machine_path(word) for word in self.command],
            # The command that submitted this job, if any did.
            "submitted_with": [_without_machine_path(word) for word in shlex.split(environ.get(COMMAND, ""))],
            "licence": licence,
            "preflight": before.get("preflight"),
            "evaluation": evaluation,
            "metrics": metrics,
        }
        log["dataset"]["id"] = models.public_name(job.dataset or getattr(job, "source", None) or dataset)
        if stopped_at is not None:
            log["guards"]["stopped_by"] = output.CUT_SHORT
        self._save(report, log)
        if evaluation is not None:
            say(held_out.as_sentence(evaluation, args.METHOD))
        for note in method.notes():
            say(note)
        say(f"the adapter and its card are in {self.folder / output.ADAPTER}")
        if self.destination is not None:
            say(publish.publish_adapter(self.destination, self.folder / output.ADAPTER))
        if stopped_at is not None:
            say(
                f"the time limit ended the training after step {stopped_at} of {trainer.state.max_steps}; "
                "start it again with the same arguments to resume it"
            )
        elif self.checkpoints is not None and self.destination is not None:
            # Only once the adapter is on the Hub: a job's own disk is lost.
            self.checkpoints.remove()

    def _save(self, report: Json | None, log: Json) -> None:
        """Write the adapter with its card, run log and report to OUTPUT."""
        trainer, staging = self.method.trainer, self.folder / output.STAGING
        shutil.rmtree(staging, ignore_errors=True)
        model = trainer.accelerator.unwrap_model(trainer.model)
        log["adapter"]["files"] = publish.save_adapter(model, staging, log["base_model"], self.method.revision)
        # The tokenizer has the chat template, so the adapter can be used without the base's repository.
        self.method.tokenizer.save_pretrained(staging)
        models.write_probe(model, trainer.processing_class, self.folder)
        # JSON cannot hold NaN and infinity.
        log = json.loads(json.dumps(log), parse_constant=lambda _: None)
        for problem in write_model_card(report, log, staging):
            warn(f"the Hub may refuse the model card: {problem}")
        output.finish(self.folder, report, log)

    def _print_destinations(self) -> None:
        logged = "trackio" in self.args.report_to and self.job.mode == "train"
        space = self.args.trackio_space_id or environ.get(tracking.SPACE_VARIABLE)
        repository = self.destination and self.destination.name
        destinations = {
            "the adapter, its card, run log and page, to the repository": repository,
            "checkpoints, to the private bucket": self.checkpoints and self.checkpoints.bucket,
            "metrics and sampled answers, to the Space": space if logged else None,
            "prompts and weights, to the vLLM server at": _find_vllm_host(self.args),
        }
        for what, destination in destinations.items():
            if destination:
                say(f"leaves this machine: {what} {destination}")
        say("stays here: " + ("the rows" if any(destinations.values()) else "everything: rows, adapter and metrics"))

    def _run_preflight(self) -> Json:
        findings = preflight(self.method, hardware_of(self.job.flavor))
        for line in as_text(findings).split("\n"):
            say(line)
        on_command_line = any(word.partition("=")[0] == "--force" for word in self.command)
        forced_by = "--force" if on_command_line else f"`force: true` in the recipe {self.recipe}"
        refuse(findings, forced_by if self.job.force else "")
        return findings

    def _begin(self, start: Json, before: Json) -> None:
        """Clear OUTPUT if asked to, and record the start; all checks have passed."""
        if self.job.overwrite:
            output.clear_output(self.folder)
            if self.checkpoints is not None:
                self.checkpoints.remove()
        base = str(self.model_args.model_name_or_path)
        local = {
            "pimono_sdpo": __version__,
            "base_model": str(Path(base).resolve()) if is_local(base) else base,
            "started_with": start,
            "before": before,
        }
        output.begin(self.folder, local)
        if self.method.fitted.left_out:
            output.write_json({"rows": list(self.method.fitted.left_out)}, self.folder / output.LEFT_OUT_FILE)


def started_with(method: Method, rows: Dataset, held_out: Dataset | None = None) -> Json:
    """Return every argument that affects the result, with hashes of model and rows."""
    args, name = method.args, str(method.model_args.model_name_or_path)
    revision = f"@{method.revision}" if method.revision else f" ({_hash_model(Path(name))})"
    start = {
        **{n: value for n, value in args.to_dict().items() if not n.startswith(NO_EFFECT)},
        **vars(method.model_args),
        **method.teaching(),
        "model_name_or_path": models.public_name(name) + revision,
        "model_revision": method.revision,
        "method": args.METHOD,
        "rows": _hash_rows(rows, method.COLUMNS),
        "held_out_rows": None if held_out is None else _hash_rows(held_out, method.COLUMNS),
    }
    plain: Json = json.loads(json.dumps(start, default=str))
    return plain


def check_same_start(folder: Path, start: Json) -> Json | None:
    """Return the preflight and scores of a training to resume, None when there is no checkpoint.

    Raises OutputError when the training in `folder` was started with other arguments, model or rows.
    """
    if output.last_checkpoint(folder) is None:
        return None
    record = read_json(folder / output.LOCAL_FILE)
    if "started_with" not in record:
        raise OutputError(
            f"`{folder}` holds checkpoints and no record of their arguments; give --overwrite to "
            "start over, or another --run-name."
        )
    old = record["started_with"]
    differences = [
        f"{name} {shorten_line(str(old.get(name)), 60)}, now {shorten_line(str(start.get(name)), 60)}"
        for name in sorted({*old, *start})
        if old.get(name) != start.get(name)
    ]
    if differences:
        hidden = len(differences) - SHOWN_DIFFERENCES
        more = f" and {hidden} more" if hidden > 0 else ""
        raise OutputError(
            f"The training in `{folder}` was started with {'; '.join(differences[:SHOWN_DIFFERENCES])}{more}: give "
            "the same arguments to resume it, --overwrite to start over, or another --run-name."
        )
    before: Json = record["before"]
    return before


def _hash_model(folder: Path) -> str:
    """Hash the config of a model, and size and first HEAD_BYTES of each file of weights."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        digest.update(f"{file.name} {file.stat().st_size}".encode())
        with file.open("rb") as weights:
            digest.update(weights.read(HEAD_BYTES))
    return digest.hexdigest()[:12]


def _hash_rows(rows: Dataset, columns: Sequence[str]) -> str:
    """Hash the columns that are trained on, wherever the rows came from."""
    digest = hashlib.sha256()
    for row in rows.select_columns([name for name in columns if name in rows.column_names]):
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:12]


ARGUMENTS_OF_METHOD = {
    "sdpo": (
        "method num_iterations num_generations max_completion_length max_reprompt_len "
        "temperature top_p top_k beta "
        "loss_type success_reward_threshold use_successful_as_teacher "
        "include_environment_feedback environment_feedback_only_without_solution "
        "distillation_weight distillation_mode distillation_alpha distillation_topk "
        "teacher_model_kind teacher_update_rate teacher_sync_steps"
    ).split(),
    "sft": "max_length packing completion_only_loss assistant_only_loss loss_type".split(),
    "dpo": "max_length beta loss_type loss_weights label_smoothing".split(),
}
PACKAGES = "trl transformers peft bitsandbytes torch accelerate datasets huggingface_hub trackio".split()


def _find_vllm_host(args: Any) -> str | None:
    """Return the host of a vLLM server on another machine, None without one."""
    if not getattr(args, "use_vllm", False) or args.vllm_mode != "server":
        return None
    host = urlsplit(args.vllm_server_base_url or f"//{args.vllm_server_host}").hostname or ""
    return None if is_this_machine(host) else host


def describe_run(method: Method) -> Json:
    """Return the method's part of the run log: arguments, hardware, versions, log of each step."""
    trainer, fitted = method.trainer, method.fitted
    args, model_args = trainer.args, method.model_args
    model = trainer.accelerator.unwrap_model(trainer.model)
    settings, space, history = args.to_dict(), args.trackio_space_id, trainer.state.log_history
    target = model.peft_config["default"].target_modules
    on_gpu = args.device.type == "cuda"
    device = torch.cuda.get_device_name(args.device) if on_gpu else platform.processor() or platform.machine()
    return {
        "pimono_sdpo": __version__,
        "method": args.METHOD,
        "run_name": args.run_name,
        "output_dir": _without_machine_path(str(args.output_dir)),
        "mode": method.job.mode,
        "base_model": models.public_name(str(model_args.model_name_or_path)),
        "base_model_revision": method.revision,
        "base_model_class": type(model.get_base_model()).__name__,
        "dataset": {"rows": fitted.given, "rows_used": len(trainer.train_dataset), **fitted.counts},
        "teaching": method.teaching(),
        "hub_model_id": args.hub_model_id,
        "trackio": {
            "project": args.project,
            "space_id": space,
            "url": f"https://huggingface.co/spaces/{space}" if space else None,
        },
        "arguments": {
            **tracking.list_arguments(args, model_args),
            **{name: settings[name] for name in ARGUMENTS_OF_METHOD[args.METHOD]},
            "max_prompt_length": fitted.budgets["prompt"],
            "lora_target_modules": target if isinstance(target, str) else sorted(target),
        },
        "hardware": {"device": args.device.type, "name": device, "count": torch.cuda.device_count() if on_gpu else 1},
        "versions": {name: version(name) for name in PACKAGES},
        "started_at": method.progress.started_at,
        "resumed_at": method.progress.resumed_at,
        "finished_at": now(),
        "guards": method.guards.record(),
        # The last entry of the history summarises the run, as `metrics` does.
        "log_history": [entry for entry in history if not {"train_runtime", "rollouts"} & entry.keys()],
        "rollouts": [{"step": entry["step"], **rollout} for entry in history for rollout in entry.get("rollouts", ())],
        "adapter": {"trainable_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad)},
    }


def _without_machine_path(word: str) -> str:
    """Reduce a path outside the working folder to its name; `word` may be --OPTION=PATH."""
    option, equals, value = word.rpartition("=")
    path = Path(value)
    outside = path.is_absolute() or ".." in path.parts or value.startswith("~")
    return f"{option}{equals}{path.name}" if outside else word
