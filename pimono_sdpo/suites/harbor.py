"""Convert Harbor tasks whose tests run without a container image to tasks of a suite.

Layout: https://www.harborframework.com/docs/tasks. The files that the Dockerfile copies become the repo. Paths in
the tests become relative, and the tests run from the root of the repo. A task is only kept if, in the sandbox, its
tests fail on the original files and pass after the task's own solution.
"""

import re
import shlex
import shutil
import tomllib
from pathlib import Path, PurePosixPath

from pimono_sdpo.agent.task_tests import run_tests
from pimono_sdpo.errors import SourceError
from pimono_sdpo.suites.suite import TaskRow, files_of, make_task_id

TESTS, SOLUTION = "harbor_tests", "harbor_solution"
MAX_SECONDS = 120.0
# Lines of test.sh that set up and run pytest, and write the reward.
BOILERPLATE = re.compile(
    r"""(?: set|export|source|\.|if|then|else|fi|echo|exit|mkdir|cd|apt-get|curl|uv|uvx|pip|pip3
        | pytest|\w+=\S*|python3? -m (?:pip|venv|pytest)|\[ )(?:\s.*|;.*)?$""",
    re.VERBOSE,
)


class Refused(Exception):
    """A task that cannot be converted; the message says why."""


def find_tasks(root: Path) -> list[Path]:
    """Return the task folders at or below a folder."""
    return sorted(path.parent for path in root.rglob("task.toml") if (path.parent / "instruction.md").is_file())


def read_tasks(root: Path, out: Path) -> tuple[list[TaskRow], dict[str, str]]:
    """Return the tasks, whose repos are written below `out`, and the reasons why others were refused, by name."""
    rows, refused = list[TaskRow](), dict[str, str]()
    for folder in find_tasks(root):
        name = make_task_id(folder.resolve().name)
        repo = out / "repos" / name
        if repo.exists() or name in refused:
            raise SourceError(f"`{root}` has the task `{name}` twice; task ids must be unique.")
        try:
            rows.append(_read_task(folder, name, repo))
        except Refused as reason:
            refused[name] = str(reason)
            shutil.rmtree(repo, ignore_errors=True)
        except (OSError, ValueError) as error:
            raise SourceError(f"The task `{folder}` cannot be read ({error}).") from error
    if not rows:
        why = "; ".join(f"{name}: {reason}" for name, reason in list(refused.items())[:5])
        raise SourceError(f"None of the {len(refused)} tasks of `{root}` can be used ({why}).")
    return rows, refused


def _read_task(folder: Path, name: str, repo: Path) -> TaskRow:
    config = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
    workdir = _copy_files(folder / "environment", repo)
    test_files = _copy_tests(folder / "tests", workdir, repo)
    seconds = float(config.get("verifier", {}).get("timeout_sec", MAX_SECONDS))
    metadata = {"source": "harbor", "group": name, "test_files": [f"/{TESTS}"], "seconds": min(seconds, MAX_SECONDS)}
    if category := config.get("metadata", {}).get("category"):
        metadata["category"] = category
    goal = (folder / "instruction.md").read_text(encoding="utf-8").strip()
    task: TaskRow = {
        "task_id": name,
        "suite": "harbor",
        "repo": str(repo.resolve()),
        "goal": f"{goal}\n\n(The folder `{workdir}` is the root of the repository.)",
        "test_cmd": f"python -m pytest -q {' '.join(test_files)}",
        "hide": [f"/{TESTS}"],
        "metadata": metadata,
        "verifier_spec": None,
        "split": None,
    }
    _check_tests(task, folder / "solution", workdir)
    return task


