"""`train --on hf:FLAVOR`: what it ships, what it says first, and what stops it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pimono_sdpo.filtering import FilterOptions, run_filter
from pimono_sdpo.samples import SAMPLE_SESSIONS
from pimono_sdpo.training.options import SMOKE_TEST
from pimono_sdpo.version import __version__
from tests.exports import write_samples
from tests.loopback_hub import LoopbackHub, run_client, run_hf, run_python
from tests.loopback_hub.call import FINE_TOKEN
from tests.loopback_hub.executor import Job

ROOT = Path(__file__).parents[2]
TRAINING = ("datasets", "pimono_sdpo.cli", "pimono_sdpo.training.sdpo")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    write_samples(tmp_path / "traces")
    run_filter(str(tmp_path / "traces"), tmp_path / "rows", FilterOptions(licence="mit"))
    return tmp_path / "rows"


def launch(
    hub: LoopbackHub, home: Path, *words: str, token: str | None = "hf_loopback", rows: str = "rows"
) -> subprocess.CompletedProcess[str]:
    command = ("-m", "pimono_sdpo", "train", rows, *words)
    return run_python(hub, home, *command, token=token, xet=True, imported=TRAINING)


# Prints what a job would install, for each origin of this installation.
FIND = """
import json, sys
from pathlib import Path
from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.launch import find_package
for name, origin in json.load(sys.stdin).items():
    about = Path("pimono_sdpo-0.1.0.dist-info", "direct_url.json")
    about.write_text(json.dumps(origin)) if origin else about.unlink(missing_ok=True)
    Path(name).mkdir()
    try:
        print(find_package(None, Path(name)))
    except TrainingInputError as problem:
        print(problem)
