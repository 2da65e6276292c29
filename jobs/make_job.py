"""Write each script of jobs/ as one file with the package inside, for `hf jobs uv run FILE_OR_URL`.

    python jobs/make_job.py [--out dist]

A file has the header of its script, with the packages that this project needs, pinned as in
requirements.txt, and the wheel as text. It needs no other file, so it can be a gist or a raw URL.
"""

import argparse
import base64
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
ROOT = HERE.parent
SCRIPTS = ("train_sdpo", "train_sft", "train_dpo")
WIDTH = 119
# Unpacked, since the package reads files beside its modules; PYTHONPATH is for the processes that it starts.
UNPACK = """
import base64
import io
import os
import sys
import tempfile
import zipfile

FOLDER = tempfile.mkdtemp(prefix="pimono-sdpo-")
zipfile.ZipFile(io.BytesIO(base64.b64decode("".join(WHEEL.split())))).extractall(FOLDER)
sys.path.insert(0, FOLDER)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [FOLDER, os.environ.get("PYTHONPATH")]))
"""


def list_pins() -> list[str]:
    """Return the packages of the project and its extras `train` and `verify`, with the locked versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [
        re.split(r"[\[<>=!~ ]", one)[0] for one in (*project["dependencies"], *extras["train"], *extras["verify"])
    ]
    lines = (HERE / "requirements.txt").read_text().splitlines()
    locked = {line.partition("==")[0].strip(): line.split()[0] for line in lines if "==" in line and line[0] != "#"}
    return sorted(locked[re.sub(r"[-_.]+", "-", name).lower()] for name in needed)


def build_wheel(folder: Path) -> bytes:
    """Return the wheel of this checkout."""
    command = [sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--out-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel.read_bytes()


def write_job(name: str, wheel: bytes, out: Path) -> Path:
    """Write the file of a script and return its path."""
    _, header, code = (HERE / f"{name}.py").read_text().split("# ///", 2)
    pins = "".join(f'#     "{pin}",\n' for pin in list_pins())
    header = re.sub(r"(?s)# dependencies = \[.*?# \]\n", f"# dependencies = [\n{pins}# ]\n", header)
    encoded = base64.b64encode(wheel).decode()
    lines = "\n".join(encoded[at : at + WIDTH] for at in range(0, len(encoded), WIDTH))
    doc, rest = re.split(r'(?<=\n""")\n', code.replace('\n"""', '\n"""', 1), maxsplit=1)
    path = out / f"{name}.py"
    path.write_text(f'# ///{header}# ///{doc}\n\nWHEEL = """\n{lines}\n"""\n{UNPACK}{rest}')
    return path


def main() -> None:
    """Write the files and print their sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder to write to")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder))
    for name in SCRIPTS:
        path = write_job(name, wheel, out)
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
