"""The fixture `chat_server`: a fresh server for each test."""

from collections.abc import Iterator

import pytest

from tests.chat_server.server import ChatServer, serve_chat


@pytest.fixture
def chat_server() -> Iterator[ChatServer]:
    with serve_chat() as server:
        yield server
