"""Import the user's own stages, rewards and verifiers by `module:name`, and check them.

Modules are also searched for in the current folder. If a stage or a reward raises an error or
returns something invalid, an OwnCodeError names the line.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, update_wrapper
from importlib import import_module
from math import isfinite
from pathlib import Path
from traceback import extract_tb
from typing import Any

from datasets import Features

from pimono_sdpo.errors import OwnCodeError
from pimono_sdpo.schema import EVIDENCE, GRADE, SDPO_ROW, find_mismatch, type_of
from pimono_sdpo.stage import Filter, Map, Stage, features_after, name_of, table_of_rows

# The columns that later stages read.
_PIPELINE_COLUMNS = {**EVIDENCE, **GRADE, "split": SDPO_ROW["split"]}


def import_own(name: str) -> Any:
    """Import `module:name`; raises OwnCodeError if that fails."""
    module, _, attribute = name.partition(":")
    if not all(map(str.isidentifier, module.split("."))) or module.endswith(".py"):
        parts = Path(module).with_suffix("").parts
        dotted = ".".join(parts) if all(map(str.isidentifier, parts)) and parts else "mine"
        raise OwnCodeError(
            f"`{module}` is not the name of a module; give `{dotted}:{attribute or 'NAME'}` for a file "
            f"{dotted.replace('.', '/')}.py here."
        )
    if not attribute:
        raise OwnCodeError(f"`{name}` names no object of the module; give `{module}:NAME`.")
    if str(Path.cwd()) not in sys.path:
        # Last: a file here must not take the place of a library.
        sys.path.append(str(Path.cwd()))
    try:
        imported = import_module(module)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module}.".startswith(f"{missing}."):
            other = getattr(sys.modules.get(top := module.partition(".")[0]), "__file__", None)
            if other and Path(top).exists():
                raise OwnCodeError(
                    f"`{name}` names the module `{missing}`, but `{top}` is `{other}`; rename the folder `{top}` here."
                ) from error
            raise OwnCodeError(
                f"`{name}` names the module `{missing}`, which is neither in the current folder "
                "nor installed; give module:name of a file here."
            ) from error
        raise OwnCodeError(f"`{module}` cannot be imported: {_explain(error)}.") from error
    if not hasattr(imported, attribute):
        file = getattr(imported, "__file__", "built in")
        raise OwnCodeError(f"`{attribute}` is not in the module `{module}` ({file}); give module:name.")
    return getattr(imported, attribute)


def list_own_files(names: Iterable[str]) -> dict[str, Path]:
    """Return the files of the modules or packages of `module:name`, by their path relative to the import root."""
    files: dict[str, Path] = {}
    for module in {name.partition(":")[0] for name in names}:
        import_own(f"{module}:__file__")
        file = Path(str(sys.modules[module.partition(".")[0]].__file__)).resolve()
        if file.name == "__init__.py":
            files |= {path.relative_to(file.parent.parent).as_posix(): path for path in file.parent.rglob("*.py")}
        else:
            files[file.name] = file
    return dict(sorted(files.items()))


def import_stages(names: Sequence[str], features: Features) -> list[Stage]:
    """Import stages that run one after the other on rows with these columns, and check them."""
    stages: list[Stage] = []
    for name in names:
        stage = import_own(name)
        columns = features_after(features, stages)
        if not isinstance(stage, Map | Filter):
            raise OwnCodeError(f"`{name}` is a {type(stage).__name__}; give a Map or a Filter.")
        if missing := [column for column in stage.reads if column not in columns]:
            raise OwnCodeError(f"`{name}` reads {', '.join(missing)}; give columns among {', '.join(columns)}.")
        writes = Features(stage.writes if isinstance(stage, Map) else {})
        if changed := [one for one in writes if columns.get(one, writes[one]) != writes[one]]:
            raise OwnCodeError(
                f"`{name}` writes {changed[0]} as {writes[changed[0]]}, but later stages read "
                f"{columns[changed[0]]}; keep the type, or use another name."
            )
        if isinstance(stage, Map) and stage.drops:
            raise OwnCodeError(f"`{name}` drops columns that later stages may read; leave out `drops`.")
        if getattr(stage.fn, "__name__", "") == "<lambda>":
            raise OwnCodeError(f"`{name}` has a lambda, which cannot be pickled for workers; use a `def`.")
        if any(name_of(other) == name_of(stage) for other in stages):
            raise OwnCodeError(f"`{name}` is the second stage of its module; give one of each.")
        fn: Any = OwnStage(name, stage.fn, writes)
        stages.append(replace(stage, fn=fn))
    return stages


class OwnStage:
    """Wrap the function of a stage and raise OwnCodeError if it fails or returns something invalid.

    The code hash is that of the wrapped function, see `pimono_sdpo.stage.source_hash`.
    """

    def __init__(self, name: str, fn: Callable[..., Any], writes: Features) -> None:
        self.name, self.writes, self.__wrapped__ = name, writes, fn

    def __call__(self, row: Any) -> Any:
        """Return the new columns of a row, or why it is dropped."""
        try:
            result = self.__wrapped__(row)
            if self.writes:
                if not isinstance(result, dict) or {*result} != {*self.writes}:
                    raise TypeError(f"{result!r:.80} does not have exactly the columns {', '.join(self.writes)}")
                written = table_of_rows([result], self.writes).to_pylist()[0]
                if mismatch := find_mismatch(written, _type_of_columns(tuple(self.writes))):
                    raise TypeError(mismatch)
                if not all(isfinite(one) for one in result.values() if isinstance(one, float)):
                    raise ValueError(f"{result!r:.80} has a number that is not finite")
        except (Exception, SystemExit) as error:
            raise OwnCodeError(f"The stage `{self.name}` failed: {_explain(error)}.") from error
        return result


@cache
def _type_of_columns(names: tuple[str, ...]) -> Any:
    """Return the row type of those columns that later stages read."""
    return type_of({name: _PIPELINE_COLUMNS[name] for name in names if name in _PIPELINE_COLUMNS})


class OwnReward:
    """Wrap a reward function and raise OwnCodeError if it fails or returns something invalid."""

    def __init__(self, name: str) -> None:
        function = import_own(name)
        if not callable(function):
            raise OwnCodeError(f"`{name}` is not a function; give one of prompts and completions.")
        update_wrapper(self, function)
        self.name, self.function = name, function
        # TRL uses it to name the metrics.
        self.__name__ = name.partition(":")[2]

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Return a finite number or None for each completion."""
        try:
            result = self.function(completions=completions, **columns)
            numbers = [None if one is None else float(one) for one in result]
            if len(numbers) != len(completions):
                raise ValueError(f"{len(numbers)} rewards for {len(completions)} completions")
            if not all(one is None or isfinite(one) for one in numbers):
                raise ValueError(f"{numbers} has a reward that is not finite")
        except (Exception, SystemExit) as error:
            raise OwnCodeError(f"The reward `{self.name}` failed: {_explain(error)}.") from error
        return numbers


def _explain(error: BaseException) -> str:
    """Describe an error in a clause, with the line of the user's code that raised it."""
    frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename != __file__]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300].rstrip(".") + where
