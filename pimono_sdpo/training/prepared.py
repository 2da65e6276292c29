"""Tell whether rows filtered earlier are the ones that the arguments of this run ask for.

reads OUTPUT/data/report.json, and how the source looks now
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import OutputError
from pimono_sdpo.export import HUB_ID, open_source
from pimono_sdpo.training.output import REPORT_FILE, read_object
from pimono_sdpo.training.shapes import FILTER_OPTIONS, misfit

Json = dict[str, Any]


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
