"""Commands and options of earlier versions, and the replacement of each; an entry is deleted after one release."""

from collections.abc import Sequence
from itertools import pairwise

from pimono_sdpo.errors import PimonoError

_STEP = "use `--unit episode`, the default: one row for each request, with its failures and corrections"
_RECIPE = "use qwen3_4b for one GPU of 24 GB, cpu for a CPU, or gemma4_12b, the reference run"
_VERIFIER = "use tool_calls, or tests for rows with tests"
_WORDINGS = "write the wordings to a file for `--paraphrases`"
_JUDGE = "use `--judge MODEL`, with `--judge-provider hf` for a chat model that is served elsewhere"
_ONLY = "give each machine `--only I/N` with the same --out, then run the command once without it"
_RECOVERY = "use `filter --unit recovery`: one row for each call that failed and the later one that worked"
# A command, an option of a command, or a value of an option.
REMOVED = {
    "filter --unit step": _STEP,
    "filter --resolving-call": _STEP,
    "filter --corrections": _STEP,
    "filter --row-judge": _JUDGE,
    "filter --correction-judge": _JUDGE,
    "filter --shard": _ONLY,
    "filter --merge": _ONLY,
    "pairs of sessions": f"{_RECOVERY}, with `chosen` and `rejected`",
    "steps --good-recovery of sessions": _RECOVERY,
    "rescore": "score rows with `Dataset.map` and `build_rubric`, see docs/tutorials/verifiers.md",
    "suite build FILE.jsonl": "use QuixBugs or `samples`, or write the JSON file of a suite",
    "suite build HARBOR": (
        "read the tasks with `load_dataset(FOLDER)`, train on them with TRL's HarborSpec, or run them with Harbor and "
        "`import` its runs, see docs/tutorials/rollouts.md"
    ),
    **{f"{name} --write-paraphrases": _WORDINGS for name in ("rollout", "evaluate", "prefs", "eval")},
    "train --unit step": _STEP,
    "train --reward outcome": "use verifiers for rows with tests, trace_grounding for a smoke test, or module:name",
    "recipe exercises": _RECIPE,
    "recipe gemma4_12b_full": _RECIPE,
    "recipe small": _RECIPE,
    **dict.fromkeys(("recipe qwen3_4b_sft", "recipe qwen3_4b_dpo"), _RECIPE),
    **dict.fromkeys(("recipe tiny", "recipe tiny_sft", "recipe tiny_dpo", "recipe demo"), _RECIPE),
    "verifier next_call": _VERIFIER,
    "verifier replay": _VERIFIER,
}


def explain_removed(name: str) -> PimonoError:
    """Return the error for something removed."""
    return PimonoError(f"`{name}` was removed; {REMOVED[name]}.")


def refuse_removed(name: str, words: Sequence[str] = ()) -> None:
    """Raise PimonoError for something removed: a command, or one of its options among `words`.

    >>> refuse_removed("filter", ["traces", "--unit=step"])
    Traceback (most recent call last):
    pimono_sdpo.errors.PimonoError: `filter --unit step` was removed; use `--unit episode`, the default: ...
    """
    given = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    given = [word.replace("_", "-") if word.startswith("--") else word for word in given]
    values = [f"{option} {value}" for option, value in pairwise(given)]
    for used in (name, *(f"{name} {word}" for word in (*given, *values))):
        if used in REMOVED:
            raise explain_removed(used)
