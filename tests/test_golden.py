"""Test that the rows and rejects of each command are those of data/golden.json.

A change of rows is made on purpose: `python -m tests.test_golden` writes the file anew. It has the sha256 of the
schema and of all rows in order: of each split or bucket, and of the rejects. How the rows are divided into files
does not matter.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from pimono_sdpo.cli import app
from pimono_sdpo.samples import SAMPLE_SESSIONS
from tests.agent.suite_of_three import knows_some, write_suite
from tests.chat_server import ChatServer, serve_chat
from tests.duel.players import play
from tests.duel.trajectories import write_pull_requests, write_trajectories
from tests.exports import write_samples
from tests.rollout_data import FIXED, OTHER, final, prose, read, rollout, write, write_folder
from tests.test_import import nebius_row, write_atif, write_mini, write_nebius, write_swe_agent

GOLDEN = Path(__file__).parent / "data" / "golden.json"
TRACES = Path(__file__).parents[2] / "shared" / "traces"
HARNESSES = ("pi", "claude_code", "codex", "droid", "odd")
Hashes = dict[str, str]
Golden = dict[str, Hashes]


def run(*arguments: object) -> None:
    """Run a command in this process."""
    done = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def hashes(out: Path) -> Hashes:
    """Hash the rows below data/, by the first word of a file's name, and those below rejects/."""
    files: dict[str, list[Path]] = {}
    for path in sorted([*out.glob("data/*.parquet"), *out.glob("rejects/*.parquet")]):
        name = path.name.partition("-")[0] if path.parent.name == "data" else "rejects"
        files.setdefault(name, []).append(path)
    return {name: _hash_rows(some) for name, some in files.items() if any(pq.read_metadata(f).num_rows for f in some)}


def _hash_rows(files: list[Path]) -> str:
    whole = hashlib.sha256(str(pq.read_schema(files[0]).remove_metadata()).encode())
    for file in files:
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(64):
                for row in batch.to_pylist():
                    whole.update(json.dumps(row, sort_keys=True).encode())
    return whole.hexdigest()


def of_sessions(work: Path) -> Golden:
    """`filter` and `steps` over the samples in all their layouts."""
    write_samples(work / "samples")
    golden: Golden = {}
    for name, command, *options in (
        ("filter", "filter"),
        ("filter-raw", "filter", "--max-samples", "5", "--no-dedupe"),
        ("filter-episodes", "filter", "--unit", "episode", "--history-chars", "2000",
         "--test-fraction", "0.4", "--min-score", "1"),
        ("steps", "steps", "--test-fraction", "0.4"),
        ("steps-trajectories", "steps", "--granularity", "trajectory", "--no-require-success"),
        ("recoveries", "filter", "--unit", "recovery"),
    ):  # fmt: skip
        source = SAMPLE_SESSIONS if name == "filter-raw" else work / "samples"
        run(command, source, "--out", work / name, *options)
        golden[name] = hashes(work / name)
    return golden


def of_rollouts(work: Path) -> Golden:
    """`steps` and `pairs` over rollouts made by hand."""
    passes = [read(), write(FIXED, True), final("the sign was wrong")]
    fails = [read(), prose(), write(OTHER, False), final("done")]
    rows = [
        rollout(f"t{task}", seed, actions)
        for task in range(5)
        for seed, actions in enumerate((passes, fails, [read("b.py"), *passes]))
    ]
    rows += [rollout("native", seed, [passes, fails][seed], protocol="native") for seed in (0, 1)]
    source = write_folder(work / "rollouts", rows)
    golden: Golden = {}
    for name, command, *options in (
        ("steps-of-rollouts", "steps"),
        ("steps-with-failures", "steps", "--no-require-success", "--no-require-valid-tool-ok",
         "--with-final", "--context-turns", "2", "--tool-chars", "40"),
        ("pairs-of-steps", "pairs"),
        ("pairs-of-patches", "pairs", "--target", "patch"),
        ("pairs-of-runs", "pairs", "--target", "truncated", "--last-k", "2"),
    ):  # fmt: skip
        run(command, source, "--out", work / name, *options)
        golden[name] = hashes(work / name)
    return golden


