"""The fixture `loopback_hub`: a fresh Hub for each test, at one address for all of them."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.loopback_hub.forked import Forked
from tests.loopback_hub.server import LoopbackHub, address, loopback
from tests.loopback_hub.spaces import Edge


@pytest.fixture(scope="session")
def hub_socket() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture(scope="session")
def hub_forks(hub_socket: socket.socket) -> Iterator[Callable[[tuple[str, ...], bool], Forked]]:
    """What has been imported once for all clients, at the same address and below their folders."""
    with ExitStack() as running:

        @cache
        def forked(modules: tuple[str, ...], xet: bool) -> Forked:
            env = LoopbackHub(address(hub_socket)).env(Path(), token=None, xet=xet)
            started = Forked(modules, env)
            running.callback(started.close)
            return started

        yield forked


@pytest.fixture
def loopback_hub(
    hub_socket: socket.socket, hub_forks: Callable[[tuple[str, ...], bool], Forked]
) -> Iterator[LoopbackHub]:
    with loopback(hub_socket.dup()) as hub:
        hub.forks = hub_forks
        yield hub


@pytest.fixture
def hub_with_apps(loopback_hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackHub]:
    """A Hub whose Spaces run their apps."""
    loopback_hub.edge = Edge(loopback_hub.store, tmp_path_factory.mktemp("edge"))
    yield loopback_hub
    loopback_hub.edge.close()
