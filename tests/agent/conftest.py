"""No settings or keys of whoever runs the tests."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path / "config"))
    for name in ("LLM_API_KEY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
