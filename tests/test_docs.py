"""Links lead somewhere, examples run, shell lines name what exists, generated pages are current."""

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from typer.testing import CliRunner

from pimono_sdpo.cli.command_line import COMMANDS, app, load
from pimono_sdpo.options import flag_of
from tests.exports import write_samples

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
HERE = re.compile(r"https://github\.com/pimono-sdpo/pimono-sdpo/(?:blob|tree)/main/")
# A block below this comment needs a GPU, the Hub or names of the reader's own.
COMPILED = "<!-- compiled, not run -->"
BLOCK = re.compile(rf"({COMPILED}\n)?^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


# Each is one story: all its blocks are run in their order, in tests/test_guides.py.
GUIDES = ("my-sessions", "one-gpu", "own-reward", "own-stage", "dataframes", "serve")


def blocks(*languages: str) -> Iterator[tuple[str, str, bool]]:
    """Each block of code in a language: its page, its text, and whether it is to be run."""
    for page in PAGES:
        for compiled, language, text in BLOCK.findall(page.read_text()):
            if language in languages:
                yield str(page.relative_to(ROOT)), text, not compiled


def prose_of(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for link in re.findall(r"\]\(<?([^)\s>]+)>?\)", prose_of(page)):
        if link.startswith("http") and not HERE.match(link):
            continue
        path, _, anchor = HERE.sub("", link).partition("#")
        target = (ROOT if HERE.match(link) else page.parent) / path if path else page
        assert target.exists(), f"{name}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors_of(target), f"{name}: {link}"


@pytest.mark.parametrize(("page", "text", "run"), [one for one in blocks("python") if Path(one[0]).stem not in GUIDES])
def test_python_blocks_run(page: str, text: str, run: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = compile(text, page, "exec")
    if not run:
        return
    write_samples(tmp_path / "traces")
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block, {})
    shown = re.search(r"\nprint\(.*\)\n((?:# .*\n)+)\Z", text)
    if shown:
        assert printed.getvalue() == re.sub(r"^# ", "", shown[1], flags=re.MULTILINE)


def test_the_readme_shows_what_the_filter_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["demo", "sessions", "--out", "traces"]).exit_code == 0
    printed = CliRunner().invoke(app, ["filter", "traces", "--out", "rows"]).output.splitlines()
    shown = next(text for page, text, _ in blocks("text") if page == "README.md").splitlines()
    for line, whole in zip(shown, printed, strict=True):
        assert whole.startswith(line.removesuffix("...")), line


def lines_of(text: str) -> Iterator[list[str]]:
    """The words of each command line of a block."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if words:
            yield words


SHELL = [(page, words) for page, text, _ in blocks("bash", "sh") for words in lines_of(text)]
KNOWN = {"pimono-sdpo", "make", "python", "hf", "pip", "uv", "accelerate", "pre-commit"}
KNOWN |= {"vllm", "llama-quantize", "llama-server"}
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def options_of(command: str) -> set[str]:
    """The options of a command, `--no-...` included."""
    found = {"--help"}
    given = load(command).options
    types = get_type_hints(given)
    for one in fields(given):
        if not one.metadata.get("argument"):
            flag = flag_of(one)
            both = types[one.name] in (bool, bool | None) and one.default is not False
            found |= {flag, f"--no-{flag[2:]}"} if both else {flag}
    return found


@pytest.mark.parametrize(("page", "words"), SHELL)
def test_shell_lines_name_what_exists(page: str, words: list[str]) -> None:
    given = {word.partition("=")[0] for word in words if word.startswith("--") and word != "--"}
    program = words[0].rpartition("/")[2]
    assert program in KNOWN, f"{page}: {' '.join(words)}"
    if program == "pimono-sdpo":
        command = next((c for c in (" ".join(words[1:3]), words[1]) if c in COMMANDS), None)
        assert command or words[1] == "--version", f"{page}: no command `{words[1]}`"
        # What `train` passes on is checked below.
        if command and command != "train":
            assert given <= options_of(command), f"{page}: {given - options_of(command)}"
    elif program == "make":
        assert set(words[1:]) <= TARGETS, f"{page}: {words}"
    for script in re.findall(r"(?:^| )((?:jobs|docs|examples|tests)/[\w/]+\.\w+)", " ".join(words)):
        assert (ROOT / script).exists(), f"{page}: {script}"


TRAININGS = [
    (page, words) for page, words in SHELL if "jobs/train_" in str(words) or words[:2] == ["pimono-sdpo", "train"]
]


@pytest.mark.parametrize(("page", "words"), TRAININGS)
def test_lines_of_training_jobs_name_options_that_exist(page: str, words: list[str]) -> None:
    from trl import ModelConfig

    from pimono_sdpo.training import arguments

    at = next((place for place, word in enumerate(words) if "jobs/train_" in word), 0)
    types = [ModelConfig, *(one for one in vars(arguments).values() if isinstance(one, type))]
    known = {f"__{name}" for one in types for name in getattr(one, "__dataclass_fields__", ())}
    given = {w.partition("=")[0].replace("-", "_") for w in words[at:] if w.startswith("--")}
    known |= {option.replace("-", "_") for option in options_of("train")}
    assert given - {"__", "__config"} <= known, page


@pytest.mark.parametrize("job", ["sdpo", "sft", "dpo"])
def test_help_of_a_job_names_its_own_options(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    from pimono_sdpo.training.guards import GuardOptions
    from pimono_sdpo.training.run import METHODS

    main = runpy.run_path(str(ROOT / "jobs" / f"train_{job}.py"))["main"]
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    types = (METHODS[job].OPTIONS, GuardOptions)
    assert all(f"--{one.name} " in shown for type_ in types for one in fields(type_))
    modes = get_args(get_type_hints(types[0])["mode"])
    assert f"--mode {{{','.join(modes)}}}" in shown


def test_the_generated_pages_are_up_to_date(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "docs" / "generate.py"), run_name="__main__")
    assert end.value.code == 0, capsys.readouterr().err


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the dependency group docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "reference" / "python" / "index.html").exists()
