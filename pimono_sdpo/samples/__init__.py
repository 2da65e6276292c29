"""Hand-written sample sessions.

sessions/*.jsonl   invented Pi sessions (versions 1 and 3), some broken on purpose
expected.json      for each file kept, drop_reason and categories, as labelled by hand
"""

import shutil
from pathlib import Path

SAMPLE_SESSIONS = Path(__file__).parent / "sessions"


def write_samples(folder: Path) -> list[Path]:
    """Copy the samples into a folder, and return the files."""
    return [Path(shutil.copyfile(path, folder / path.name)) for path in sorted(SAMPLE_SESSIONS.glob("*.jsonl"))]
