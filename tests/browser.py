"""The fixture `browser`: Debian's Chromium, without a window and without the network."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on the PATH; install Debian's package")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        # Chromium refuses its own sandbox to root.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        running = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield running
        running.close()


class Opened:
    """A page in a fresh profile, what it asked for and what it complained of."""

    def __init__(self, browser: Any, address: str, scheme: str = "light") -> None:
        self.asked: list[str] = []
        self.problems: list[str] = []
        self.page = browser.new_page(color_scheme=scheme, viewport={"width": 1300, "height": 1000})
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda said: self.problems.append(said.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.goto(address)

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()


def open_file(browser: Any, path: Path, scheme: str = "light") -> Opened:
    """Open one of our pages and wait until it is drawn."""
    opened = Opened(browser, path.resolve().as_uri(), scheme)
    opened.page.wait_for_selector("body[data-ready]")
    return opened
