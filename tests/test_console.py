"""Ctrl-C at any time, closed pipes, and control characters of names: as users meet them, in processes of their own."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cards.plots import Estimate, draw_intervals
from cards.render import make_environment
from pimono_sdpo.samples import SAMPLE_SESSIONS

ROOT = Path(__file__).parent.parent
# Runs a program, and presses Ctrl-C when it begins to import a module; `finally` blocks of others must not hide it.
PRESS = """
import os, runpy, signal, sys

class Press:
    def find_spec(self, name, path, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

module, program, *words = sys.argv[1:]
sys.argv = [program, *words]
sys.meta_path.insert(0, Press())
if program.endswith(".py"):
    runpy.run_path(program, run_name="__main__")
else:
    from pimono_sdpo.cli import main
    main()
"""
COMMAND = "pimono-sdpo filter samples --out rows"
TRAIN = f"{ROOT}/jobs/train_METHOD.py --dataset rows --config cpu"
MOMENTS = [
    *((COMMAND, name) for name in ("pimono_sdpo.program", "select", "typer", "pimono_sdpo.cli.filter", "datasets")),
    *((COMMAND, name) for name in ("pyarrow.parquet", "pandas", "cards.render", "processors.row_judge")),
    ("pimono-sdpo --help", "typer"),
    ("pimono-sdpo train rows --config cpu", "torch"),
    *((TRAIN.replace("METHOD", method), "pimono_sdpo.program") for method in ("sdpo", "sft", "dpo")),
    *((TRAIN.replace("METHOD", "sdpo"), name) for name in ("torch", "trl")),
    (f"{ROOT}/jobs/finetune_together.py --dataset {__file__} --model m", "processors.rollouts.together"),
]


@pytest.mark.parametrize(("program", "module"), MOMENTS)
def test_ctrl_c_during_an_import_is_one_sentence(program: str, module: str, tmp_path: Path) -> None:
    (tmp_path / "samples").symlink_to(SAMPLE_SESSIONS)
    words = program.split()
    done = subprocess.run(
        [sys.executable, "-c", PRESS, module, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 130, done.stderr
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(f"{Path(words[0]).stem}: interrupted; ")


@pytest.mark.parametrize("job", ["benchmarks/demo", "jobs/finetune_together"])
@pytest.mark.parametrize("module", ["argparse", "pimono_sdpo.program"])
def test_ctrl_c_in_the_first_imports_of_a_job_ends_it(job: str, module: str) -> None:
    command = [sys.executable, "-c", PRESS, module, f"{ROOT}/{job}.py"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A folder with sample sessions and rows."""
    (tmp_path / "samples").symlink_to(SAMPLE_SESSIONS)
    command = [sys.executable, "-m", "pimono_sdpo", "filter", "samples", "--out", "rows"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    return tmp_path


def test_a_closed_pipe_ends_a_program_as_shells_expect(rows: Path) -> None:
    helps = ["-m pimono_sdpo train rows -- --help"]
    helps += [f"{ROOT}/{name}.py --help" for name in ("jobs/train_sdpo", "benchmarks/demo", "jobs/finetune_together")]
    commands = (
        "filter samples --out again",
        "view rows --source samples --out page.html",
        "steps samples --out steps",
        "demo sessions --out sessions",
        "filter --help",
        "--help",
        "--version",
    )
    for words in [*(f"-m pimono_sdpo {words}" for words in commands), *helps]:
        for together in (False, True):
            reading, writing = os.pipe()
            os.close(reading)
            done = subprocess.run(
                [sys.executable, *words.split()],
                cwd=rows,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=writing,
                stderr=writing if together else subprocess.PIPE,
            )
            os.close(writing)
            # argparse itself ignores that a long help cannot be written.
            assert done.returncode in ((141, 0) if words in helps else (141,)), words
            assert not done.stderr, words
    # What was made before there was something to print is there.
    assert (rows / "again" / "report.json").is_file()


@pytest.mark.parametrize("words", ["filter samples --out again", "demo sessions --out sessions", "--help"])
@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (">/dev/full", "Cannot write to the standard output: no space left on device."),
        (">&-", "The standard output is closed; send it to a file or to /dev/null."),
        (">/dev/full 2>&-", None),
    ],
)
def test_an_output_that_cannot_be_written_is_one_sentence(
    words: str, output: str, sentence: str | None, tmp_path: Path
) -> None:
    (tmp_path / "samples").symlink_to(SAMPLE_SESSIONS)
    command = f"{sys.executable} -m pimono_sdpo {words} {output}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TQDM_DISABLE": "1"}
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"pimono-sdpo: {sentence}\n" if sentence else "")


def test_an_error_is_told_on_a_closed_pipe_too(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pimono_sdpo", "filter", "nope", "--out", "rows"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=writing, stderr=writing
    )
    os.close(writing)
    assert done.returncode == 2


CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")
NAMES = ["red\x1b[31m", "\x1b]0;title\x07\x9b2J", "\u202egnp.exe", "bad\udcff", "line\nend\rstart", "<img src=x>`|"]


@pytest.mark.parametrize("name", NAMES)
def test_names_control_neither_terminal_nor_card(name: str, tmp_path: Path) -> None:
    (folder := tmp_path / name).mkdir()
    shutil.copy(SAMPLE_SESSIONS / "02_ledger_rounding.jsonl", folder / f"{name}.jsonl")
    # They cannot be read, so the console names them.
    (folder / f"{name}.jsonl.gz").write_bytes(b"broken")
    (folder / f"{name}.txt").write_text("")
    (folder / name).symlink_to("nowhere")

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "pimono_sdpo", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
        printed = (done.stdout + done.stderr).decode()
        assert "Traceback" not in printed
        assert not CONTROLS.search(printed), printed
        assert "line\nend" not in printed
        return printed

    printed = run("filter", name, "--out", "rows", "--min-worth", "0")
    assert "skipped, since they cannot be read: " in printed
    assert "1 .txt (" in printed
    assert "1 link without a target (" in printed
    printed = run("filter", name, "--out", f"{name}-rows", "--min-worth", "0")
    # Arrow cannot write to a path that is not UTF-8.
    assert ("is not UTF-8" if "\udcff" in name else "report.json and README.md are in ") in printed
    run("demo", "sessions", "--out", f"{name}-sessions")
    card = (tmp_path / "rows" / "README.md").read_text()
    assert not CONTROLS.search(card)
    assert len(re.findall(r"^\| `[^`\n]*` \| jsonl \| 2 \|$", card, re.MULTILINE)) == 1
    run("view", "rows", "--source", name, "--out", f"{name}.html")
    run("steps", name, "--out", "steps")
    run("steps", "rows", "--out", "steps")
    run("suite", "build", name, "--out", "suite")
    run("push", name, "me/rows")
    run("train", f"{name}.html", "--method", "sft", "--use_cpu", "true")
    assert not CONTROLS.search((tmp_path / "steps" / "README.md").read_text())
    assert "pimono-sdpo: `" in run("filter", f"{name}-none", "--out", "none")


def test_every_template_and_plot_escapes_control_characters(tmp_path: Path) -> None:
    text = (
        make_environment()
        .from_string("{{ one }} {{ one | cell }} {{ one | fence }}")
        .render(one="a\x1b[2J\u202eb\n\tc")
    )
    assert text == "a\\x1b[2J\\u202eb\n\tc a\\x1b[2J\\u202eb c ```text\na\\x1b[2J\\u202eb\n\tc\n```"
    drawn = ElementTree.fromstring(draw_intervals({"a\x1bb": [Estimate("c", 0.5)]}))
    assert "a\\x1bb" in [text.text for text in drawn]
