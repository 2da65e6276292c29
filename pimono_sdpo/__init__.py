"""Turn recorded coding-agent sessions into SDPO training rows, and train adapters on them.

    from pimono_sdpo import load_sessions, run_pipeline, train

    rows = run_pipeline(load_sessions("traces/"))
    output = train(rows, config="tiny", model_name_or_path="build/tiny-gemma4")

`load_sessions` opens the paths and Hub ids that the command `filter` takes, as a `Dataset` or an `IterableDataset`;
`run_pipeline` turns such a dataset into rows. Write stages of your own with `Map`, `Filter` and
`FlatMap`, and run any stages over any dataset with `run_stages`. `train` needs the extra `train`.
Errors that a user can fix are `PimonoError`.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pimono_sdpo.version import __version__ as __version__

__all__ = [
    "Filter",
    "FlatMap",
    "Map",
    "PimonoError",
    "Stage",
    "load_sessions",
    "pipeline",
    "run_pipeline",
    "run_stages",
    "train",
]
# `__init__.pyi` says the same to type checkers.
_MODULES = {
    **dict.fromkeys(__all__, "pimono_sdpo.stage"),
    **dict.fromkeys(("pipeline", "run_pipeline"), "processors"),
    "PimonoError": "pimono_sdpo.errors",
    "load_sessions": "pimono_sdpo.traces.sources",
    "train": "pimono_sdpo.training",
}


def _check_packages() -> None:
    """Raise ImportError if another package of the same name shadows or has overwritten one of ours."""
    for name in ("processors", "rewards", "cards"):
        spec = find_spec(name)
        file = Path(spec.origin) if spec and spec.origin else None
        if file and "pimono_sdpo" in file.read_text("utf-8"):
            continue
        if file and file.parent.parent != Path(__file__).parent.parent:
            raise ImportError(
                f"`{file}` is imported in the place of the package `{name}` of pimono-sdpo; rename that folder or "
                "run elsewhere."
            )
        raise ImportError(
            f"Another project has replaced or removed the package `{name}` of pimono-sdpo; uninstall that one and "
            "install pimono-sdpo again, or give pimono-sdpo an environment of its own, as `uv tool install` does."
        )


_check_packages()


def __getattr__(name: str) -> Any:
    """Import a name of the public API on first use, so that importing this package stays fast."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """List the public names, including those that are not imported yet."""
    return sorted({*globals(), *__all__})
