"""Test the filter on a real Ray cluster of several nodes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pimono_sdpo.errors import ShardError
from pimono_sdpo.filtering import run_filter
from pimono_sdpo.runs.engine import make_part
from pimono_sdpo.runs.sessions import session_parts
from pimono_sdpo.stage import Stage
from pimono_sdpo.traces.sources import open_source
from processors import pipeline
from tests import shards
from tests.shards import all_bytes, begun, cli_process, command, made, sentence, until

pytest.importorskip("ray", reason="the extra `ray` is not installed")

import ray
from ray.cluster_utils import Cluster

from pimono_sdpo.runs.ray import check_part

pytestmark = pytest.mark.slow


ROOT = str(Path(__file__).parent.parent)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head node without CPUs, and two nodes with one CPU each."""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", PYTHONPATH=ROOT)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made
    made.shutdown()  # type: ignore[no-untyped-call]
    del os.environ["PYTHONPATH"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards.write_busy_shards(tmp_path_factory.mktemp("long") / "traces", 8, 120)


@pytest.fixture(scope="module")
def rows(source: Path) -> Path:
    out = source.parent / "rows"
    run_filter(str(source), out, workers=2)
    return out


def test_a_cluster_writes_the_bytes_of_one_machine_and_goes_past_a_bad_shard(
    cluster: Cluster, source: Path, tmp_path: Path
) -> None:
    traces = shards.write_shards(tmp_path / "traces", 4)
    good = (traces / "0001.parquet").read_bytes()
    run_filter(str(traces), tmp_path / "local")
    (traces / "0001.parquet").write_bytes(good[:8] + b"\xff" * 900 + good[908:])
    arguments = ("filter", "traces", "--out", "rows", "--engine", "ray")
    # A path relative to a folder that is not the working folder of any node.
    paths = {"RAY_ADDRESS": cluster.address, "PYTHONPATH": ROOT}
    message = sentence(cli_process(*arguments, folder=tmp_path, **paths))
    assert "1 of 4 shards failed (`0001.parquet` cannot be read" in message
    before = made(tmp_path / ".rows.partial")
    assert len(before) == 3
    (traces / "0001.parquet").write_bytes(good)
    assert cli_process(*arguments, folder=tmp_path, **paths).returncode == 0
    assert all_bytes(tmp_path / "rows") == all_bytes(tmp_path / "local")


def test_errors_of_the_engine_are_explained(source: Path, tmp_path: Path) -> None:
    arguments = ("filter", source, "--out", tmp_path / "rows", "--engine", "ray")
    message = sentence(cli_process(*arguments, RAY_ADDRESS="127.0.0.1:9"))
    assert "No Ray cluster answers at `127.0.0.1:9`; start it with" in message
    assert "leave it out" in sentence(cli_process(*arguments, "--workers", "2"))


def test_a_node_that_is_not_set_up_is_reported(cluster: Cluster, source: Path, tmp_path: Path) -> None:
    def forget_package() -> None:
        for name in [*sys.modules]:
            if name.startswith("pimono_sdpo"):
                del sys.modules[name]
        sys.modules["pimono_sdpo"] = None  # type: ignore[assignment]

    environment = {"worker_process_setup_hook": forget_package}
    ray.init(address=cluster.address, runtime_env=environment, log_to_driver=False)
    try:
        with pytest.raises(ShardError, match="every node needs this version of the package"):
            run_filter(str(source), tmp_path / "rows", engine="ray")
    finally:
        ray.shutdown()


def test_a_part_of_a_node_without_the_folder_or_of_another_version_is_reported(source: Path, tmp_path: Path) -> None:
    (part, *_) = session_parts(open_source(str(source)).shards, (), {})
    assert "made on a node that does not see" in str(check_part(part, tmp_path))
    stages = tuple[Stage, ...](pipeline())
    (other, *_) = session_parts(open_source(str(source)).shards, stages, {})
    make_part(other, tmp_path)
    assert check_part(other, tmp_path) is None
    assert "another version of this package" in str(check_part(part, tmp_path))


def test_a_node_killed_in_the_middle_loses_nothing(cluster: Cluster, source: Path, rows: Path, tmp_path: Path) -> None:
    work, seen = tmp_path / ".rows.partial", set[str]()

    def look() -> bool:
        seen.update(path.name for path in begun(work))
        return process.poll() is not None

    process = subprocess.Popen(
        command("filter", source, "--out", tmp_path / "rows", "--engine", "ray"),
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        stderr=subprocess.PIPE,
        text=True,
    )
    # Both nodes are in the middle of a shard.
    until(lambda: look() or (made(work) and len(begun(work)) == 2))
    assert process.poll() is None
    _power_off(cluster)
    until(look)
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert all_bytes(tmp_path / "rows") == all_bytes(rows)
    assert len(seen) > 8, "no shard was read again"
    assert not work.exists()


def _power_off(cluster: Cluster) -> None:
    """Kill a node with all its processes; if only the node died, its workers would finish their task."""
    node = next(iter(cluster.worker_nodes))
    (raylet,) = (info.process.pid for info in node.all_processes["raylet"])
    workers = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    for pid in (raylet, *map(int, workers)):
        os.kill(pid, signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)
