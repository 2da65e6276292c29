"""The fixture `loopback_hub`: a fresh Hub for each test."""

from collections.abc import Iterator

import pytest

from tests.loopback_hub.server import LoopbackHub, loopback


@pytest.fixture
def loopback_hub() -> Iterator[LoopbackHub]:
    with loopback() as hub:
        yield hub
