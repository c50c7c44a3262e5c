from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from penstock.clients.network_settings import NetworkSettings, network_settings
from tests.clients.application import Application, Topics
from tests.clients.streams_group_stage import Group, quick_groups

MakeApplication = Callable[..., Application]
MakeTopic = Callable[..., str]


class Closable(Protocol):
    """An object with connections."""

    def close(self) -> None:
        """Close its connections."""


C = TypeVar("C", bound=Closable)


class Open(Protocol):
    """Opens clients of a kind: ``opened(Cluster, bootstrap_servers)``."""

    def __call__(self, kind: Callable[[NetworkSettings], C], bootstrap_servers: str) -> C: ...


@pytest.fixture
def run(tmp_path: Path, application_id: str) -> Iterator[MakeApplication]:
    """Make applications: ``run("copy", source, sink, bootstrap_servers=…, **config)``; they are killed at the end."""
    made: list[Application] = []

    def make(
        program: str, source: str, sink: str, bootstrap_servers: str, module: str = "penstock.cli", **config: object
    ) -> Application:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        settings["bootstrap.servers"] = bootstrap_servers
        made.append(Application(tmp_path, program, application_id, source, sink, settings, module))
        return made[-1].start()

    yield make
    for application in made:
        application.kill()


@pytest.fixture
def opened() -> Iterator[Open]:
    """Make clients that are closed at the end."""
    made: list[Closable] = []

    def open_one(kind: Callable[[NetworkSettings], C], bootstrap_servers: str) -> C:
        client = kind(network_settings({"bootstrap.servers": bootstrap_servers, "client.id": "test"}))
        made.append(client)
        return client

    yield open_one
    for each in made:
        each.close()


@pytest.fixture
def topics(bootstrap_servers: str) -> Topics:
    """Topics of the broker that the run shares."""
    return Topics(bootstrap_servers)


@pytest.fixture(scope="module")
def quick_servers(bootstrap_servers: str) -> str:
    """The broker of the run, with streams groups that are quick."""
    return quick_groups(bootstrap_servers)


@pytest.fixture
def group(unique_name: Callable[[str], str], quick_servers: str) -> Iterator[Group]:
    """A streams group, whose members are closed at the end."""
    made = Group(unique_name("group"), quick_servers)
    yield made
    made.close()
