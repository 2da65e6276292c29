"""Train on Hugging Face Jobs: upload rows and package, submit a job, follow its log.

Uploaded are the rows with their report (to a private dataset), the package as a wheel, the user's own
rewards and files named in options (to a private bucket), and the token (as a secret of the job).

reads requirements.txt, which pins every package of the job; `make lock` writes it
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentError, ArgumentParser, Namespace
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import distribution
from itertools import chain
from os import environ
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import yaml
from datasets import load_dataset
from httpx2 import HTTPError
from huggingface_hub import HfApi, JobInfo, JobStage, Volume, get_token
from huggingface_hub.errors import HfHubHTTPError

from pimono_sdpo.errors import OutputError, PimonoError, TrainingInputError
from pimono_sdpo.own_code import list_own_files
from pimono_sdpo.push import hub_errors, push_folder, require_adapter_of
from pimono_sdpo.push_options import PushOptions
from pimono_sdpo.traces.hub import explain_error, retry_hub
from pimono_sdpo.training.console import say
from pimono_sdpo.training.options import (
    OPTIONAL_PACKAGES,
    SMOKE_TEST,
    accept_negative_numbers,
    check_columns,
    check_folder,
    check_generations,
    check_numbers,
    checked_recipe,
    find_flavor,
    find_recipe,
    find_shipped,
    is_local,
    read_options,
    refuse_unknown,
    seconds_of,
)
from pimono_sdpo.version import __version__

# A reward or verifier of the user, as module:name, optionally with a weight.
OWN_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]")
# Where the bucket with the wheel and the user's code is mounted in the job.
MOUNT = "/pimono-sdpo"
DEFAULT_LIMIT = "3h"
# The label by which a job is found again; the Hub takes letters, digits, `-` and `_` in it.
LABEL = "pimono-sdpo"
# The variable of the job with the command that submitted it, for the card.
COMMAND = "PIMONO_SDPO_COMMAND"
TRUE = ("true", "yes", "1")
# Options whose values may be folders on this machine, which a job cannot read.
PATHS = ("model_name_or_path", "adapter")
Json = dict[str, Any]
TYPES = {"int": int, "float": float}


def launch(
    flavor: str,
    method: str,
    rows: str,
    argv: list[str],
    wheel: Path | None = None,
    namespace: str | None = None,
    detach: bool = False,
) -> None:
    """Train on a machine of Hugging Face Jobs, and wait for the job to end unless `detach`.

    argv        options of the job as after `pimono-sdpo train ROWS`
    wheel       a wheel of this package, None for the installed version
    namespace   the account or organization that runs the job and pays for it, None for the user's own

    Raises PimonoError when the job cannot be submitted or does not complete.
    """
    check_folder(rows)
    argv = [part for word in argv for part in (word.split("=", 1) if word[:2] == "--" else [word])]
    options = _parse_options(method, argv)
    lock = find_shipped("requirements.txt").read_text().splitlines()
    pins = [line for line in lock if line and line[0] != "#"]
    for name, package in OPTIONAL_PACKAGES.items():
        is_on = str(getattr(options, name, None)).lower() in TRUE
        if is_on and not any(line.startswith(f"{package}==") for line in pins):
            raise TrainingInputError(f"--{name} needs the package `{package}`, which a job lacks; leave out --{name}.")
    if method in ("sdpo", "rft", "grpo") and _find_reward(options) == "trace_grounding":
        say(SMOKE_TEST)
    limit = options.time_limit or DEFAULT_LIMIT
    api = HfApi()
    with hub_errors("No job can be submitted"):
        for attempt in retry_hub(connected=False):
            with attempt:
                has_gpu = find_flavor(api, flavor).accelerator is not None
                user = api.whoami()
    if not has_gpu and str(options.use_cpu).lower() not in TRUE:
        raise TrainingInputError(
            f"The flavor `{flavor}` has no GPU; give another, or --use_cpu true for a small model."
        )
    account = str(user["name"])
    accounts = [account, *(organization["name"] for organization in user["orgs"])]
    if namespace not in (None, *accounts):
        raise TrainingInputError(f"--namespace is {namespace}; give one of {', '.join(accounts)}.")
    owner = namespace or account
    check_rows(rows, method, options)
    folder = Path(rows) if Path(rows).exists() else None
    dataset = f"{account}/{folder.resolve().name}" if folder else rows
    adapter = options.hub_model_id or environ.get("HUB_MODEL_ID")
    if not adapter:
        adapter = f"{account}/{dataset.partition('/')[2]}-{method}"
        require_adapter_of(dataset, adapter)
    run_name = options.run_name or adapter.rpartition("/")[2]
    space = {name: environ[name] for name in ("TRACKIO_SPACE_ID",) if name in environ}
    with TemporaryDirectory() as temporary:
        artifacts = Path(temporary)
        requirement = find_package(wheel, artifacts)
        for name, file in list_own_files(filter(OWN_CODE.match, argv)).items():
            (artifacts / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, artifacts / name)
        say("stays here: the sessions from which the rows were made")
        if folder is not None:
            say(push_folder(folder, dataset, PushOptions(), typed=False))
            # The dataset may have the rows of other commands as well.
            check_rows(dataset, method, options)
        with hub_errors("The job could not be submitted"):
            volumes = _upload(api, artifacts, f"{owner}/jobs-artifacts")
            files = "".join(f"{word}, " for word in argv if Path(word).is_file())
            say(f"leaves this machine: {files}the token, as a secret of the job")
            ours = {"time_limit": limit, "hub_model_id": adapter, "run_name": run_name}
            missing = [(f"--{name}", value) for name, value in ours.items() if not getattr(options, name)]
            words = ["train", dataset, "--method", method, *argv]
            where = ["--on", f"hf:{flavor}", *(["--namespace", namespace] if namespace else [])]
            typed = ["pimono-sdpo", *words, *where, *([] if options.time_limit else ["--time-limit", limit])]
            job = _submit(
                api,
                namespace=owner,
                script_args=[*words, *chain(*missing)],
                dependencies=[*pins, requirement],
                env={"PYTHONPATH": MOUNT, **space, COMMAND: shlex.join(typed)},
                secrets={"HF_TOKEN": get_token()},
                flavor=flavor,
                timeout=limit,
                volumes=volumes,
            )
    name = f"{job.owner.name}/{job.id}"
    say(f"job {name} on {flavor}, for at most {limit}: {job.url}")
    say(f"the adapter will be in {adapter}, private if new")
    if detach:
        say(f"`hf jobs logs -f {name}` follows it, `hf jobs cancel {name}` ends it")
    else:
        _follow(api, job)


def check_rows(rows: str, method: str, options: Namespace) -> None:
    """Raise TrainingInputError unless the rows can be loaded and have the columns that the method reads."""
    for split in filter(None, ("train", options.eval_split)):
        try:
            # In a folder the rows have no configuration yet.
            config = None if Path(rows).is_dir() else options.dataset_config
            loaded = load_dataset(rows, config, split=split, streaming=True)
            columns = [*next(iter(loaded), ())]
        except (OSError, ValueError, HTTPError) as error:
            reason = str(error).split("\n")[0].rstrip(".")
            raise TrainingInputError(
                f"The split `{split}` of `{rows}` cannot be loaded ({reason}); check the name, the network and "
                "HF_TOKEN."
            ) from error
        if not columns:
            raise TrainingInputError(f"The split `{split}` of `{rows}` has no rows; give other rows.")
        check_columns(method, columns, rows)


def _submit(api: HfApi, namespace: str, **job: Any) -> JobInfo:
    """Submit a job, once: if the answer is lost, look for the job by its label; raises OutputError."""
    label = uuid4().hex
    submitted: JobInfo
    try:
        submitted = api.run_uv_job("pimono-sdpo", namespace=namespace, labels={LABEL: label}, **job)
        return submitted
    except HTTPError as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code < 500:
            raise
        reason = explain_error(error)
    look = f"look with `hf jobs ls --all --namespace {namespace} --label {LABEL}={label}` before you start it again"
    try:
        for attempt in retry_hub(connected=False):
            with attempt:
                for submitted in api.list_jobs(namespace=namespace, labels={LABEL: label}):
                    if (submitted.labels or {}).get(LABEL) == label:
                        return submitted
    except HTTPError as error:
        raise OutputError(
            f"It is not known whether the job was submitted ({explain_error(error)}): {look}."
        ) from error
    raise OutputError(f"The job was not submitted ({reason}): the Hub lists no such job; {look}.")


def _parse_options(method: str, argv: list[str]) -> Namespace:
    """Parse the options as the job will; raises TrainingInputError for those that it could not use."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    accept_negative_numbers(parser)
    known = read_options(method)
    for name, about in known.items():
        flags = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        constant = {"const": "true"} if about.get("nargs") == "?" else {}
        parser.add_argument(*flags, **about | constant | {"type": TYPES.get(about.get("type"), str)})
    try:
        config = parser.parse_known_args(argv)[0].config
        if config is not None:
            parser.set_defaults(**checked_recipe(_read_recipe(config), parser))
        options, unknown = parser.parse_known_args(argv)
    except ArgumentError as error:
        raise TrainingInputError(f"The arguments cannot be used ({error}); see --help.") from error
    refuse_unknown(unknown, parser)
    check_numbers(vars(options), {name: about.get("default") for name, about in known.items()})
    if method == "grpo" and options.num_generations is not None:
        check_generations(method, options.num_generations)
    if (options.config or "").endswith((".yaml", ".yml")) and not Path(options.config).is_file():
        raise TrainingInputError(
            f"--config {options.config} is not a file here; give the name of a recipe without .yaml."
        )
    for option in PATHS:
        value = getattr(options, option, None)
        if value is not None and is_local(value):
            raise TrainingInputError(
                f"--{option} {value} is on this machine, where a job cannot read it; push it to "
                "the Hub and give its id."
            )
    seconds_of(options.time_limit or DEFAULT_LIMIT)
    return options


