"""A run's folder: what may be replaced, what a kill leaves, what a resumed run must share."""

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file as save_weights

from pimono_sdpo.errors import OutputError
from pimono_sdpo.push import Repo
from pimono_sdpo.training import output
from pimono_sdpo.training.run import check_same_start, started_with
from pimono_sdpo.training.tiny_model import write_tiny_model
from tests.exports import write_samples
from tests.training.setup import arguments, hand_made, script, sdpo

MARK = {"pimono_sdpo": "0.1.0"}


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def finished(folder: Path) -> Path:
    """What a finished run leaves, as small as it can be."""
    for name in ("adapter", "checkpoint-2", "data"):
        (folder / name).mkdir(parents=True)
    output.begin(folder, MARK | {"started_with": {}})
    (folder / "checkpoint-2" / "trainer_state.json").write_text('{"global_step": 2}')
    (folder / "data" / "report.json").write_text(json.dumps(MARK))
    for place in (folder, folder / "adapter"):
        (place / "run.json").write_text(json.dumps(MARK))
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "adapter/mine.txt",
        "adapter/run.json",
        "checkpoint-4/optimizer.pt",
        ".adapter.partial/mine.txt",
        "best/mine.txt",
        "run.json",
        "report.json",
        "run-local.json",
        "probe.safetensors",
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_no_run_has_left_is_refused_and_kept(tmp_path: Path, name: str, overwrite: bool) -> None:
    mine = tmp_path / "mine" / name
    mine.parent.mkdir(parents=True)
    mine.write_text('{"a": 1}')
    with pytest.raises(OutputError, match="which no training has written"):
        output.check_output(tmp_path / "mine", overwrite)
    assert mine.read_text() == '{"a": 1}'


def test_clearing_takes_what_a_run_has_left_and_nothing_else(tmp_path: Path) -> None:
    out = finished(tmp_path / "out")
    (out / "notes.txt").write_text("mine")
    output.check_output(out, overwrite=True)
    output.clear_output(out)
    assert set(tree(out)) == {"notes.txt", "data/report.json"}


def test_a_run_killed_while_it_ends_can_end_once_more(tmp_path: Path) -> None:
    for text in ("first", "second"):
        output.begin(tmp_path, MARK)
        (tmp_path / output.STAGING).mkdir()
        (tmp_path / output.STAGING / "adapter_model").write_text(text)
        output.finish(tmp_path, {"kept": 7}, MARK | {"run": text})
        if text == "first":
            # As if killed before the last file.
            (tmp_path / "run.json").unlink()
            output.check_output(tmp_path)
    assert set(tree(tmp_path)) == {
        *("run.json", "report.json", "run-local.json"),
        *("adapter/adapter_model", "adapter/run.json", "adapter/report.json"),
    }
    assert (tmp_path / "adapter" / "adapter_model").read_text() == "second"
    with pytest.raises(OutputError, match="holds a finished run"):
        output.check_output(tmp_path)


def test_files_of_the_same_hidden_names_are_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / ".run.json.partial"
    mine.write_text("mine")
    output.write_json(MARK, tmp_path / "run.json")
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("text", ["", "[]", '{"global_step"'])
def test_a_checkpoint_whose_state_is_cut_off_is_passed_over(tmp_path: Path, text: str) -> None:
    for name, state in (("2", '{"global_step": 2}'), ("4", text), ("best", '{"a": 1}')):
        (tmp_path / f"checkpoint-{name}").mkdir()
        (tmp_path / f"checkpoint-{name}" / "trainer_state.json").write_text(state)
    assert output.last_checkpoint(tmp_path) == tmp_path / "checkpoint-2"


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_file_is_no_output_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match=r"Cannot write .*; use another folder"), output.only_run(tmp_path / name):
        pass


@pytest.mark.parametrize("save", [torch.save, save_weights], ids=["torch", "safetensors"])
def test_a_full_disk_costs_one_sentence(tmp_path: Path, save: Callable[[object, Path], None]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    weights = {"weight": torch.zeros(100_000)}
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OutputError, match=r"written: .*; make room"), output.only_run(tmp_path / "out"):
            save(weights, tmp_path / "out" / "weights")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def start(folder: Path, model: Path, **changes: object) -> output.Json:
    return started_with(sdpo(*arguments(folder, model, **changes)), hand_made())


