"""Test reading the sessions of agents on this machine, and selecting session files."""

import gzip
import inspect
import json
import os
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from pimono_sdpo import session_options
from pimono_sdpo.cli import app
from pimono_sdpo.filter_options import NO_REQUEST, REASONS
from pimono_sdpo.samples import SAMPLE_SESSIONS
from pimono_sdpo.source_options import find_project
from pimono_sdpo.traces.harness import OWN, claude_code, pi
from pimono_sdpo.traces.sources import open_source, read_sessions
from tests.test_view import view_of

SAMPLES = sorted(SAMPLE_SESSIONS.glob("*.jsonl"))
VARIABLES = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "PI_CODING_AGENT_DIR")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with sessions of all three agents, and a working directory beside it."""
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    folders = (".claude/projects/-work-shop", ".codex/sessions/2026/05", ".pi/agent/sessions/--work-shop--")
    for number, file in enumerate(SAMPLES):
        folder = home / folders[number % len(folders)]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    return home


def run_filter(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["filter", *arguments, "--out", "rows"])
    assert done.exit_code == 0, done.output
    return done.output


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["filter", *arguments, "--out", "rows"])
    assert done.exit_code != 0
    return str(done.exception) + done.output


def sources() -> set[str]:
    files = [*Path("rows").glob("data/*.parquet"), *Path("rows").glob("rejects/*.parquet")]
    return set(pa.concat_tables([pq.read_table(f, columns=["source"]) for f in files])[0].to_pylist())


def below(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*.jsonl")}


def test_the_sessions_of_an_agent_are_found(home: Path) -> None:
    root = home / ".claude/projects"
    names = below(root)
    output = run_filter("claude")
    assert f"Claude Code: {len(names)} sessions of " in output
    assert f"kB, in {root}" in output
    assert sources() == names
    by_word = {path.name: path.read_bytes() for path in Path("rows/data").iterdir()}
    run_filter("~/.claude/projects")
    assert {path.name: path.read_bytes() for path in Path("rows/data").iterdir()} == by_word


def test_all_agents_are_read_where_their_variables_say(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".pi/agent").rename(home / "elsewhere")
    monkeypatch.setenv("PI_CODING_AGENT_DIR", str(home / "elsewhere"))
    (archived,) = [sorted((home / ".codex/sessions").rglob("*.jsonl"))[0]]
    (home / ".codex/archived_sessions").mkdir()
    archived.rename(home / ".codex/archived_sessions" / archived.name)
    output = run_filter("all")
    assert [line.split(":")[0] for line in output.splitlines()[:3]] == ["Claude Code", "Codex", "Pi"]
    expected = below(home / ".claude/projects") | below(home / ".codex")
    assert sources() == expected | below(home / "elsewhere/sessions")
    assert f"archived_sessions/{archived.name}" in expected


def test_every_home_that_an_agent_honours_is_read(tmp_path: Path) -> None:
    cowork = tmp_path / "Library/Application Support/Claude/local-agent-mode-sessions/a/b/local_c/.claude"
    cowork.mkdir(parents=True)
    default = [tmp_path / ".claude/projects", tmp_path / ".config/claude/projects"]
    assert claude_code.HARNESS.homes({}, tmp_path) == [*default, cowork / "projects"]
    assert claude_code.HARNESS.homes({"CLAUDE_CONFIG_DIR": "/x"}, tmp_path)[0] == Path("/x/projects")
    agent = tmp_path / ".pi/agent"
    agent.mkdir(parents=True)
    (agent / "settings.json").write_text('{"sessionDir": "~/pi-sessions"}')
    assert pi.HARNESS.homes({}, tmp_path) == [Path("~/pi-sessions").expanduser(), agent / "sessions"]
    assert pi.HARNESS.homes({"PI_CODING_AGENT_SESSION_DIR": "/y"}, tmp_path)[0] == Path("/y")
    (agent / "settings.json").write_text("not JSON")
    assert pi.HARNESS.homes({}, tmp_path) == [agent / "sessions"]


def test_places_that_overlap_are_read_once(home: Path) -> None:
    names = below(home / ".pi/agent/sessions")
    (home / ".pi/agent/settings.json").write_text(json.dumps({"sessionDir": str(home / ".pi/agent/sessions")}))
    assert f"Pi: {len(names)} sessions of " in run_filter("pi")
    (home / ".config/claude").mkdir(parents=True)
    shutil.copytree(home / ".claude/projects", home / ".config/claude/projects/moved")
    both = below(home / ".claude/projects") | below(home / ".config/claude/projects")
    assert f"Claude Code: {len(both)} sessions of " in run_filter("claude")
    assert sources() == both


def test_missing_sessions_are_explained(home: Path) -> None:
    (home / ".codex").rename(home / "gone")
    assert f"There are no sessions in `{home}/.codex/sessions` or" in refused("codex")
    assert "or try the samples that `pimono-sdpo demo sessions --out traces` writes" in refused("codex")


def test_view_reads_the_sessions_that_the_filter_read(home: Path) -> None:
    run_filter("claude", "--project", "a")

    def view(*arguments: str) -> str:
        command = ["view", "rows", "--no-open", "--out", "page.html", *arguments]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        return done.output

    def events() -> bool:
        listed = view_of(Path("page.html").read_text())["rows"]
        return any(block["events"] for row in listed for block in row["blocks"])

    assert "not found" not in view()
    assert events()
    (home / ".claude").rename(home / "moved")
    assert view().count("The traces were not found: use --source") == 1
    assert not events()
    (home / "moved").rename(home / ".claude")
    for word in ("claude", "all"):
        view("--source", word)
        assert events()


def test_a_mistyped_word_lists_the_valid_words(home: Path) -> None:
    assert "did you mean `claude`? The words" in refused("clade")
    assert f"the words for your own sessions are {', '.join([*OWN, 'all'])};" in refused("xyz")


def test_several_sources_are_read_as_one(home: Path) -> None:
    (home / ".pi/agent/sessions").rename("moved")
    names = below(home / ".claude/projects") | below(Path("moved"))
    output = run_filter("claude", "moved")
    assert "Claude Code: " in output
    assert sources() == names
    report = json.loads(Path("rows/report.json").read_text())
    assert report["input"]["source"] == "claude, moved"
    assert report["sessions"] == len(names)
    # The files of a glob that the shell has expanded, one of them twice.
    files = [str(file) for file in sorted(Path("moved").rglob("*.jsonl"))]
    run_filter(*files, files[0])
    report = json.loads(Path("rows/report.json").read_text())
    assert (report["sessions"], len(report["input"]["shards"])) == (len(files), 1)
    run_filter("claude", "moved", "--exclude", "--work-shop--/*")
    assert sources() == below(home / ".claude/projects")


@pytest.mark.parametrize("command", [["steps"], ["filter", "--unit", "recovery"]])
def test_steps_and_recoveries_read_own_sessions(home: Path, command: list[str]) -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*command, *arguments, "--out", "out"])

    done = run("claude", "codex")
    assert done.exit_code == 0, str(done.exception)
    assert [line.split(":")[0] for line in done.output.splitlines()[:2]] == ["Claude Code", "Codex"]
    report = json.loads(Path("out", "report.json").read_text())
    assert report["source"] == "claude, codex"
    assert "did you mean `claude`" in str(run("clade").exception)
    assert "is left by --project" in str(run("claude", "--project", "nowhere").exception)


def test_a_word_is_never_a_folder_here(home: Path) -> None:
    """An output folder of that name would be read in place of the sessions."""
    Path("claude").mkdir()
    assert run_filter("claude").startswith("Claude Code: ")
    assert sources() == below(home / ".claude/projects")


def write_session(file: Path, cwd: str, days_ago: int = 0) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = SAMPLES[sum(file.name.encode()) % 8].read_text()
    file.write_text(re.sub('"cwd":"[^"]*"', lambda _: f'"cwd":{json.dumps(cwd)}', text, count=1))
    changed = file.stat().st_mtime - days_ago * 86400
    os.utime(file, (changed, changed))


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (["--project", "/work/shop"], {"p1/a.jsonl", "p1/b.jsonl"}),
        (["--project", "/Work/SHOP"], {"p1/a.jsonl", "p1/b.jsonl"}),
        (["--project", "p2"], {"p2/c.jsonl", "p2/agent-d.jsonl"}),
        (["--since", "7d"], {"p1/a.jsonl", "p2/c.jsonl", "p2/agent-d.jsonl"}),
        (["--since", "2000-01-01", "--exclude", "*/agent-*"], {"p1/a.jsonl", "p1/b.jsonl", "p2/c.jsonl"}),
        (["--exclude", "p1/*", "--exclude", "*-d.jsonl"], {"p2/c.jsonl"}),
    ],
)
def test_session_files_are_chosen(home: Path, options: list[str], kept: set[str]) -> None:
    write_session(Path("traces/p1/a.jsonl"), "/work/shop")
    write_session(Path("traces/p1/b.jsonl"), "/work/shop", days_ago=8)
    write_session(Path("traces/p2/c.jsonl"), "/work/blog")
    write_session(Path("traces/p2/agent-d.jsonl"), "/work/blog")
    run_filter("traces", "--min-worth", "0", *options)
    assert sources() == kept


def test_options_that_select_nothing_are_explained(home: Path) -> None:
    write_session(Path("traces/a.jsonl"), "/work/shop")
    assert "No session of `traces` (1 in all) is left by --project;" in refused("traces", "--project", "blog")
    assert "is left by --project and --exclude" in refused("traces", "--project", "blog", "--exclude", "a")
    assert "--since `yesterday` is not a date" in refused("traces", "--since", "yesterday")
    assert "--since `2999-01-01` is in the future" in refused("traces", "--since", "2999-01-01")
    pq.write_table(pa.table({"trace": ["{}"], "file_path": ["a"]}), "traces/b.parquet")
    assert "select sessions" in refused("traces", "--since", "7d")


def test_compressed_sessions_are_read(home: Path) -> None:
    write_session(Path("traces/a.jsonl"), '/work/"shop"')
    plain = Path("traces/a.jsonl").read_bytes()
    Path("traces/b.jsonl.gz").write_bytes(gzip.compress(plain))
    with pa.CompressedOutputStream("traces/c.jsonl.zst", "zstd") as stream:
        stream.write(plain)
    (shard,) = open_source("traces").shards
    tables = pa.concat_tables(read_sessions(shard))
    assert tables["source"].to_pylist() == ["a.jsonl", "b.jsonl.gz", "c.jsonl.zst"]
    assert len(set(tables["trace"].to_pylist())) == 1
    assert {find_project(file) for file in Path("traces").iterdir()} == {'/work/"shop"'}


def test_files_that_cannot_be_read_are_left_out_and_named(home: Path) -> None:
    write_session(Path("traces/a.jsonl"), "/work/shop")
    plain = Path("traces/a.jsonl").read_bytes()
    whole = gzip.compress(plain)
    Path("traces/b.jsonl.gz").write_bytes(whole[:-20])
    Path("traces/c.jsonl.zst").write_bytes(b"not zstd")
    output = run_filter("traces", "--min-worth", "0")
    assert "skipped, since they cannot be read: b.jsonl.gz (" in output
    report = json.loads(Path("rows/report.json").read_text())
    assert [one.split(" (")[0] for one in report["unreadable"]] == ["b.jsonl.gz", "c.jsonl.zst"]
    assert report["bytes"]["unreadable"] == len(whole) - 20 + len(b"not zstd")
    assert report["bytes"]["parsed"] + report["bytes"]["repaired"] >= len(plain) - 2
    assert "2 files of" in Path("rows/README.md").read_text()
    # The next run reads files that have become readable.
    Path("traces/b.jsonl.gz").write_bytes(whole)
    run_filter("traces", "--min-worth", "0", "--exclude", "c.*")
    assert sources() == {"a.jsonl", "b.jsonl.gz"}
    report = json.loads(Path("rows/report.json").read_text())
    assert report["sessions"] == 2
    assert "unreadable" not in report
    assert report["drop_reasons"]["duplicate_session"] >= 1
    Path("traces/a.jsonl").unlink()
    Path("traces/b.jsonl.gz").unlink()
    assert (
        "`traces` gives no rows (nothing to make them from; skipped, since they cannot be read: c.jsonl.zst ("
        in refused("traces")
    )


def test_a_share_is_between_0_and_1(home: Path) -> None:
    assert "--min-worth 0.45 is a probability of an earlier version" in refused("pi", "--min-worth", "0.45")
    assert "--test-fraction is nan; use a finite number" in refused("pi", "--test-fraction", "nan")


def test_a_failed_run_leaves_no_work_folder(home: Path) -> None:
    write_session(Path("traces/a.jsonl"), "/work/shop")
    refused("traces", "--min-score", "100")
    assert not Path(".rows.partial").exists()


def test_filter_says_in_words_what_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    filtering = ("filter", str(SAMPLE_SESSIONS), "--out", "rows")

    def run(*words: str, **environment: str) -> Result:
        return CliRunner().invoke(app, [*filtering, *words], env=environment)

    assert "24 sessions (" in (told := run("--dry-run")).output
    assert "nothing would be pushed" in told.output
    assert not Path("rows").exists()
    lines = run().output.splitlines()
    shown = Path(__file__).parents[1].joinpath("README.md").read_text().split("```text\n")[1].partition("```")[0]
    assert [line[:60] for line in shown.splitlines()] == [line[:60] for line in lines]
    counts = dict(line.split("  ", 1)[::-1] for line in (line.strip() for line in lines[:7]))
    assert lines[-1] == "next: pimono-sdpo view rows"
    assert int(counts["sessions read"]) == 24
    assert f"no row: {REASONS['no_evidence']} (no_evidence)" in counts
    report = json.loads(run("--json").output)
    used = sum(count for reason, count in report["drop_reasons"].items() if reason not in NO_REQUEST)
    assert int(counts["requests"]) == report["kept"] + used
    assert int(counts["rows"]) == report["kept"]
    assert run("--quiet").output == ""
    assert report["drop_reasons"].keys() <= REASONS.keys()
    help = " ".join(CliRunner().invoke(app, ["filter", "--help"]).output.split())
    assert all(f"{reason}: {sentence}." in help for reason, sentence in REASONS.items())


def test_options_come_from_the_command_line_then_the_environment_then_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("out: rows\nmax-samples: 3\nseed: 7\nmin_worth: 1\n")

    def run(*words: str) -> Result:
        monkeypatch.setenv("PIMONO_FILTER_SEED", "8")
        return CliRunner().invoke(app, ["filter", str(SAMPLE_SESSIONS), "-c", "own.yaml", *words])

    options = json.loads(run("--json", "--min-worth", "2").output)["options"]
    assert (options["max_samples"], options["seed"], options["min_worth"]) == (3, 8, 2.0)
    for text, words in (
        ("judge: m\njudge_provider: https://evil.example/v1", "`judge_provider`, which decides who gets texts"),
        ("mim_worth: 1", "`mim_worth`, which is not an option"),
        ("", "no options"),
        ("a: [", "as YAML"),
    ):
        Path("own.yaml").write_text(text)
        assert words in str(run().exception)


@pytest.mark.parametrize("page", ["filter.md", "my-sessions.md"])
def test_the_documentation_has_the_word_of_every_agent(page: str) -> None:
    text = (Path(__file__).parents[1] / "docs" / "tutorials" / page).read_text(encoding="utf-8")
    assert [word for word in [*OWN, "all"] if f"`{word}`" not in text] == []


def test_the_help_has_the_word_of_every_agent() -> None:
    text = inspect.getsource(session_options)
    assert [word for word in [*OWN, "all"] if f"`{word}`" not in text] == []
