"""Everything that is checked before SFT or DPO, up to a trainer that is ready.

reads --dataset / writes OUTPUT/left-out.json, the rows that cannot be trained on whole
"""

from functools import partial
from pathlib import Path
from typing import Any

from trl import ModelConfig

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training import course, models, recorded, recorded_scores, rows, started
from pimono_sdpo.training.adapters import Adapter, open_adapter
from pimono_sdpo.training.hardware import hardware_of
from pimono_sdpo.training.held_apart import refuse_leaks, refuse_test_rows
from pimono_sdpo.training.options import PairArguments, RecordedArguments
from pimono_sdpo.training.preflight import refuse
from pimono_sdpo.training.processes import say
from pimono_sdpo.training.recorded_preflight import as_text, preflight
from pimono_sdpo.training.recorded_rows import TARGETS, TEMPLATE, fit_recorded

Json = dict[str, Any]


def get_ready(job: RecordedArguments, args: Any, model_args: ModelConfig) -> course.Ready | None:
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
    start = started.started_with(args, model_args, revision, loaded, own, held_out, columns)
    if not job.overwrite:
        started.check_same_start(output, start)
    fitted, left_out = fit_recorded(
        method, loaded, tokenizer, args.max_length, recorded.TEMPLATE, held_out
    )
    goes_on, before = course.found_before(output, job.overwrite)
    if job.mode == "preflight" or not goes_on:
        hardware = hardware_of(job.flavor)
        found = preflight(args, model_args, fitted, revision, hardware, adapter is not None)
        say(as_text(found))
        refuse(found, job.force)
        before["preflight"] = found
    if job.mode == "preflight":
        return None
    prepared = recorded.prepare(args, model_args, fitted, tokenizer, revision, adapter)
    score = None
    if fitted.held_out is not None:
        score = partial(recorded_scores.score_rows, prepared.trainer, fitted.held_out)
    return course.Ready(
        prepared,
        rows.dataset_name(job.dataset),
        None,
        start,
        teaching,
        before,
        goes_on,
        score,
        partial(recorded_scores.summary, split=str(job.eval_split)),
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