def _read_recipe(name: str) -> dict[str, Any]:
    path = find_recipe(name)
    try:
        recipe = yaml.safe_load(path.read_text())
    except (ValueError, yaml.YAMLError) as error:
        raise TrainingInputError(
            f"The recipe `{path}` cannot be read ({' '.join(str(error).split())}); correct it."
        ) from error
    if not isinstance(recipe, dict):
        raise TrainingInputError(
            f"The recipe `{path}` is not a mapping; write a line `option: value` for each option."
        )
    # Variables that TRL sets in the job.
    recipe.pop("env", None)
    return recipe


def _find_reward(options: Namespace) -> str:
    """Return the reward of a job, by its options or its recipe."""
    recipe = _read_recipe(options.config) if options.config else {}
    return str(options.reward or recipe.get("reward", "trace_grounding"))


def find_package(wheel: Path | None, folder: Path) -> str:
    """Return the requirement by which `uv` installs this package; a wheel is built in or copied to `folder`."""
    origin = json.loads(distribution("pimono-sdpo").read_text("direct_url.json") or "{}")
    url = origin.get("url", "")
    installed = Path(unquote(urlsplit(url).path))
    checkouts = [Path(__file__).parents[2], *([installed] if url.startswith("file:") else ())]
    checkout = next((path for path in checkouts if (path / "pyproject.toml").is_file()), None)
    if wheel is None and checkout is not None:
        _build_wheel(checkout, folder)
    elif wheel is None and not url.startswith("file:"):
        if not origin:
            return f"pimono-sdpo[train]=={__version__}"
        vcs = origin.get("vcs_info")
        location = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url
        return f"pimono-sdpo[train] @ {location}"
    else:
        file = wheel or installed
        if not file.is_file() or file.suffix != ".whl":
            raise TrainingInputError(f"The wheel `{file}` of this installation is gone; give one as --wheel FILE.")
        shutil.copy(file, folder)
    (built,) = folder.glob("*.whl")
    return f"{MOUNT}/{built.name}[train]"


