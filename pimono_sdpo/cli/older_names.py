"""Commands with the names and options of the reference runs: `prefs`, `sft-extract`, `eval`."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import typer

from cards.render import render_comparison
from pimono_sdpo.agent.evaluation import evaluate_to_file
from pimono_sdpo.agent.rollout import RolloutOptions, rollouts_folder, run_rollouts
from pimono_sdpo.cli import evaluate, pairs, steps
from pimono_sdpo.cli.rollout import check_pairing, pair_rollouts, print_as, print_problems, print_rollout
from pimono_sdpo.dataset_writer import copy_lines
from pimono_sdpo.errors import OutputError
from pimono_sdpo.left_out import explain_empty
from pimono_sdpo.options import option, options, same_option
from pimono_sdpo.program import print_lines
from pimono_sdpo.runs.folders import writing
from processors.rollouts.pairs import Target


@options
class PrefsOptions(RolloutOptions):
    """Options of `prefs`."""

    suite: Path = same_option(RolloutOptions, "suite")
    out: Path = option("JSON lines to write; NAME_meta.jsonl is written beside them.")
    trace_dir: Path | None = option(
        "Folder for the rollouts; they are written to its subfolder `rollouts` if it also contains OUT.",
        default=None,
        shown="OUT_rollouts",
    )
    provider: str | None = same_option(RolloutOptions, "provider", flag="--llm-provider")
    target: Target = same_option(pairs.PairOptions, "target")
    allow_efficiency_pairs: bool = same_option(pairs.PairOptions, "allow_efficiency_pairs")


def prefs(options: PrefsOptions) -> None:
    """Write preference pairs: `rollout --pairs` with older options.

    The rollouts and the folder of pairs are kept beside the lines, or in --trace-dir. Without tests
    (`--test-policy never`) no run is better than another, so only rollouts are written:

        pimono-sdpo prefs --suite suite.json --out dpo.jsonl --trace-dir runs --model Qwen/Qwen3-8B
    """
    out = options.out
    _check_lines(out)
    pairs.check_dpo_lines(options.suite, options.target, options.protocol)
    rollouts = rollouts_folder(options.trace_dir or out.with_name(f"{out.stem}_rollouts"), out)
    pairing = pairs.PairOptions(
        source=[str(rollouts)],
        out=out.with_name(f"{out.stem}_pairs"),
        target=options.target,
        allow_efficiency_pairs=options.allow_efficiency_pairs,
        format="together",
    )
    check_pairing(pairing, rollouts)
    log = print_as("prefs")
    report = run_rollouts(options, rollouts, log, print_rollout(log))
    pairs_report = pair_rollouts(pairing, report, log)
    if pairs_report["rows"]:
        counts = copy_lines(pairing.out, out, pairs_report)
        log(f"Wrote {counts['written']} preference pairs to: {out}")
        log(f"Wrote metadata to: {out.with_name(f'{out.stem}_meta.jsonl')}")
    elif options.test_policy == "never":
        log("No run was tested, so none is better than another: no preference pairs.")
        log(f"Wrote {report['rollouts']} rollouts to: {rollouts}")
    else:
        advice = f"{pairs.ADVICE}; the rejects are in {pairing.out}, and `{out}` is not written"
        raise explain_empty(pairs_report, advice)
    print_problems(report, log)


@options
class ExtractOptions:
    """Options of `sft-extract`."""

    trace_dir: str = option("Folder of rollouts, or its folder `traces`.")
    output: Path = option("JSON lines to write; NAME_meta.jsonl is written beside them.")
    require_success: bool = same_option(steps.StepOptions, "require_success", default=True)
    require_valid_tool_ok: bool = same_option(steps.StepOptions, "require_valid_tool_ok", default=True)
    format: Literal["json"] = option("Protocol of the calls.", default="json")


def sft_extract(options: ExtractOptions) -> None:
    """Write next-action rows: `steps` with older options.

    pimono-sdpo sft-extract --trace-dir rollouts/traces --output sft.jsonl
    """
    output = options.output
    _check_lines(output)
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = TemporaryDirectory(prefix=".sft-extract-", dir=output.parent)
    with folder:
        cutting = steps.StepOptions(
            source=[options.trace_dir],
            out=Path(folder.name) / "steps",
            require_success=options.require_success,
            require_valid_tool_ok=options.require_valid_tool_ok,
            tool_protocol=options.format,
            format="together",
        )
        report = {**steps.write_steps(cutting), "source": options.trace_dir}
        if not report["rows"]:
            raise explain_empty(report, steps.advise(cutting))
        counts = copy_lines(cutting.out, output, report)
    print_lines(f"Wrote {counts['written']} rows to: {output}")
    print_lines(f"Wrote metadata to: {output.with_name(f'{output.stem}_meta.jsonl')}")
    left_out = Counter(report["drop_reasons"]) + Counter(counts)
    del left_out["written"]
    if left_out:
        typer.echo("left out: " + ", ".join(f"{name} {count}" for name, count in left_out.items()))


@options
class EvalOptions(RolloutOptions):
    """Options of `eval`."""

    suite: Path = same_option(RolloutOptions, "suite")
    report: Path = option(
        "NAME.json to write; NAME.md and NAME.svg are written beside it.", default=Path("report.json")
    )
    trace_dir: Path | None = option(
        "Folder for the rollouts; they are written to its subfolder `rollouts` if it also contains the report.",
        default=None,
        shown="NAME_rollouts",
    )
    provider: str | None = same_option(RolloutOptions, "provider", flag="--llm-provider")
    max_workers: int = same_option(RolloutOptions, "max_workers", flag="--num-workers")
    rollouts: int = same_option(RolloutOptions, "rollouts", default=1)
    baseline: Path | None = same_option(evaluate.EvaluateOptions, "baseline")


def eval(options: EvalOptions) -> None:
    """Evaluate a model on a suite: `evaluate` with older options.

    Without --model, the rollouts in --trace-dir are evaluated:

        pimono-sdpo eval --suite test.json --trace-dir runs/base --report base.json
        pimono-sdpo eval --suite test.json --trace-dir runs/tuned --report report.json \\
            --model me/tuned --baseline runs/base
    """
    file = options.report
    rollouts = rollouts_folder(options.trace_dir or file.with_name(f"{file.stem}_rollouts"), file)
    log = print_as("eval")
    typer.echo(render_comparison(evaluate_to_file(options, rollouts, file, log, print_rollout(log), options.baseline)))
    log(f"Wrote the report to: {file}")
    log(f"Wrote rollouts to: {rollouts}")


def _check_lines(out: Path) -> None:
    if out.is_dir() or out.suffix != ".jsonl":
        raise OutputError(f"`{out}` is not a file name for JSON lines; give NAME.jsonl.")
