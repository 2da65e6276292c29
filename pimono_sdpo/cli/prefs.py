"""Write preference pairs as JSON lines: `rollout --pairs` with the flags of its first version.

The rollouts and the folder of pairs are kept: beside the lines, or in --trace-dir. Without tests
(`--test-policy never`) no run is better than another, so there are rollouts and no pairs:

    pimono-sdpo prefs --suite suite.json --out dpo.jsonl --trace-dir runs --model Qwen/Qwen3-8B
"""

from pathlib import Path

from pimono_sdpo.agent.rollout import RolloutOptions, rollouts_folder, run_rollouts
from pimono_sdpo.cli import pairs
from pimono_sdpo.cli.rollout import pair_rollouts, print_as, print_problems, print_rollout
from pimono_sdpo.errors import OutputError
from pimono_sdpo.options import option, options
from pimono_sdpo.runs.folders import require_disjoint, require_replaceable
from pimono_sdpo.schema import Protocol, TestPolicy
from processors.rollouts.pairs import Target


@options
class Options:
    """Options of `prefs`."""

    suite: Path = option("JSON file of a task suite.")
    out: Path = option("JSON lines to write; NAME_meta.jsonl is written beside them.")
    trace_dir: Path | None = option(
        "Folder for the rollouts, which go to its folder `rollouts` if OUT lies in it, too.",
        default=None,
        shown="OUT_rollouts",
    )
    llm_provider: str | None = option(
        "As --provider of `rollout`.", default=None, shown="chain.toml's, else hf"
    )
    model: str | None = option("Model that acts.", default=None, shown="chain.toml's")
    rollouts: int = option("Rollouts of each task.", default=4, minimum=1)
    temperature: float | None = option("Sampling temperature.", default=None, shown="0.7")
    seed: int = option("Seed of the first rollout of each task.", default=42)
    max_workers: int = option("Rollouts at a time.", default=4, minimum=1)
    max_iters: int = option("Maximum number of the model's turns.", default=20, minimum=1)
    tool_protocol: Protocol = option(
        "Calls as one `json` object, or the API's `native` ones.", default="json"
    )
    test_policy: TestPolicy = option("As of `rollout`.", default="on_write")
    limit: int | None = option("Run only the first N tasks.", default=None, minimum=1, shown="all")
    max_cost: float | None = option(
        "Stop before spending more than this many USD.", default=None, minimum=0
    )
    target: Target = option(
        "As of `pairs`; `summary` gives the pairs of the first version.", default="step"
    )
    allow_efficiency_pairs: bool = option(
        "Also pair two runs that pass, by their steps.", default=False
    )


def run(options: Options) -> None:
    """Run the rollouts, pair them, and write the lines."""
    out = options.out
    if out.suffix != ".jsonl" or out.is_dir():
        raise OutputError(f"`{out}` is not a name for JSON lines; give NAME.jsonl.")
    pairs.check_dpo_lines(options.suite, options.target, options.tool_protocol)
    rollout = RolloutOptions(
        suite=options.suite,
        provider=options.llm_provider,
        model=options.model,
        rollouts=options.rollouts,
        temperature=options.temperature,
        seed=options.seed,
        max_workers=options.max_workers,
        max_iters=options.max_iters,
        protocol=options.tool_protocol,
        test_policy=options.test_policy,
        limit=options.limit,
        max_cost=options.max_cost,
    )
    made = rollouts_folder(options.trace_dir or out.with_name(f"{out.stem}_rollouts"), out)
    pairing = pairs.Options(
        source=str(made),
        out=out.with_name(f"{out.stem}_pairs"),
        target=options.target,
        allow_efficiency_pairs=options.allow_efficiency_pairs,
    )
    require_disjoint(made.resolve(), pairing.out.resolve())
    require_replaceable(pairing.out)
    tell = print_as("prefs")
    report = run_rollouts(rollout, made, tell, print_rollout(tell))
    found = pair_rollouts(pairing, report, tell)
    if options.test_policy == "never" and not found["rows"]:
        tell("No run was tested, so none is better than another: no preference pairs.")
        tell(f"Wrote {report['rollouts']} rollouts to: {made}")
        print_problems(report, tell)
        return
    counts = pairs.write_dpo_lines(pairing.out, out, found)
    tell(f"Wrote {counts['written']} preference pairs to: {out}")
    tell(f"Wrote metadata to: {out.with_name(f'{out.stem}_meta.jsonl')}")
    print_problems(report, tell)