def test_a_folder_is_one_runs_and_keeps_no_trace_of_the_lock(tmp_path: Path) -> None:
    out = tmp_path / "outputs" / "new"
    for _resumed in range(2):
        with output.only_run(out):
            with pytest.raises(OutputError, match=r"Another run is writing `.*new`; wait"), output.only_run(out):
                pass
            # Other folders are free, and what is left of a killed run is not in the way.
            with output.only_run(tmp_path / "other"):
                pass
        assert not out.exists() or not any(out.iterdir())
        out.mkdir(parents=True, exist_ok=True)
        (out / output.LOCK).touch()


def test_a_lock_file_that_was_taken_away_locks_nothing(tmp_path: Path) -> None:
    with output.only_run(tmp_path):
        (tmp_path / output.LOCK).unlink()
        with output.only_run(tmp_path):
            assert (tmp_path / output.LOCK).exists()


def test_the_second_of_two_jobs_is_refused(
    tmp_path: Path, tiny: Path, filtered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    base = ["--config", "cpu", "--report_to", "none", "--output_dir", str(out)]
    rows = ["--dataset", str(filtered), "--model_name_or_path", str(tiny), "--max_steps", "1"]
    job = script().main
    with output.only_run(out):
        before = tree(tmp_path)
        for argv in (rows, [*rows, "--overwrite"], ["--source", "x"]):
            assert job([*base, *argv]) == 2
            told = capsys.readouterr().err.strip().splitlines()[-1]
            assert told.startswith(f"train_sdpo: Another run is writing `{out}`")
            assert tree(tmp_path) == before
    assert job([*base, *rows]) == 0
    assert not (out / output.LOCK).exists()
    assert "rows name no" not in capsys.readouterr().out


def test_only_the_same_training_goes_on(tmp_path: Path, tiny: Path) -> None:
    out = tmp_path / "out"
    first = start(out, tiny)
    output.begin(out, MARK | {"started_with": first, "before": {}})
    check_same_start(out, start(out, tiny, learning_rate=1e-2))
    (out / "checkpoint-2").mkdir()
    (out / "checkpoint-2" / "trainer_state.json").write_text('{"global_step": 2}')
    moved = Path(shutil.copytree(tiny, tmp_path / tiny.name))
    for same in (start(out, tiny), start(out, moved, logging_steps=5, save_steps=1)):
        check_same_start(out, same)
    for changes, words in (
        ({"learning_rate": 1e-2}, "learning_rate 0.001, now 0.01"),
        ({"seed": 1}, "seed 42, now 1"),
        ({"max_steps": 9}, "max_steps 6, now 9"),
    ):
        with pytest.raises(OutputError, match=f"started with .*{words}.*--overwrite"):
            check_same_start(out, start(out, tiny, **changes))
    output.begin(out, MARK | {"started_with": first, "before": {}})
    other = write_tiny_model(tmp_path / "other", seed=1)
    with pytest.raises(OutputError, match="started with model_name_or_path"):
        check_same_start(out, start(out, other))
    method = sdpo(*arguments(out, tiny))
    fewer = started_with(method, hand_made().select([0, 1]))
    with pytest.raises(OutputError, match="started with rows"):
        check_same_start(out, fewer)
    method.model_args.lora_r = 4
    with pytest.raises(OutputError, match="lora_r 8, now 4"):
        check_same_start(out, started_with(method, hand_made()))
    (out / "run-local.json").unlink()
    with pytest.raises(OutputError, match="no record of their arguments"):
        check_same_start(out, first)


@pytest.mark.slow
def test_a_training_goes_on_with_the_rows_that_it_began_with(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("traces", "others"):
        (tmp_path / name).mkdir()
        write_samples(tmp_path / name)
    out = tmp_path / "out"
    run = ["--config", "cpu", "--report_to", "none", "--output_dir", str(out)]
    run += ["--model_name_or_path", str(tiny), "--source"]
    job = script().main
    assert job([*run, "traces", "--max_steps", "2"]) == 0
    before = tree(out / "data")
    # As if it had been killed after its last checkpoint, and the traces had grown since.
    (out / "run.json").unlink()
    (tmp_path / "traces" / "new.jsonl").write_text("{}\n")
    capsys.readouterr()
    for other, words in (
        (["others", "--max_steps", "2"], "started with source traces, now others"),
        (["traces", "--max_steps", "2", "--min_score", "3"], "started with min_score 0.0, now 3.0"),
    ):
        assert job([*run, *other]) == 2
        assert words in capsys.readouterr().err
    assert job([*run, "traces", "--max_steps", "2"]) == 0
    assert tree(out / "data") == before


def test_a_preflight_looks_past_a_finished_run(
    tmp_path: Path, tiny: Path, filtered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(finished(tmp_path / "out"))
    given = ["--config", "cpu", "--report_to", "none", "--output_dir", str(tmp_path / "out"), "--preflight_rows", "0"]
    given += ["--model_name_or_path", str(tiny), "--mode", "preflight"]
    assert script().main([*given, "--dataset", str(filtered)]) == 0
    assert "templates_checked" in capsys.readouterr().out
    # The rows that --source gives would replace those of the run.
    assert script().main([*given, "--source", "traces"]) == 2
    assert "holds a finished run" in capsys.readouterr().err
    assert tree(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--dataset", "./gone"), "There is no folder `gone`"),
        (("--source", "./gone"), "does not exist"),
        (("--dataset", "ROWS", "--model_name_or_path", "./gone"), "no model in the folder"),
        (("--dataset", "ROWS", "--lora_target_modules", "nope"), "nope"),
        (("--dataset", "ROWS", "--reprompt_template", "{nope}"), "cannot be filled"),
    ],
)
def test_overwriting_begins_only_when_all_has_been_checked(
    tmp_path: Path,
    tiny: Path,
    filtered: Path,
    argv: tuple[str, ...],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    out = finished(tmp_path / "out")
    before = tree(out)
    given = [str(filtered) if word == "ROWS" else word for word in argv]
    job = script().main
    base = ["--config", "cpu", "--report_to", "none", "--output_dir", str(out), "--overwrite"]
    assert job([*base, "--model_name_or_path", str(tiny), *given]) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert told.startswith("train_sdpo: ")
    assert words in told
    assert tree(out) == before


@pytest.mark.slow
def test_overwriting_replaces_rows_and_run(
    tmp_path: Path, tiny: Path, filtered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").mkdir()
    write_samples(tmp_path / "traces")
    job = script().main
    argv = ["--config", "cpu", "--report_to", "none", "--max_steps", "1", "--run-name", "r1"]
    argv += ["--model_name_or_path", str(tiny)]
    out = tmp_path / "outputs" / "r1"
    assert job([*argv, "--dataset", str(filtered)]) == 0
    assert job([*argv, "--source", "traces", "--overwrite", "--license", "MIT"]) == 0
    run = json.loads((out / "run.json").read_text())
    assert (run["dataset"]["id"], run["licence"]) == ("traces", "mit")
    assert (out / "data" / "report.json").read_bytes()
    assert {path.name for path in out.iterdir() if path.name.startswith(".")} == set()
    assert json.loads((out / "report.json").read_text())["input"]["source"] == "traces"


def test_nothing_is_published_while_a_text_holds_a_secret(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# An adapter\nDB_PASSWORD=" + "hunter2")
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(OutputError, match=r"README.md` holds .*\(assigned_secret\)"):
        output.publish_adapter(Repo("me/adapter", "model"), tmp_path)


def test_nothing_is_published_with_a_card_that_would_be_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: mine\n---\n# T\n![x](x.png)\n")
    with pytest.raises(OutputError, match="Correct it and push again") as refused:
        output.publish_adapter(Repo("me/adapter", "model"), tmp_path)
    assert "`license` is `mine`" in str(refused.value)
