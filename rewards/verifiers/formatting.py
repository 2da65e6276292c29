"""Run a repository's formatter on the whole files that a session knows, in the sandbox.

    biome = Formatter.of("biome", Path("settings"))
    predictions(trace.events, trace.cwd, trace.harness, rerun, biome)

| formatter | runs, unless the record names another of its commands | settings |
|---|---|---|
| biome | `biome check --write .` | biome.json, biome.jsonc |
| ruff | `ruff check --fix .` and `ruff format .` | ruff.toml, .ruff.toml, pyproject.toml |

Settings are those that the session has seen, else those of a folder of the caller's, who answers
for the version of the program, too: what it writes differs between versions. Nothing is run where
there are no settings, or the record names another formatter, other options, or single files.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from pimono_sdpo.errors import PimonoError
from pimono_sdpo.replay.commands import parsed
from pimono_sdpo.replay.formatters import Reformatted, kinds_told
from pimono_sdpo.replay.scripts import Step, scripts_in, steps_of
from rewards import sandbox
from rewards.sandbox import Limits
from rewards.verifiers.sandboxed_tools import ENVIRONMENT, program

Name = Literal["biome", "ruff"]
USUAL: dict[Name, tuple[str, ...]] = {
    "biome": ("check --write",),
    "ruff": ("check --fix", "format"),
}
SETTINGS: dict[Name, tuple[str, ...]] = {
    "biome": ("biome.json", "biome.jsonc"),
    "ruff": ("ruff.toml", ".ruff.toml", "pyproject.toml"),
}
LIMITS = Limits(cpu_seconds=20, wall_seconds=120, memory=1 << 30, output=16 << 20, open_files=512)
MAX_BYTES = 32_000_000
# ruff ends with 1 where something is left to mend, biome also where it found no file of its kinds.
_ENDS = (0, 1)
_NAMED = {
    "biome": re.compile(r"\bbiome (check|format|lint)\b([^\n&|;]*)"),
    "ruff": re.compile(r"\bruff (check|format)\b([^\n&|;]*)"),
}
# What it says at its end, with the number of files it has changed.
_SAYS = {
    "biome": re.compile(r"^Checked \d+ files? in \S+\. (?:Fixed (\d+)|No fixes)", re.MULTILINE),
    "ruff": re.compile(r"^(?:(\d+) files? reformatted|\d+ files? left unchanged)", re.MULTILINE),
}
_CHANGES = frozenset({"--write", "--fix", "--apply"})
_NO_CHANGE = frozenset({"--error-on-warnings", "--no-errors-on-unmatched", "--no-cache"})
# How runners of scripts show what they run.
_ECHO = re.compile(r"^[>$] .*", re.MULTILINE)
# What they run is not seen in the line.
_HIDE = frozenset(
    """npm pnpm yarn bun npx bunx make just task turbo nx lerna git pre-commit husky uv poetry hatch
    tox nox bash sh node""".split()
)


@dataclass(frozen=True)
class Formatter:
    """A formatter with a repository's settings, a text by its path; picklable."""

    name: Name
    path: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: Name, folder: Path | None = None, path: str | None = None) -> Self:
        """Take a formatter that is on the PATH, or at `path`, with the settings of a folder.

        Raises PimonoError when the program or its settings are not there.
        """
        found = path or program(name)
        if not found or not Path(found).is_file():
            raise PimonoError(f"`{found or name}` is not there; install {name} or leave it out.")
        settings = (
            {}
            if folder is None
            else {
                path.relative_to(folder).as_posix(): path.read_text()
                for name_of in (*SETTINGS[name], "**/package.json")
                for path in sorted(folder.glob(name_of))
            }
        )
        if folder and not set(settings) & set(SETTINGS[name]):
            wanted = ", ".join(SETTINGS[name])
            raise PimonoError(f"{folder} has no settings of {name}; it reads {wanted}.")
        return cls(name, found, settings)

    @property
    def kinds(self) -> frozenset[str]:
        """Suffixes of the files that it touches."""
        return frozenset(kinds_told(f"{self.name} check"))

    def __call__(
        self, texts: Mapping[str, str], command: str, output: str, cwd: str
    ) -> Reformatted | None:
        """Run it on whole texts; raises SandboxError when no sandbox holds."""
        settings = {**self.settings, **{k: v for k, v in texts.items() if self._is_setting(k)}}
        steps = steps_of(command, scripts_in(settings), cwd)
        runs = self._runs(command, output) if steps is None else self._runs_in(steps)
        if runs == []:
            return Reformatted({}, False, 0)
        own = {name: text for name, text in settings.items() if name in SETTINGS[self.name]}
        after = self._run(runs, own, texts) if runs and own else None
        if runs is None or after is None:
            return None
        has_run, fixed = None, None
        said = _SAYS[self.name].search(output)
        if steps is not None and _is_first(steps, self.name) and said:
            has_run = True
            if _is_from_start(command) and len(runs) == 1:
                fixed = int(said[1] or 0)
        return Reformatted(after, has_run, fixed)

    def _run(
        self, runs: Sequence[str], settings: Mapping[str, str], texts: Mapping[str, str]
    ) -> dict[str, str] | None:
        mine = {name: text for name, text in texts.items() if self._touches(name)}
        if sum(map(len, mine.values())) > MAX_BYTES:
            return None
        after = {**settings, **mine}
        for run in runs:
            ran = sandbox.run(
                [self.path, *run.split(), "."],
                files=after,
                limits=LIMITS,
                read=[self.path],
                env=ENVIRONMENT | {"RUFF_NO_CACHE": "true"},
                collect=list(after),
            )
            if ran.exit_code not in _ENDS or ran.stopped or len(ran.files) != len(after):
                return None
            after = {name: content.decode() for name, content in ran.files.items()}
        return {name: after[name] for name in mine if after[name] != mine[name]}

    def _touches(self, name: str) -> bool:
        return name.rpartition(".")[2].lower() in self.kinds and ".." not in name.split("/")

    def _is_setting(self, name: str) -> bool:
        return name in SETTINGS[self.name] or name.rpartition("/")[2] == "package.json"

    def _runs_in(self, steps: Sequence[Step]) -> list[str] | None:
        """Return the commands of the formatter that ran; None where that is not to be told."""
        runs: list[str] = []
        for folder, stage in steps:
            text = " ".join((stage.program, *stage.arguments))
            found = _NAMED[self.name].search(text)
            run = self._run_of(*found.groups()) if found else ""
            if run and not folder:
                runs.append(run)
                continue
            # What comes after it finds nothing to do, unless it is another formatter.
            hides = run is None or bool(run) or stage.program in _HIDE
            if (hides and not runs) or (not found and kinds_told(text)):
                return None
        return list(dict.fromkeys(runs))

    def _runs(self, command: str, output: str) -> list[str] | None:
        """Return the commands that the record names, else the usual ones."""
        recorded = "\n".join([command, *_ECHO.findall(output)])
        if kinds_told(_NAMED[self.name].sub("", recorded)):
            return None
        named = [self._run_of(*found) for found in _NAMED[self.name].findall(recorded)]
        runs = [run for run in named if run]
        return None if None in named else list(dict.fromkeys(runs)) or list(USUAL[self.name])

    def _run_of(self, subcommand: str, options: str) -> str | None:
        """Return a command as it is run again, "" where it changes nothing, None where unknown."""
        words = [word for word in options.split() if word not in _NO_CHANGE]
        if subcommand != "format" and not set(words) & _CHANGES:
            return ""
        if set(words) - {*_CHANGES, "."}:
            return None
        return " ".join([subcommand, *(word for word in words if word != ".")])


def _is_first(steps: Sequence[Step], name: Name) -> bool:
    """Tell whether nothing that could fail has run before the formatter."""
    programs = [step.stage for step in steps if step.stage.role != "quiet"]
    return bool(programs) and programs[0].program == name


def _is_from_start(command: str) -> bool:
    """Tell whether the record has the beginning of what a command printed."""
    last = parsed(command)[-1:]
    return all(stage.program == "head" for one in last for stage in one.stages[1:])
