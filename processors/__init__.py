"""The stages of the trace filter, top to bottom, and the call that runs them on a dataset.

A new stage is one file with a STAGE, and one line here.
"""

from collections.abc import Sequence
from typing import Any

from pimono_sdpo.errors import OutputError, OwnCodeError
from pimono_sdpo.filter_options import FilterOptions
from pimono_sdpo.own_code import import_stages
from pimono_sdpo.schema import REJECT, SESSION
from pimono_sdpo.stage import AnyDataset, Stage, apply_all, features_after, name_of, run_stages
from processors import context, evidence, grade, keep, names, recovery_rows, redact, row_judge, rows, split, threshold
from processors.judge import Judge


def pipeline(options: FilterOptions | None = None, recorder: Sequence[str] = (), **given: Any) -> tuple[Stage, ...]:
    """Return the stages for the options of `filter` that decide each row, which may also be given by name.

    `recorder` are names of the recorder as `processors.identity` finds them, beside those that a session shows.
    Raises OwnCodeError for a stage of `options.stage`, OutputError for another value that cannot be used.

    >>> [name_of(stage) for stage in pipeline(min_score=2.0)][-3:]
    ['threshold', 'context', 'rows']
    """
    options = options or FilterOptions(**given)
    names_of = None if options.keep_identity else recorder
    if options.unit == "recovery":
        return recovery_rows.build_stages(options.at, options.prompt_tokens, options.test_fraction, names_of)
    judge = Judge(options.judge, options.judge_provider) if options.judge else None
    before = (
        evidence.stage(options.unit, options.history_chars, judge, names_of),
        split.stage(options.test_fraction, options.split_by),
        names.STAGE,
        keep.stage(options.min_worth),
        redact.STAGE,
        grade.stage(options.reference_terms),
    )
    judged = (row_judge.stage(judge),) if judge else ()
    after = (threshold.stage(options.min_score), context.STAGE, *judged, rows.STAGE)
    own = import_stages(options.stage, features_after(SESSION, before)) if options.stage else []
    ours = {name_of(stage) for stage in (*before, *after)}
    if taken := ours & {name_of(stage) for stage in own}:
        raise OwnCodeError(f"`{min(taken)}` is a stage of `filter`; rename your module.")
    return (*before, *own, *after)


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