def _copy_files(environment: Path, repo: Path) -> str:
    """Copy the files that the Dockerfile copies into its WORKDIR to the repo, and return the WORKDIR."""
    repo.mkdir(parents=True)
    dockerfile = environment / "Dockerfile"
    if not dockerfile.is_file():
        raise Refused("it has no Dockerfile that says where its files go")
    workdir = PurePosixPath("/")
    for line in _join_lines(dockerfile.read_text(encoding="utf-8")):
        kind, _, rest = line.partition(" ")
        if kind.upper() == "WORKDIR":
            workdir /= rest.strip()
        # Skip files of another image or from outside the folder, and lists in JSON.
        if kind.upper() in {"COPY", "ADD"} and not rest.lstrip().startswith(("[", "--")) and ".." not in rest:
            *sources, target = shlex.split(rest)
            end = "/" if target.endswith(("/", ".")) or len(sources) > 1 else ""
            _copy(environment, sources, workdir, f"{workdir / target}{end}", repo)
    if workdir == PurePosixPath("/"):
        raise Refused("its Dockerfile names no WORKDIR")
    return str(workdir)


def _copy(environment: Path, sources: list[str], workdir: PurePosixPath, target: str, repo: Path) -> None:
    """Copy into WORKDIR as Docker does: a folder by its content, a file to a name or into a folder."""
    target_path = PurePosixPath(target)
    if not target_path.is_relative_to(workdir) or ".." in target_path.parts:
        return
    destination = repo / target_path.relative_to(workdir)
    for source in sources:
        for path in sorted(environment.glob(source.strip("/"))) if source != "." else [environment]:
            if path.is_dir():
                ignore = shutil.ignore_patterns("Dockerfile", ".dockerignore")
                shutil.copytree(path, destination, dirs_exist_ok=True, ignore=ignore)
            else:
                file = destination / path.name if target.endswith("/") else destination
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, file)


def _join_lines(text: str) -> list[str]:
    """Return the lines without comments; a line that ends with a backslash is joined with the next."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"[ \t]*\\\n[ \t]*", " ", "\n".join(lines))
    return [line.strip() for line in joined.splitlines() if line.strip()]


def _copy_tests(tests: Path, workdir: str, repo: Path) -> list[str]:
    """Copy the tests with relative paths, and return the files that pytest runs."""
    script = tests / "test.sh"
    names = {path.name for path in tests.glob("test_*.py")}
    if script.is_file():
        lines = _join_lines(script.read_text(encoding="utf-8"))
        if others := [line for line in lines if not BOILERPLATE.match(line)]:
            raise Refused(f"its test.sh does more than run pytest: `{others[0][:80]}`")
        mentioned = {name for line in lines for name in re.findall(r"[\w/$.{}-]*?([\w-]+\.py)\b", line)}
        names = mentioned & names if any("pytest" in line for line in lines) else set()
    if not names:
        raise Refused("its tests are not run by pytest")
    shutil.copytree(tests, repo / TESTS, ignore=shutil.ignore_patterns("test.sh"))
    for path in sorted((repo / TESTS).rglob("*.py")):
        path.write_text(_make_relative(path.read_text(encoding="utf-8"), workdir), encoding="utf-8")
    return sorted(f"{TESTS}/{name}" for name in names)


def _make_relative(text: str, workdir: str) -> str:
    for folder, replacement in ((workdir, ""), ("/tests", TESTS)):
        text = re.sub(rf"(?<![\w./]){re.escape(folder)}/", f"{replacement}/" if replacement else "", text)
        text = re.sub(rf"(?<![\w./]){re.escape(folder)}(?![\w/.-])", replacement or ".", text)
    return text


def _check_tests(task: TaskRow, solution: Path, workdir: str) -> None:
    """Refuse a task whose tests cannot run, pass on the original files, or fail after its own solution."""
    if not (solution / "solve.sh").is_file():
        raise Refused("it has no solution/solve.sh to try its tests with")
    before = run_tests(task, {})
    if before.ok is None:
        raise Refused(f"its tests cannot run ({before.error})")
    if before.ok:
        raise Refused("its tests pass before anything is done")
    written = {
        f"{SOLUTION}/{path}": _make_relative(text, workdir).replace("/solution/", f"{SOLUTION}/").encode()
        for path, text in files_of(solution).items()
    }
    solved = f"bash {SOLUTION}/solve.sh >/dev/null 2>&1; {task['test_cmd']}"
    if not run_tests({**task, "test_cmd": solved}, written).ok:
        raise Refused("its tests fail after its own solution, outside of its image")
