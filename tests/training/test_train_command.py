"""`pimono-sdpo train` runs the jobs."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pimono_sdpo.cli import app
from pimono_sdpo.errors import PimonoError
from pimono_sdpo.training.arguments import open_parser
from pimono_sdpo.training.options import read_options


def run_train(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["train", *words])
    # The command line ends with exit code 2 for these.
    code = 2 if isinstance(done.exception, PimonoError) else done.exit_code
    return code, f"{done.output}{done.exception}"


@pytest.mark.parametrize("flags", [("--preflight-rows", "--report-to"), ("--preflight_rows", "--report_to")])
def test_rows_are_trained_on_with_any_option_of_the_job(
    flags: tuple[str, str], tmp_path: Path, tiny: Path, filtered: Path
) -> None:
    rows, report = flags
    options = ["--config", "cpu", "--mode", "preflight", rows, "0", report, "none"]
    options += ["--model_name_or_path", str(tiny), "--output-dir", str(tmp_path / "out")]
    code, output = run_train(str(filtered), "--method", "grpo", *options)
    assert code == 0, output
    assert "smoke test, a fluent wrong answer scores like a right one: method grpo, reward " in output
    assert f"recipe cpu.yaml, model {tiny}: 0 of 4 rows have tests, so nothing can grade the answers\n" in output
    assert "lowered_by: --load_in_4bit true (NF4)" in output


def test_wrong_options_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "Give the rows before the options" in run_train("--max-steps", "2", "rows")[1]
    code, _ = run_train("rows", "--no-such-option", "2")
    assert code == 2
    for job_option in (["--detach"], ["--namespace", "lab"], ["--wheel", "p.whl"]):
        code, output = run_train("rows", *job_option)
        assert code == 2
        assert "--wheel, --namespace and --detach are for a job; give --on hf:FLAVOR" in output


@pytest.mark.parametrize("given", [("--time-limit", "-1h"), ("--time-limit=-1h",)])
def test_a_negative_value_is_not_taken_for_options(given: tuple[str, ...], filtered: Path) -> None:
    code, output = run_train(str(filtered), "--on", "hf:a10g-large", *given)
    assert code == 2
    assert "`-1h` is not a valid time limit" in output


def test_help_does_not_import_torch() -> None:
    script = (
        "import sys; from pimono_sdpo.cli import app\n"
        "try: app(['train', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(' '.join({'torch', 'trl', 'datasets'} & {*sys.modules}) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("method", ["sdft", "sdpo", "grpo", "sft", "dpo"])
def test_every_option_of_a_job_is_known_without_its_libraries(method: str) -> None:
    parser = open_parser(method)
    flags = {flag.replace("_", "-") for flag in parser._option_string_actions} - {"-h", "--help"}
    assert {"--" + name.replace("_", "-") for name in read_options(method)} == {"--config", *flags}
