"""The stages of the trace filter, top to bottom, and the call that runs them on a dataset.

A new stage is one file with a STAGE, and one line here.
"""

from collections.abc import Sequence
from math import inf, isfinite
from typing import Any, get_args

from pimono_sdpo.errors import OutputError, OwnCodeError
from pimono_sdpo.filter_options import SplitBy, Unit
from pimono_sdpo.own_code import import_stages
from pimono_sdpo.schema import REJECT, SESSION
from pimono_sdpo.stage import AnyDataset, Stage, apply_all, features_after, name_of, run_stages
from processors import context, evidence, grade, keep, names, redact, row_judge, rows, split, threshold
from processors.judge import Judge


def pipeline(
    unit: Unit = "episode",
    min_score: float = 0.0,
    test_fraction: float = 0.0,
    history_chars: int = 0,
    split_by: SplitBy = "repository",
    reference_terms: bool = False,
    own: Sequence[str] = (),
    recorder: Sequence[str] | None = (),
    min_worth: float | None = None,
    judge: Judge | None = None,
) -> tuple[Stage, ...]:
    """Return the stages for the options of `filter` that decide each row.

    `own` names stages as `module:name`, which are run behind `grade`; `recorder` are names of the
    recorder as `processors.identity` finds them, beside those that a session shows, None to keep
    all of them; `judge` answers questions about later messages and rows. Raises OwnCodeError for a
    stage, OutputError for another value that cannot be used.
    """
    _check_choice("unit", unit, get_args(Unit))
    _check_choice("split_by", split_by, get_args(SplitBy))
    _check_number("min_score", min_score)
    _check_number("test_fraction", test_fraction, 0, 1)
    if min_worth is not None:
        _check_number("min_worth", min_worth, 0)
    _check_number("history_chars", history_chars, 0)
    before = (
        evidence.stage(unit, history_chars, judge, recorder),
        split.stage(test_fraction, split_by),
        names.STAGE,
        keep.stage(min_worth),
        redact.STAGE,
        grade.stage(reference_terms),
    )
    judged = (row_judge.stage(judge),) if judge else ()
    after = (threshold.stage(min_score), context.STAGE, *judged, rows.STAGE)
    mine: list[Stage] = []
    if own:
        mine = import_stages(own, features_after(SESSION, before))
        ours = {name_of(stage) for stage in (*before, *after)}
        if taken := ours & {name_of(stage) for stage in mine}:
            raise OwnCodeError(f"`{min(taken)}` is a stage of `filter`; rename your module.")
    return (*before, *mine, *after)


def _check_choice(name: str, given: object, known: Sequence[str]) -> None:
    if given not in known:
        raise OutputError(f"`{name}` is {given!r}; use one of {', '.join(known)}.")


def _check_number(name: str, given: object, least: float = -inf, most: float = inf) -> None:
    if not isinstance(given, int | float) or not isfinite(given) or not least <= given <= most:
        limits = [f" {word} {limit}" for word, limit in (("from", least), ("to", most)) if isfinite(limit)]
        raise OutputError(f"`{name}` is {given!r}; use a finite number{''.join(limits)}.")


PIPELINE = pipeline()


def run_pipeline(
    dataset: AnyDataset,
    stages: Sequence[Stage] = PIPELINE,
    *,
    fused: bool = True,
    keep_rejects: bool = False,
    **map_options: Any,
) -> AnyDataset:
    """Turn a dataset of sessions into a dataset of SDPO rows.

    A `Dataset` gives a `Dataset`, an `IterableDataset` an `IterableDataset` that is read lazily.

    Args:
        dataset: Sessions with the columns of `load_sessions`: `trace` (the raw JSONL, as bytes),
            `source` (a name), and `harness`, `session_id` and `bytes_not_utf8`, which may be empty
            or 0. Other columns are dropped.
        stages: What is done with each session: `processors.pipeline(...)`, or stages of your own.
        fused: Run all stages in one batched `map` over Arrow tables; with False, each in a `map`
            or `filter` of its own, to equal rows: slower, but every step can be looked at.
        keep_rejects: Keep dropped rows too, with the columns `kept`, `stage` and `drop_reason`,
            and what `stage` had not yet computed as null. Only with `fused`.
        map_options: Options of `Dataset.map`, such as `num_proc`.

    Returns:
        One row for each kept session, or episode, with the columns of `SDPO_ROW`, and `evidence`
        and `fingerprints` for comparing rows. Duplicates are kept; the command drops them.

    >>> from pimono_sdpo import load_sessions, run_pipeline
    >>> from pimono_sdpo.samples import SAMPLE_SESSIONS
    >>> rows = run_pipeline(load_sessions(SAMPLE_SESSIONS, streaming=True))
    >>> next(iter(rows))["score"]
    19.5
    """
    if fused:
        rejects = REJECT if keep_rejects else None
        return run_stages(dataset, stages, rejects=rejects, **map_options)
    if keep_rejects:
        raise OutputError("Only the fused pipeline keeps rejects; leave `fused=False` out.")
    return apply_all(dataset, stages, **map_options)
