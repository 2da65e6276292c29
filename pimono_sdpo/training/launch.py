"""Train on Hugging Face Jobs: ship rows and package, submit, follow the log.

What leaves this machine: the rows with their report (a private dataset), the package as a wheel,
own rewards and the files named among the options (a private bucket), and the token (a secret of the
job).

reads requirements.txt, which pins every package of the job; `make lock` writes it
"""

import json
import re
import shutil
import subprocess
import sys
from argparse import ArgumentError, ArgumentParser, Namespace
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import distribution
from os import environ
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit

from httpx2 import HTTPError
from huggingface_hub import HfApi, JobInfo, JobStage, Volume, get_token

from pimono_sdpo import __version__
from pimono_sdpo.errors import OutputError, PimonoError, TrainingInputError
from pimono_sdpo.own_code import list_own_files
from pimono_sdpo.push import PushOptions, hub_errors, push_folder
from pimono_sdpo.traces.hub import retry_hub
from pimono_sdpo.training import find_recipe, find_shipped, read_options, refuse_unknown, say, seconds_of

# A reward or a verifier of the user's own, with a weight or without.
OWN_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]")
# Where the job finds the wheel and such code.
MOUNT = "/pimono-sdpo"
DEFAULT_LIMIT = "3h"
# Options whose values may be folders here, which a job cannot see.
PATHS = ("model_name_or_path", "adapter", "source")
TYPES = {"int": int, "float": float}


def launch(flavor: str, method: str, rows: str, words: list[str], wheel: Path | None) -> None:
    """Train on a machine of Hugging Face Jobs, and wait for the end.

    words   options of the job as after `pimono-sdpo train ROWS`
    wheel   of this package, None for what is installed

    Raises PimonoError when something cannot be sent, and when the job does not complete.
    """
    rest = [part for word in words for part in (word.split("=", 1) if word[:2] == "--" else [word])]
    given = _read_words(method, rest)
    limit = given.time_limit or DEFAULT_LIMIT
    api = HfApi()
    account = _check_account_and_flavor(api, flavor)
    folder = Path(rows) if Path(rows).exists() else None
    dataset = f"{account}/{folder.resolve().name}" if folder else rows
    adapter = given.hub_model_id or environ.get("HUB_MODEL_ID") or f"{account}/{dataset.partition('/')[2]}-{method}"
    run_name = given.run_name or adapter.rpartition("/")[2]
    lock = find_shipped("requirements.txt").read_text().splitlines()
    pins = [line for line in lock if line and line[0] != "#"]
    space = {name: environ[name] for name in ("TRACKIO_SPACE_ID",) if name in environ}
    with TemporaryDirectory() as temporary:
        place = Path(temporary)
        requirement = find_package(wheel, place)
        for name, file in list_own_files(filter(OWN_CODE.match, rest)).items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place / name)
        say("stays here: the sessions from which the rows were made")
        if folder is not None:
            say(push_folder(folder, dataset, PushOptions(), only_private=True))
        with hub_errors("The job could not be submitted"):
            volumes = _upload(api, place, f"{account}/jobs-artifacts")
            named = "".join(f"{word}, " for word in rest if Path(word).is_file())
            say(f"leaves this machine: {named}the token, as a secret of the job")
            # Not tried again: an answer that was lost would make it two jobs.
            job = api.run_uv_job(
                "pimono-sdpo",
                script_args=[
                    *("train", dataset, "--method", method, "--hub_model_id", adapter),
                    *("--run_name", run_name, "--time_limit", limit, *rest),
                ],
                dependencies=[*pins, requirement],
                env={"PYTHONPATH": MOUNT, **space},
                secrets={"HF_TOKEN": get_token()},
                flavor=flavor,
                timeout=limit,
                volumes=volumes,
            )
    say(f"job {job.owner.name}/{job.id} on {flavor}, for at most {limit}: {job.url}")
    say(f"the adapter will be in {adapter}, private if new")
    _follow(api, job)