"""


def test_a_job_installs_what_is_installed_here(tmp_path: Path) -> None:
    for name in ("pimono_sdpo", "processors", "rewards", "cards"):
        shutil.copytree(ROOT / name, tmp_path / name)
    about = tmp_path / "pimono_sdpo-0.1.0.dist-info"
    about.mkdir()
    metadata = "Metadata-Version: 2.1\nName: pimono-sdpo\nVersion: 0.1.0\n"
    (about / "METADATA").write_text(metadata)
    wheel = tmp_path / "pimono_sdpo-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    vcs = {"vcs": "git", "commit_id": "c0ffee"}
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "release": ({}, f"pimono-sdpo[train]=={__version__}"),
        "vcs": (
            {"url": "https://example.org/p.git", "vcs_info": vcs},
            "pimono-sdpo[train] @ git+https://example.org/p.git@c0ffee",
        ),
        "url": (
            {"url": "https://example.org/p.whl", "archive_info": {}},
            "pimono-sdpo[train] @ https://example.org/p.whl",
        ),
        "wheel": ({"url": wheel.as_uri()}, f"/{wheel.name}[train]"),
        "gone": ({"url": (tmp_path / "gone.whl").as_uri()}, "of this installation is gone; give one as --wheel FILE."),
    }
    done = subprocess.run(
        [sys.executable, "-c", FIND],
        input=json.dumps({name: origin for name, (origin, _) in cases.items()}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (name, (_, expected)), said in zip(cases.items(), done.stdout.splitlines(), strict=True):
        assert said.endswith(expected), name
    assert (tmp_path / "wheel" / wheel.name).read_bytes() == b"a wheel"


ON = ("--on", "hf:cpu-basic", "--use_cpu", "true")


@pytest.mark.parametrize(
    ("words", "token", "sentence"),
    [
        (("--on", "hf:abacus"), "hf_loopback", "There is no flavor `abacus`; give one of cpu-basic"),
        (("--on", "mars"), "hf_loopback", "--on is mars; give here or hf:FLAVOR"),
        ((*ON, "--max_stepz", "3"), "hf_loopback", "Unknown argument(s) --max_stepz 3, did you mean --max_steps?"),
        ((*ON, "--max_steps", "three"), "hf_loopback", "invalid int value: 'three'"),
        ((*ON, "--config", "own.yaml"), "hf_loopback", "--max_steps is 0; give at least 1"),
        ((*ON, "--config", "list.yaml"), "hf_loopback", "The recipe `list.yaml` is not a mapping"),
        ((*ON, "--config", "broken.yaml"), "hf_loopback", "The recipe `broken.yaml` cannot be read"),
        ((*ON, "--config", "tiny"), "hf_loopback", "./build/tiny-gemma4 is on this machine, where a job"),
        (("--on", "hf:cpu-basic"), "hf_loopback", "The flavor `cpu-basic` has no GPU; give another, or --use_cpu"),
        ((*ON, "--namespace", "strangers"), "hf_loopback", "--namespace is strangers; give one of me, lab"),
        ((*ON, "--eval_split", "test"), "hf_loopback", "The split `test` of `rows` cannot be loaded"),
        ((*ON, "--split_by", "day"), "hf_loopback", "argument --split_by/--split-by: invalid choice"),
        ((*ON, "--config", "nosuch.yaml"), "hf_loopback", "There is no recipe `nosuch.yaml`"),
        ((*ON, "--config", "tiny.yaml"), "hf_loopback", "give the name of a recipe without .yaml"),
        ((*ON, "--time-limit", "soon"), "hf_loopback", "`soon` is not a valid time limit"),
        ((*ON, "--model-name-or-path=traces"), "hf_loopback", "is on this machine, where a job"),
        ((*ON, "--wheel", "gone.whl"), "hf_loopback", "The wheel `gone.whl`"),
        (ON, "hf_mistyped", "does not accept the token"),
    ],
)
def test_what_cannot_run_there_is_found_before_anything_leaves(
    loopback_hub: LoopbackHub, rows: Path, words: tuple[str, ...], token: str | None, sentence: str
) -> None:
    for name, text in {"own": "max_steps: 0", "list": "- max_steps", "broken": "max_steps: ["}.items():
        (rows.parent / f"{name}.yaml").write_text(text)
    done = launch(loopback_hub, rows.parent, *words, token=token)
    assert done.returncode == 2, done.stdout + done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("pimono-sdpo: ")
    assert sentence in line
    assert not loopback_hub.store.repos
    assert not loopback_hub.store.buckets
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--on", "hf:abacus"), "There is no flavor `abacus`; give one of cpu-basic"),
        (
            (*ON, "--method", "grpo", "--num_generations", "1"),
            "--num_generations is 1, so there is no other completion",
        ),
        ((*ON, "--use_vllm"), "--use_vllm needs the package `vllm`, which a job lacks"),
        ((*ON, "--learning-rate", "-1"), "--learning_rate is -1.0; give a number above 0"),
        ((*ON, "--learning_rate=-1e-5"), "--learning_rate is -1e-05; give a number above 0"),
        ((*ON, "--method", "dpo", "--loss_type", "sigmoid", "nope"), "invalid choice: 'nope'"),
    ],
)
def test_wrong_options_are_found_without_the_hub(
    loopback_hub: LoopbackHub, rows: Path, words: tuple[str, ...], sentence: str
) -> None:
    done = launch(loopback_hub, rows.parent, *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert sentence in done.stderr.splitlines()[-1]
    assert not loopback_hub.requests


@pytest.mark.parametrize(
    ("given", "method", "sentence"),
    [
        ("nope", "sdpo", "There is no folder `nope`; make it with"),
        ("me/nope", "sdpo", "The split `train` of `me/nope` cannot be loaded (Dataset 'me/nope' doesn't exist"),
        ("me/empty", "sdpo", "The split `train` of `me/empty` cannot be loaded"),
        ("me/texts", "sdpo", "`me/texts` has no column prompt and privileged_context and reward_terms, only text"),
        ("rows", "sft", "`rows` has no column completion, only prompt"),
        ("rows", "dpo", "`rows` has no column chosen and rejected, only prompt"),
    ],
)
def test_rows_that_cannot_be_trained_on_buy_no_machine(
    loopback_hub: LoopbackHub, rows: Path, given: str, method: str, sentence: str
) -> None:
    loopback_hub.seed("me/texts", "dataset", {"train.jsonl": b'{"text": "hi"}\n'}, private=True)
    loopback_hub.seed("me/empty", "dataset", {"README.md": b"# Nothing\n"}, private=True)
    done = launch(loopback_hub, rows.parent, *ON, "--method", method, rows=given)
    assert done.returncode == 2, done.stdout + done.stderr
    assert sentence in done.stderr.splitlines()[-1]
    assert len(loopback_hub.store.repos) == 2
    assert not loopback_hub.store.buckets
    assert not loopback_hub.store.jobs


@pytest.mark.parametrize(
    ("words", "is_said"),
    [((), True), (("--config", "qwen3_4b"), True), (("--reward", "verifiers"), False), (("--method", "sft"), False)],
)
def test_the_first_line_says_that_the_reward_is_a_smoke_test(
    loopback_hub: LoopbackHub, rows: Path, words: tuple[str, ...], is_said: bool
) -> None:
    done = launch(loopback_hub, rows.parent, "--on", "hf:abacus", *words)
    assert (done.stdout.splitlines()[:1] == [SMOKE_TEST]) == is_said, done.stdout + done.stderr


def test_private_rows_do_not_go_to_a_public_dataset(loopback_hub: LoopbackHub, rows: Path) -> None:
    loopback_hub.seed("me/rows", "dataset", {"a.txt": b"theirs"})
    done = launch(loopback_hub, rows.parent, *ON)
    assert done.returncode == 2
    assert "The dataset `me/rows` is public" in done.stderr
    assert sorted(loopback_hub.files("me/rows", "dataset")) == [".gitattributes", "a.txt"]


def test_a_name_that_nobody_typed_is_not_used_for_another_source(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    """Two folders called `rows`, made from two folders called `traces`."""
    loopback_hub.store.credit = False
    words = (*ON, "--wheel", str(tmp_path / "p.whl"))
    (tmp_path / "p.whl").write_bytes(b"")
    sessions = sorted(SAMPLE_SESSIONS.glob("*.jsonl"))
    one, other = tmp_path / "one", tmp_path / "other"
    for work, part in ((one, sessions[::2]), (other, sessions[1::2])):
        (work / "traces").mkdir(parents=True)
        for session in part:
            shutil.copy(session, work / "traces")
        run_filter(str(work / "traces"), work / "rows", FilterOptions(unit="session", licence="mit"))
    assert "402" in launch(loopback_hub, one, *words).stderr
    before = loopback_hub.files("me/rows", "dataset")

    done = launch(loopback_hub, other, *words)
    assert done.returncode == 2, done.stdout
    assert "The dataset `me/rows` holds rows of another source; rename the folder, or push" in done.stderr
    assert loopback_hub.files("me/rows", "dataset") == before

    # The same source with a session more, and other options.
    shutil.copy(sessions[1], one / "traces")
    run_filter(str(one / "traces"), one / "rows", FilterOptions(unit="session", max_samples=2, licence="mit"))
    assert "402" in launch(loopback_hub, one, *words).stderr
    assert loopback_hub.files("me/rows", "dataset")["report.json"] == (one / "rows" / "report.json").read_bytes()

    # A name that was typed is obeyed.
    done = run_python(loopback_hub, other, "-m", "pimono_sdpo", "push", "rows", "me/rows", imported=TRAINING)
    assert done.returncode == 0, done.stderr
    assert "402" in launch(loopback_hub, other, *words).stderr


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"run.json": b'{"dataset": {"id": "lab/rows"}}'}, "an adapter that was trained on `lab/rows`"),
        ({"run.json": b'{"dataset": {"id": "me/rows"}}'}, None),
        ({"config.json": b"{}"}, "files that no training has pushed"),
        ({}, None),
    ],
)
def test_an_adapter_of_other_rows_is_replaced_only_by_name(
    loopback_hub: LoopbackHub, rows: Path, tmp_path: Path, files: dict[str, bytes], sentence: str | None
) -> None:
    loopback_hub.store.credit = False
    (tmp_path / "p.whl").write_bytes(b"")
    loopback_hub.seed("me/rows-sdpo", "model", files)
    done = launch(loopback_hub, rows.parent, *ON, "--wheel", "p.whl")
    assert done.returncode == 2
    if sentence is None:
        assert "402" in done.stderr
        return
    assert f"`me/rows-sdpo` holds {sentence}; give --hub_model_id" in done.stderr
    assert ("dataset", "me/rows") not in loopback_hub.store.repos, "nothing has left"
    done = launch(loopback_hub, rows.parent, *ON, "--wheel", "p.whl", "--hub_model_id", "me/rows-sdpo")
    assert "402" in done.stderr


@pytest.mark.parametrize("token", ["hf_loopback", FINE_TOKEN])
def test_an_account_that_cannot_pay_or_may_not_run_jobs(
    loopback_hub: LoopbackHub, rows: Path, tmp_path: Path, token: str
) -> None:
    loopback_hub.store.credit = False
    (tmp_path / "p.whl").write_bytes(b"")
    loopback_hub.seed("lab/rows", "dataset", {}, private=True)
    done = launch(loopback_hub, rows.parent, *ON, "--wheel", "p.whl", token=token)
    assert done.returncode == 2, done.stdout + done.stderr
    reason = "402, Pre-paid credit balance is insufficient" if token == "hf_loopback" else "403"
    assert f"the Hub answers {reason}" in done.stderr.splitlines()[-1]
    assert not loopback_hub.store.jobs


@pytest.fixture
def submit(loopback_hub: LoopbackHub, rows: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Submits a job, which ends at once, since there is no package that it could install."""
    loopback_hub.store.image = {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(rows.parent / "cache")}
    (rows.parent / "p.whl").write_bytes(b"")
    yield lambda *words: launch(loopback_hub, rows.parent, *ON, "--wheel", "p.whl", "--detach", *words)
    assert all(job.ended.wait(60) for job in loopback_hub.store.jobs.values())


