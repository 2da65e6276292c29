"""A run in Trackio's own database and on a Hub: what is logged, and what a missing Space costs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loopback_hub.call import OTHER_TOKEN
from tests.loopback_hub.client import run_client
from tests.loopback_hub.server import LoopbackHub
from tests.training.setup import PYTHONPATH

pytestmark = pytest.mark.slow

LOG = """
RUN = "r1"
import contextlib, io, json
from pathlib import Path
from types import SimpleNamespace
import trackio
from transformers import TrainerControl, TrainerState
from pimono_sdpo.training.callbacks import SafeTrackio, list_arguments, note_rollouts
from tests.training.setup import arguments

args, model_args = arguments(
    Path("out"), Path("tiny"), report_to="trackio", project="mine", run_name=RUN, trackio_space_id="me/trackio")
state = TrainerState(is_world_process_zero=True, global_step=0)
control = TrainerControl()
callback = SafeTrackio(list_arguments(args, model_args))
def rollout(reward, feedback):
    return {"prompt": [{"role": "user", "content": "mend it"}], "completion": "like so",
            "reward": reward, "feedback": feedback}
def log(step, rollouts):
    at = SimpleNamespace(global_step=step - 1, max_steps=3, log_history=[])
    main = SimpleNamespace(is_main_process=True)
    note_rollouts(SimpleNamespace(state=at, accelerator=main, args=args), rollouts)
log(1, [rollout(0.0, None)])
said = io.StringIO()
with contextlib.redirect_stderr(said):
    callback.on_train_begin(args, state, control, model=None)
told = [line for line in said.getvalue().splitlines() if line.startswith("warning: ")]
for state.global_step in (1, 2, 3):
    log(state.global_step, [rollout(0.5, "it failed"), *[rollout(float("nan"), None)] * 11])
    callback.on_log(args, state, control, logs={"loss": 0.5 / state.global_step, "train_runtime": 1.0})
callback.on_train_end(args, state, control)
from trackio.sqlite_storage import SQLiteStorage
logs = SQLiteStorage.get_logs("mine", RUN)
print(json.dumps({
    "told": told, "space": args.trackio_space_id,
    "losses": [[entry["step"], entry["train/loss"]] for entry in logs if "train/loss" in entry],
    "config": [run.config for run in trackio.Api().runs("mine")],
}))
"""
LOSSES = [[1, 0.5], [2, 0.25], [3, 0.5 / 3]]
READ = """
import json, tempfile
from pathlib import Path
import pandas
from huggingface_hub import download_bucket_files, list_bucket_tree
names = [entry.path for entry in list_bucket_tree("me/metrics-bucket", recursive=True)]
folder = Path(tempfile.mkdtemp())
wanted = [name for name in names if name.endswith(".parquet")]
download_bucket_files("me/metrics-bucket", files=[(name, str(folder / Path(name).name)) for name in wanted])
traces = pandas.read_parquet(folder / "traces.parquet")
metrics = pandas.read_parquet(folder / "metrics.parquet")
print(json.dumps({"metrics": len(metrics), "traces": len(traces),
                  "first": str(traces.iloc[0].to_dict())}))
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    return tmp_path


def test_without_a_space_nothing_is_lost_and_it_can_follow_later(home: Path, loopback_hub: LoopbackHub) -> None:
    # The Hub refuses whatever has to do with the Space, in a way that nobody tries again.
    loopback_hub.fail_next("trackio", 400, times=1000)
    found = run_client(loopback_hub, home, LOG)
    (told,) = found["told"]
    assert "the Space `me/trackio` cannot be used" in told
    command = "trackio sync --project mine --space-id me/trackio --private"
    assert told.endswith(f"later: {command}")
    assert found["space"] is None
    assert found["losses"] == LOSSES
    assert str(home) not in str(found["config"]), "no path of this machine"
    assert found["config"][0]["learning_rate"] == 1e-3

    loopback_hub.faults.clear()
    synced = subprocess.run(
        # The double runs no Gradio: a static Space, which is public by nature.
        [
            str(Path(sys.executable).parent / "trackio"),
            *"sync --project mine --sdk static".split(),
            "--space-id",
            "me/metrics",
            "--force",
        ],
        cwd=home,
        env=loopback_hub.env(home) | {"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert synced.returncode == 0, synced.stderr[-2000:]
    there = run_client(loopback_hub, home, READ)
    assert "sdk: static" in loopback_hub.files("me/metrics", "space")["README.md"].decode()
    assert there["metrics"] > 0
    # Eight of the twelve rollouts of each step.
    assert there["traces"] == 24, there
    assert "it failed" in there["first"]
    assert "mend it" in there["first"]


IN_SPACE = """
import json, time
from huggingface_hub import get_token
from trackio.remote_client import RemoteClient
def ask():
    client = RemoteClient("me/trackio", hf_token=get_token())
    logs = client.predict("mine", RUN, api_name="get_logs")
    return [[one["step"], one["train/loss"]] for one in logs if "train/loss" in one]
for _ in range(60):
    try:
        losses = ask()
        if losses: break
    except Exception as error:
        losses = str(error)
    time.sleep(1)
print(json.dumps(losses))
"""


def test_a_space_gets_the_run_new_awake_or_asleep(home: Path, hub_with_apps: LoopbackHub) -> None:
    for run in ("r1", "r2", "r3"):
        found = run_client(hub_with_apps, home / run, LOG.replace("r1", run))
        assert (found["told"], found["space"]) == ([], "me/trackio")
        space = hub_with_apps.store.spaces["me/trackio"]
        assert run_client(hub_with_apps, home / run, f"RUN = {run!r}" + IN_SPACE) == LOSSES
        assert space.stage == "RUNNING"
        if run == "r2":
            space.stop("SLEEPING")
    assert hub_with_apps.repo("me/trackio", "space").private


def test_a_paused_space_loses_nothing(home: Path, hub_with_apps: LoopbackHub) -> None:
    run_client(hub_with_apps, home, LOG)
    hub_with_apps.store.spaces["me/trackio"].stop("PAUSED")
    found = run_client(hub_with_apps, home, LOG.replace("r1", "r2"))
    assert (found["told"], found["losses"]) == ([], LOSSES)
    kept = hub_with_apps.store.buckets["me/trackio-bucket"].files
    assert any(b"0.25" in file.data and b"r2" in file.data for file in kept.values())
    # A stranger may neither see nor write it.
    stranger = run_client(hub_with_apps, home / "stranger", LOG, token=OTHER_TOKEN)
    assert stranger["losses"] == LOSSES
