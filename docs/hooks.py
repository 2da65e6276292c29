"""The address of the project on the documentation site: that of pyproject.toml, if any."""

import tomllib
from pathlib import Path
from typing import Any


def on_config(config: Any) -> None:
    """Link the site to the repository."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    config.repo_url = project["project"]["urls"].get("Repository")