def _build_wheel(checkout: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    if uv := shutil.which("uv"):
        command = [uv, "build", "--quiet", "--wheel", "--out-dir", str(folder)]
    done = subprocess.run([*command, str(checkout)], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise TrainingInputError(f"The wheel of `{checkout}` could not be built ({reason}); give one as --wheel FILE.")


def _upload(api: HfApi, artifacts: Path, bucket: str) -> list[Volume]:
    """Upload the files of a folder to the private bucket of jobs, and return it as a volume of the job."""
    files = sorted(path for path in artifacts.rglob("*") if path.is_file())
    if not files:
        return []
    say(f"leaves this machine: {', '.join(path.name for path in files)}, to the private bucket {bucket}")
    digest = sha256(b"".join(sha256(path.read_bytes()).digest() for path in files)).hexdigest()
    folder = f"pimono-sdpo-{digest[:12]}"
    add: Any = [(path, f"{folder}/{path.relative_to(artifacts).as_posix()}") for path in files]
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
            f"The bucket `{bucket}` is public, but the files to upload are private; make it private, or give another."
        )


def _follow(api: HfApi, job: JobInfo) -> None:
    """Print the log of a job until it ends; raises PimonoError unless it completed."""
    name = f"{job.owner.name}/{job.id}"
    job_key: Any = {"job_id": job.id, "namespace": job.owner.name}
    try:
        # The stream of the log may break; only the final status counts.
        with suppress(HTTPError):
            for line in api.fetch_job_logs(follow=True, **job_key):
                say(line.expandtabs())
        with hub_errors(f"The result of job {name} is not known"):
            for attempt in retry_hub():
                with attempt:
                    finished = api.wait_for_job(**job_key)
    except KeyboardInterrupt:
        raise PimonoError(
            f"The job continues: `hf jobs logs -f {name}` follows it, `hf jobs cancel {name}` ends it."
        ) from None
    status = finished.status
    if status.stage != JobStage.COMPLETED:
        reason = f" ({status.message})" if status.message else ""
        raise PimonoError(f"Job {name} ended with {status.stage}{reason}; its log is above.")
    say(f"job {name} completed")
