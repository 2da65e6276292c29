"""Write preference pairs: `rollout --pairs` with older options.

The rollouts and the folder of pairs are kept: beside the lines, or in --trace-dir. Without tests
(`--test-policy never`) no run is better than another, so there are rollouts and no pairs:

    pimono-sdpo prefs --suite suite.json --out dpo.jsonl --trace-dir runs --model Qwen/Qwen3-8B
"""

from pathlib import Path

from pimono_sdpo.agent.rollout import RolloutOptions, rollouts_folder, run_rollouts
from pimono_sdpo.cli import pairs
from pimono_sdpo.cli.rollout import pair_rollouts, print_as, print_problems, print_rollout
from pimono_sdpo.dataset_writer import copy_lines
from pimono_sdpo.errors import EmptySelection, OutputError
from pimono_sdpo.options import option, options, same_option
from pimono_sdpo.report import explain_empty
from pimono_sdpo.runs.folders import require_disjoint, require_replaceable
from processors.rollouts.pairs import Target


@options
class Options(RolloutOptions):
    """Options of `prefs`."""

    suite: Path = same_option(RolloutOptions, "suite")
    out: Path = option("JSON lines to write; NAME_meta.jsonl is written beside them.")
    trace_dir: Path | None = option(
        "Folder for the rollouts, which go to its folder `rollouts` if OUT lies in it, too.",
        default=None,
        shown="OUT_rollouts",
    )
    provider: str | None = same_option(RolloutOptions, "provider", flag="--llm-provider")
    target: Target = same_option(pairs.Options, "target")
    allow_efficiency_pairs: bool = same_option(pairs.Options, "allow_efficiency_pairs")


def run(options: Options) -> None:
    """Run the rollouts, pair them, and write the lines."""
    out = options.out
    if out.suffix != ".jsonl" or out.is_dir():
        raise OutputError(f"`{out}` is not a name for JSON lines; give NAME.jsonl.")
    pairs.check_dpo_lines(options.suite, options.target, options.protocol)
    made = rollouts_folder(options.trace_dir or out.with_name(f"{out.stem}_rollouts"), out)
    pairing = pairs.Options(
        source=[str(made)],
        out=out.with_name(f"{out.stem}_pairs"),
        target=options.target,
        allow_efficiency_pairs=options.allow_efficiency_pairs,
        format="together",
    )
    require_disjoint(made.resolve(), pairing.out.resolve())
    require_replaceable(pairing.out)
    tell = print_as("prefs")
    report = run_rollouts(options, made, tell, print_rollout(tell))
    found = pair_rollouts(pairing, report, tell)
    if options.test_policy == "never" and not found["rows"]:
        tell("No run was tested, so none is better than another: no preference pairs.")
        tell(f"Wrote {report['rollouts']} rollouts to: {made}")
        print_problems(report, tell)
        return
    if not found["rows"]:
        raise EmptySelection(
            f"{explain_empty(found, pairs.ADVICE)} The rejects are in {pairing.out}; `{out}` is not written."
        )
    counts = copy_lines(pairing.out, out, found)
    tell(f"Wrote {counts['written']} preference pairs to: {out}")
    tell(f"Wrote metadata to: {out.with_name(f'{out.stem}_meta.jsonl')}")
    print_problems(report, tell)