def _read_words(method: str, words: list[str]) -> Namespace:
    """Read words as the job will; raises TrainingInputError for what it could not use."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, about in read_options(method).items():
        flags = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        parser.add_argument(*flags, **about | {"type": TYPES.get(about.get("type"), str)})
    try:
        given, unknown = parser.parse_known_args(words)
    except ArgumentError as error:
        raise TrainingInputError(f"The arguments cannot be used ({error}); see --help.") from error
    refuse_unknown(unknown, parser)
    if given.config is not None:
        find_recipe(given.config)
        if given.config.endswith((".yaml", ".yml")) and not Path(given.config).is_file():
            raise TrainingInputError(
                f"--config {given.config} is not a file here; the name of a recipe goes without .yaml."
            )
    for option in PATHS:
        value = getattr(given, option, None)
        if value is not None and Path(value).exists():
            raise TrainingInputError(
                f"--{option} {value} is on this machine, where a job cannot read it; push it to "
                "the Hub and give its id."
            )
    seconds_of(given.time_limit or DEFAULT_LIMIT)
    return given


def _check_account_and_flavor(api: HfApi, flavor: str) -> str:
    """Return the name of the account; raises TrainingInputError for an unknown flavor."""
    with hub_errors("No job can be submitted"):
        for attempt in retry_hub(connected=False):
            with attempt:
                find_flavor(api, flavor)
                account = str(api.whoami()["name"])
    return account


def find_flavor(api: HfApi, flavor: str) -> Any:
    """Return the flavor as the Hub lists it; raises TrainingInputError for an unknown one."""
    listed = {item.name: item for item in api.list_jobs_hardware()}
    if flavor not in listed:
        raise TrainingInputError(f"There is no flavor `{flavor}`; give one of {', '.join(listed)}.")
    return listed[flavor]


def find_package(wheel: Path | None, folder: Path) -> str:
    """Return what `uv` installs this package from; a wheel is put into `folder`."""
    origin = json.loads(distribution("pimono-sdpo").read_text("direct_url.json") or "{}")
    url = origin.get("url", "")
    installed = Path(unquote(urlsplit(url).path))
    places = [Path(__file__).parents[2], *([installed] if url.startswith("file:") else ())]
    source = next((one for one in places if (one / "pyproject.toml").is_file()), None)
    if wheel is None and source is not None:
        _build(source, folder)
    elif wheel is None and not url.startswith("file:"):
        if not origin:
            return f"pimono-sdpo[train]=={__version__}"
        vcs = origin.get("vcs_info")
        place = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url
        return f"pimono-sdpo[train] @ {place}"
    else:
        file = wheel or installed
        if not file.is_file() or file.suffix != ".whl":
            raise TrainingInputError(f"The wheel `{file}` of this installation is gone; give one as --wheel FILE.")
        shutil.copy(file, folder)
    (built,) = folder.glob("*.whl")
    return f"{MOUNT}/{built.name}[train]"


def _build(checkout: Path, folder: Path) -> None:
    """Build the wheel of a checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    if uv := shutil.which("uv"):
        command = [uv, "build", "--quiet", "--wheel", "--out-dir", str(folder)]
    done = subprocess.run([*command, str(checkout)], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise TrainingInputError(f"The wheel of `{checkout}` could not be built ({reason}); give one as --wheel FILE.")


def _upload(api: HfApi, place: Path, bucket: str) -> list[Volume]:
    """Put the files of a folder into the private bucket of jobs."""
    files = sorted(path for path in place.rglob("*") if path.is_file())
    if not files:
        return []
    say(f"leaves this machine: {', '.join(path.name for path in files)}, to the private bucket {bucket}")
    digest = sha256(b"".join(sha256(path.read_bytes()).digest() for path in files)).hexdigest()
    folder = f"pimono-sdpo-{digest[:12]}"
    add: Any = [(path, f"{folder}/{path.relative_to(place).as_posix()}") for path in files]
    open_private_bucket(api, bucket)
    for attempt in retry_hub():
        with attempt:
            api.batch_bucket_files(bucket, add=add)
    return [Volume(type="bucket", source=bucket, mount_path=MOUNT, path=folder, read_only=True)]


def open_private_bucket(api: HfApi, bucket: str) -> None:
    """Create a bucket if it is missing; raises OutputError for a public one."""
    for attempt in retry_hub(connected=False):
        with attempt:
            api.create_bucket(bucket, private=True, exist_ok=True)
            private = api.bucket_info(bucket).private
    if not private:
        raise OutputError(
            f"The bucket `{bucket}` is public, and what goes there is not; make it private, or give another."
        )


def _follow(api: HfApi, job: JobInfo) -> None:
    """Print the log of a job until it ends; raises PimonoError unless it completed."""
    where = f"{job.owner.name}/{job.id}"
    named: Any = {"job_id": job.id, "namespace": job.owner.name}
    try:
        # The log may break off; how the job ended is what counts.
        with suppress(HTTPError):
            for line in api.fetch_job_logs(follow=True, **named):
                say(line)
        with hub_errors(f"How job {where} ended is not known"):
            for attempt in retry_hub():
                with attempt:
                    end = api.wait_for_job(**named)
    except KeyboardInterrupt:
        raise PimonoError(
            f"The job goes on: `hf jobs logs -f {where}` follows it, `hf jobs cancel {where}` ends it."
        ) from None
    if end.status.stage != JobStage.COMPLETED:
        why = f" ({end.status.message})" if end.status.message else ""
        raise PimonoError(f"Job {where} ended with {end.status.stage}{why}; its log is above.")
    say(f"job {where} completed")