def submissions(hub: LoopbackHub) -> int:
    return sum(seen.method == "POST" and seen.path.startswith("/api/jobs/") for seen in hub.requests)


@pytest.mark.parametrize("after", [0, 40])
def test_a_job_whose_answer_is_lost_is_found(
    loopback_hub: LoopbackHub, submit: Callable[..., subprocess.CompletedProcess[str]], after: int
) -> None:
    loopback_hub.drop_next("/api/jobs/me", after=after, method="POST")
    done = submit()
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = loopback_hub.store.jobs.values()
    assert f"job me/{job.job_id} on cpu-basic, for at most 3h" in done.stdout
    assert done.stdout.endswith(
        f"`hf jobs logs -f me/{job.job_id}` follows it, `hf jobs cancel me/{job.job_id}` ends it\n"
    )
    assert submissions(loopback_hub) == 1


def test_a_job_that_did_not_start_is_not_submitted_again(
    loopback_hub: LoopbackHub, submit: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    loopback_hub.fail_next("/api/jobs/me", 502, method="POST")
    done = submit()
    assert done.returncode == 2
    assert "The job was not submitted (the Hub answers 502" in done.stderr.splitlines()[-1]
    assert not loopback_hub.store.jobs
    assert submissions(loopback_hub) == 1


def test_a_job_that_cannot_be_looked_for_may_have_started(
    loopback_hub: LoopbackHub, rows: Path, submit: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    loopback_hub.drop_next("/api/jobs/me", method="POST")
    loopback_hub.fail_next("/api/jobs/me", 403, method="GET")
    done = submit()
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert "It is not known whether the job was submitted (the Hub answers 403" in line
    (job,) = loopback_hub.store.jobs.values()
    assert submissions(loopback_hub) == 1
    look = line.partition("`hf ")[2].partition("`")[0]
    assert job.job_id in run_hf(loopback_hub, rows.parent, *look.split(), "--quiet").stdout


def test_an_organization_runs_the_job_and_the_rows_stay_with_the_user(
    loopback_hub: LoopbackHub, submit: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = submit("--namespace", "lab", "--max_steps", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = loopback_hub.store.jobs.values()
    assert job.namespace == "lab"
    assert [*loopback_hub.store.buckets] == ["lab/jobs-artifacts"]
    assert [*loopback_hub.store.repos] == [("dataset", "me/rows")]
    words = job.spec["command"]
    assert words[words.index("--hub_model_id") + 1] == "me/rows-sdpo"
    typed = "pimono-sdpo train me/rows --method sdpo --use_cpu true --max_steps 3 --on hf:cpu-basic --namespace lab"
    assert job.spec["environment"]["PIMONO_SDPO_COMMAND"] == f"{typed} --time-limit 3h"


MEMORY = """
import json
from pimono_sdpo.training.memory import hardware_of
print(json.dumps([hardware_of(flavor).gib for flavor in {flavors}]))
"""


def test_a_flavor_has_the_memory_that_its_driver_reports(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    asking = MEMORY.format(flavors=["cpu-basic", "a10g-large", "a10g-largex2", "l40sx1", "h200"])
    none, *found = run_client(loopback_hub, tmp_path, asking, xet=True, imported=TRAINING)
    assert none is None
    # The nominal sizes are 24, 24, 48 and 141 GB; of the last, no other is known.
    assert found == [21.99, 21.99, 44.4, 141e9 / 2**30]


LEFT = """
import importlib, json, os
from pimono_sdpo.training import callbacks
importlib.reload(callbacks)
left = []
for os.environ["JOB_ID"] in {jobs}:
    left.append(callbacks.time_limit_of("3h").end - callbacks.IMPORTED)
print(json.dumps(left))
"""


def test_the_time_counts_from_the_jobs_start_by_the_hub(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    started = datetime.now(UTC) - timedelta(hours=1)
    spec = {"command": ["x"], "flavor": "cpu-basic"}
    job = Job("0" * 24, "me", spec, "RUNNING", started=started.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
    job.ended.set()
    loopback_hub.store.jobs[job.job_id] = job
    asking = LEFT.format(jobs=[job.job_id, "1" * 24])
    known, unknown = run_client(loopback_hub, tmp_path, asking, xet=True, imported=TRAINING)
    assert 0 < known <= 2 * 3600
    assert unknown == 3 * 3600