def of_imports(work: Path) -> Golden:
    """`import` of runs in several formats, with one that cannot be read."""
    source = work / "runs"
    runs = [
        nebius_row(number, number % 2, "Process exited with code 1" if number % 3 else "ok") for number in range(9)
    ]
    runs[4]["trajectory"][1] = {"role": "narrator", "content": "x"}
    write_nebius(source / "nebius", runs)
    for write_run, name in ((write_mini, "mini"), (write_swe_agent, "swe"), (write_atif, "jobs")):
        write_run(source / name)
    run("import", source, "--out", work / "imported", "--sessions")
    return {"import": hashes(work / "imported")}


def of_models(work: Path) -> Golden:
    """`rollout` and `duel` with the scripted server."""
    with serve_chat() as server, _settings(server, work):
        server.policy = knows_some
        suite, asked = write_suite(work), ("--provider", server.url, "--model", "m")
        run("rollout", suite, "--out", work / "rollouts", "--rollouts", "2", *asked)
        server.policy = play
        write_trajectories(work / "trajectories")
        write_pull_requests(work / "prs.parquet")
        command = ("duel", work / "trajectories", "--records", work / "prs.parquet")
        run(*command, "--out", work / "duel", "--aa-test", "4")
        golden = {"rollout": hashes(work / "rollouts"), "duel": hashes(work / "duel" / "result")}
        for kind in ("sft", "dpo", "sdpo"):
            run("duel", "--out", work / "duel", "--to", kind, "--rows", work / kind)
            golden[f"duel-{kind}"] = hashes(work / kind)
    for stage in ("answers", "gate", "judgments"):
        golden[f"duel-{stage}"] = {"rows": _hash_rows(sorted((work / "duel" / stage).glob("*.parquet")))}
    return golden


@contextmanager
def _settings(server: ChatServer, work: Path) -> Iterator[None]:
    """Run in a folder whose chain.toml names the server, without the developer's API keys."""
    asking = f'provider = "{server.url}"\nconcurrency = 4\n'
    (work / "chain.toml").write_text(
        f'[duel]\n{asking}model = "k"\nturns = 12\nseed = 1\n'
        f'[judge]\n{asking}models = ["judge-1", "judge-2"]\n[gate]\nmin_clusters = 3\n'
    )
    before, keys = Path.cwd(), {name: os.environ.pop(name, None) for name in ("LLM_API_KEY",)}
    os.chdir(work)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.update({name: key for name, key in keys.items() if key is not None})


def of_real_traces(work: Path) -> Golden:
    """`filter` and `steps` over sessions of real users."""
    golden: Golden = {}
    for harness in HARNESSES:
        for name in ("filter", "steps"):
            out = work / f"{name}-{harness}"
            arguments = (name, TRACES / harness, "--out", out)
            # The odd sessions hold types of entries that no reader knows, which --strict refuses.
            done = CliRunner().invoke(app, [str(one) for one in arguments], env={"PIMONO_STRICT": ""})
            # Some folders give no rows.
            if done.exit_code == 0 or (out / "rejects").exists():
                golden[out.name] = hashes(out)
    return golden


PARTS: dict[str, Callable[[Path], Golden]] = {
    "sessions": of_sessions,
    "rollouts": of_rollouts,
    "imports": of_imports,
    "models": of_models,
    "real": of_real_traces,
}


@pytest.mark.parametrize("part", PARTS)
def test_rows_and_rejects_are_those_of_the_golden_file(part: str, tmp_path: Path) -> None:
    if part == "real" and not TRACES.is_dir():
        pytest.skip(f"{TRACES} is not there")
    golden: dict[str, Golden] = json.loads(GOLDEN.read_text())
    made, expected = PARTS[part](tmp_path), golden[part]
    assert made == expected


def write_golden() -> None:
    """Write data/golden.json; entries that cannot be made here are unchanged."""
    golden: dict[str, Golden] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    for name, make in PARTS.items():
        if name != "real" or TRACES.is_dir():
            with TemporaryDirectory() as folder:
                golden[name] = make(Path(folder))
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    write_golden()
