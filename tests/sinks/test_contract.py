"""The contract of sinks holds for Penstock's."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from typing_extensions import override

from penstock.sinks import IcebergSink, PostgresSink, Sink, SqliteSink
from penstock.testing.sink_contract import Row, SinkContract
from penstock.topology.errors import StreamsError
from tests.postgres_server import PostgresDatabase
from tests.sinks.iceberg_tables import rows_of, sql_catalog
from tests.sinks.open_files import open_files


class TestSqliteSink(SinkContract):
    """SQLite."""

    refused = Row(2**63, "beyond SQLite's integers")

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "rows.db"

    @override
    def make_sink(self, mode: str) -> Sink:
        return SqliteSink(self.path, "rows", mode)  # type: ignore[arg-type]

    @override
    def rows(self) -> list[tuple[int, str]]:
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute("SELECT number, text FROM rows").fetchall()
        finally:
            connection.close()


class TestPostgresSink(SinkContract):
    """PostgreSQL."""

    refused = Row(2**63, "beyond bigint")

    @pytest.fixture(autouse=True)
    def place(self, database: PostgresDatabase) -> None:
        self.database = database

    @override
    def make_sink(self, mode: str) -> Sink:
        return PostgresSink(self.database.dsn, "rows", mode)  # type: ignore[arg-type]

    @override
    def rows(self) -> list[tuple[int, str]]:
        return self.database.rows("SELECT number, text FROM rows")


class TestIcebergSink(SinkContract):
    """Apache Iceberg, with a catalog in a file of SQLite."""

    refused = Row(2**63, "beyond long")
    upserts = False

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.properties = sql_catalog(tmp_path)

    @override
    def make_sink(self, mode: str) -> Sink:
        return IcebergSink("contract", "shop.rows", properties=self.properties)

    @override
    def rows(self) -> list[tuple[int, str]]:
        return [(row["number"], row["text"]) for row in rows_of("contract", "shop.rows", self.properties)]


def test_a_connection_that_cannot_be_used_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(StreamsError, match="file is not a database") as refused:
        SqliteSink(path, "rows").stored("application")
    assert open_files(tmp_path) == [], refused
