"""This checkout as the tagged release that the jobs' headers name, and the image that installs it.

The release is a local git repository that git is told to take for the one on the web. Its code is
this checkout's; its dependencies are left out, since the image has them, as images made for
training do. So `uv run` does all it does on the Hub but the download of PyTorch.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

REPO = Path(__file__).parent.parent.parent
ADDRESS = "https://github.com/pimono-sdpo/pimono-sdpo"
TAG = "v0.1.0"
PACKAGES = ("pimono_sdpo", "processors", "rewards", "cards")
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
# A backend of the standard library alone: nothing is to be downloaded.
BACKEND = """
import zipfile
from pathlib import Path

NAME = "pimono_sdpo-{version}"
METADATA = "Metadata-Version: 2.1\\nName: pimono-sdpo\\nVersion: {version}\\nProvides-Extra: train\\n"
WHEEL = "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"


def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = f"{{NAME}}-py3-none-any.whl"
    parts = {{f"{{NAME}}.dist-info/METADATA": METADATA, f"{{NAME}}.dist-info/WHEEL": WHEEL}}
    with zipfile.ZipFile(Path(directory) / name, "w") as wheel:
        for package in {packages}:
            for file in sorted(Path(package).rglob("*")):
                if file.is_file():
                    wheel.write(file)
                    parts[file.as_posix()] = None
        for path, text in list(parts.items()):
            if text is not None:
                wheel.writestr(path, text)
        record = f"{{NAME}}.dist-info/RECORD"
        wheel.writestr(record, "".join(f"{{path}},,\\n" for path in [*parts, record]))
    return name
"""


def sources(folder: Path, version: str = "0.1.0") -> Path:
    """Write the packages with a project file that asks for nothing."""
    unwanted = shutil.ignore_patterns("__pycache__")
    for package in PACKAGES:
        shutil.copytree(REPO / package, folder / package, ignore=unwanted)
    recipes = folder / "pimono_sdpo" / "recipes"
    recipes.mkdir(exist_ok=True)
    for recipe in (REPO / "jobs" / "recipes").glob("*.yaml"):
        shutil.copy(recipe, recipes)
    (folder / "pimono_sdpo" / "__init__.py").write_text(f'__version__ = "{version}"\n')
    project = f'[project]\nname = "pimono-sdpo"\nversion = "{version}"\n'
    project += "[project.optional-dependencies]\ntrain = []\n"
    (folder / "pyproject.toml").write_text(project + PROJECT)
    (folder / "backend.py").write_text(BACKEND.format(version=version, packages=PACKAGES))
    return folder


def image(folder: Path) -> dict[str, str]:
    """Make the release in `folder`; return the environment of an image that can install it."""
    released = sources(folder / "released")
    author = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "release"], ["tag", TAG]):
        subprocess.run(["git", *author, *command], cwd=released, check=True)
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{released.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": ADDRESS,
        "UV_NO_GITHUB_FAST_PATH": "1",
        # A release of the same name is another one in the next test.
        "UV_CACHE_DIR": str(folder / "uv"),
        "UV_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(
            {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        ),
        "OMP_NUM_THREADS": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
