"""Turn recorded coding-agent sessions into SDPO training rows, and train adapters on them.

    from pimono_sdpo import load_sessions, run_pipeline, train

    rows = run_pipeline(load_sessions("traces/"))
    output = train(rows, config="cpu", model_name_or_path="build/tiny-gemma4")

`load_sessions` opens the paths and Hub ids that the command `filter` takes, as a `Dataset` or an `IterableDataset`;
`run_pipeline` turns such a dataset into rows. Write stages of your own with `Map`, `Filter` and
`FlatMap`, and run any stages over any dataset with `run_stages`. `train` needs the extra `train`.
Errors that a user can fix are `PimonoError`.
"""

import sys

from pimono_sdpo.version import __version__ as __version__


def _read_stub() -> dict[str, str]:
    """Return the module of each public name, as `__init__.pyi` says it to type checkers as well."""
    with open(f"{__path__[0]}/__init__.pyi", encoding="utf-8") as stub:  # noqa: PTH123
        imports = [line.split() for line in stub if line.startswith("from ")]
    return {words[-1]: words[1] for words in imports}


_MODULES = _read_stub()
__all__ = sorted(_MODULES.keys() - {"__version__"})


def _check_packages() -> None:
    """Raise ImportError if another package of the same name shadows or has overwritten one of ours."""
    root = __path__[0].removesuffix("pimono_sdpo")
    for name in ("processors", "rewards", "cards"):
        spec = next(filter(None, (finder.find_spec(name, None) for finder in sys.meta_path)), None)
        file = spec.origin if spec else None
        if file:
            with open(file, encoding="utf-8") as source:  # noqa: PTH123
                if "pimono_sdpo" in source.read():
                    continue
        if file and not file.startswith(root):
            raise ImportError(
                f"`{file}` is imported in the place of the package `{name}` of pimono-sdpo; rename that folder or "
                "run elsewhere."
            )
        raise ImportError(
            f"Another project has replaced or removed the package `{name}` of pimono-sdpo; uninstall that one and "
            "install pimono-sdpo again, or give pimono-sdpo an environment of its own, as `uv tool install` does."
        )


_check_packages()


def __getattr__(name: str) -> object:
    """Import a name of the public API on first use, so that importing this package stays fast."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """List the public names, including those that are not imported yet."""
    return sorted({*globals(), *__all__})
