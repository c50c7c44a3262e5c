"""A PostgreSQL for all tests of this folder, with a database for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres_server import PostgresDatabase, PostgresServer, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[PostgresDatabase]:
    with postgres.database() as database:
        yield database
