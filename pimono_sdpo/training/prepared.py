"""The rows of a training: given, filtered now, or filtered earlier by the same arguments.

reads OUTPUT/data/report.json, and how the source looks now / writes OUTPUT/data
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pimono_sdpo.commands.filter import run_filter
from pimono_sdpo.errors import OutputError, TrainingInputError
from pimono_sdpo.export import HUB_ID, open_source
from pimono_sdpo.training.options import JobArguments
from pimono_sdpo.training.output import DATA, NEXT_DATA, REPORT_FILE, check_data, read_object
from pimono_sdpo.training.processes import is_leader, say
from pimono_sdpo.training.shapes import FILTER_OPTIONS, misfit

Json = dict[str, Any]


def rows_of(job: JobArguments, output: Path, seed: int, redact: Callable[[str], str]) -> str:
    """Return the rows to train on: --dataset, else those prepared before, else filter now.

    `redact` is what the filter does to the names in its report.
    """
    if job.dataset is not None:
        return job.dataset
    data = output / DATA
    if job.overwrite and not is_leader():
        return str(output / NEXT_DATA)
    if job.overwrite:
        check_data(output)
        return prepare_rows(job, output, NEXT_DATA, seed)
    if not (data / REPORT_FILE).exists():
        return prepare_rows(job, output, DATA, seed)
    check_prepared(data, _options(job, seed), job.source, redact)
    return str(data)


def prepare_rows(job: JobArguments, output: Path, name: str, seed: int) -> str:
    """Filter the source into a folder of OUTPUT and return it."""
    if job.source is None:
        raise TrainingInputError(
            "There is nothing to train on; give --dataset (rows) or --source (traces)."
        )
    folder = output / name
    report = run_filter(job.source, folder, **_options(job, seed))
    say(f"{report['kept']} of {report['sessions']} sessions are rows in {output / DATA}")
    return str(folder)


def _options(job: JobArguments, seed: int) -> Json:
    return {
        "unit": job.unit,
        "min_score": job.min_score,
        "max_samples": job.max_samples,
        "test_fraction": job.test_fraction,
        "seed": seed,
    }


def check_prepared(
    data: Path, options: Json, source: str | None, redact: Callable[[str], str]
) -> None:
    """Refuse rows made with other options or from another source; raises OutputError.

    `redact` is what the filter does to the names in its report.
    """
    report = read_object(data / REPORT_FILE) or {}
    if misfit(report, FILTER_OPTIONS):
        raise OutputError(
            f"The {REPORT_FILE} in `{data}` is not the filter's; run --mode prepare with another "
            "--run-name."
        )
    found = report["options"]
    told = [f"{name} {found[name]}" for name, value in options.items() if found[name] != value]
    if source is not None and isinstance(report.get("input"), dict):
        told += _other_source(report["input"], source, redact)
    if told:
        raise OutputError(
            f"`{data}` was filtered with {', '.join(told)}; give the same options, run --mode "
            "prepare again, or --overwrite."
        )


def _other_source(made_from: Json, source: str, redact: Callable[[str], str]) -> list[str]:
    if HUB_ID.fullmatch(source) and not Path(source).exists():
        # The report pins its commit, and going on must not depend on the network.
        same = (made_from.get("kind"), made_from.get("source")) == ("hub", source)
        return [] if same else [f"source {made_from.get('source')}"]
    opened = open_source(source)
    if redact(opened.name) != made_from.get("source"):
        return [f"source {made_from.get('source')}"]
    # A folder of the same name may be another one.
    now = [[redact(shard.path), shard.sessions, shard.bytes] for shard in opened.shards]
    then = [
        [shard.get("path"), shard.get("sessions"), shard.get("bytes")]
        for shard in made_from.get("shards", [])
    ]
    return [] if now == then else ["other files in its source"]
