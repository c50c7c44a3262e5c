"""Interactive queries v2 (KIP-796) on Java's TopologyTestDriver and on Penstock's: the same results and failures."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    KeyQuery,
    Materialized,
    MultiVersionedKeyQuery,
    Query,
    QueryResult,
    RangeQuery,
    Record,
    Serdes,
    SessionWindows,
    Stores,
    StreamsBuilder,
    TimestampedKeyQuery,
    TimestampedKeyWithHeadersQuery,
    TimestampedRangeQuery,
    TimestampedRangeWithHeadersQuery,
    TimestampedWindowKeyWithHeadersQuery,
    TimestampedWindowRangeWithHeadersQuery,
    TimeWindows,
    ValueAndTimestamp,
    VersionedKeyQuery,
    VersionedRecord,
    Windowed,
    WindowKeyQuery,
    WindowRangeQuery,
)
from penstock.testing import TopologyTestDriver
from tests.java.conftest import driver_program
from tests.java.handover import ROOT
from tests.java.versions import is_since

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_since((4, 4)), reason="this version of Kafka Streams has no queries of headers"),
]
#: key value timestamp; null deletes.
RECORDS = ["a one 0", "b two 3", "a three 12", "c four 13", "a null 15", "a five 18", "b six 21", "a seven 40"]
DAY_MS = 86_400_000
STORES = ("counts", "windows", "sessions", "versions")


def queries() -> Iterator[Query[Any]]:
    """Yield StateQueriesProgram's queries, in its order."""
    for key in "abx":
        versions = MultiVersionedKeyQuery[str, Any].with_key(key)
        yield KeyQuery.with_key(key)
        yield KeyQuery.with_key(key).skip_cache()
        yield TimestampedKeyQuery.with_key(key)
        yield TimestampedKeyWithHeadersQuery.with_key(key)
        yield WindowKeyQuery.with_key_and_window_start_range(key, 0, 20)
        yield TimestampedWindowKeyWithHeadersQuery.with_key_and_window_start_range(key, 0, 20)
        yield WindowRangeQuery.with_key(key)
        yield VersionedKeyQuery.with_key(key)
        yield VersionedKeyQuery.with_key(key).as_of(14)
        yield VersionedKeyQuery.with_key(key).as_of(0)
        yield versions
        yield versions.with_ascending_timestamps()
        yield versions.from_time(12).to_time(20).with_descending_timestamps()
    yield RangeQuery.with_range("a", "b")
    yield RangeQuery.with_lower_bound("b")
    yield RangeQuery.with_upper_bound("b").with_descending_keys()
    yield RangeQuery.with_no_bounds().with_ascending_keys()
    yield TimestampedRangeQuery.with_no_bounds().with_descending_keys()
    yield TimestampedRangeWithHeadersQuery.with_range("a", "b").with_descending_keys()
    yield WindowRangeQuery.with_window_start_range(0, 20)
    yield TimestampedWindowRangeWithHeadersQuery.with_window_start_range(0, 20)


def shown(value: Any) -> str:
    """Return a result as StateQueriesProgram writes it."""
    match value:
        case QueryResult():
            return shown(value.result) if value.failure_reason is None else value.failure_reason.name
        case Record():
            headers = ", ".join(f"{name}:{(data or b'').decode()}" for name, data in value.headers or ())
            return f"{shown(value.key)}={value.value}@{value.timestamp}[{headers}]"
        case VersionedRecord():
            return f"{value.value}@{value.timestamp}..{'' if value.valid_to is None else value.valid_to}"
        case ValueAndTimestamp():
            return f"{value.value}@{value.timestamp}"
        case Windowed():
            return f"{value.key}/{value.start}-{value.end}"
        case list():
            return f"[{', '.join(map(shown, value))}]"
        case (key, row):
            return f"{shown(key)}={shown(row)}"
    return "null" if value is None else str(value)


def of_penstock(store_format: str) -> Iterator[str]:
    """Yield what StateQueriesProgram writes."""
    text: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
    builder = StreamsBuilder()
    grouped = builder.stream("in", **text).group_by_key()
    grouped.count(store="counts")
    grouped.windowed_by(TimeWindows.of_size_and_grace(10, DAY_MS)).count(store="windows")
    grouped.windowed_by(SessionWindows.of_inactivity_gap_and_grace(5, DAY_MS)).count(store="sessions")
    versions = Stores.persistent_versioned_key_value_store("versions", 3_600_000)
    builder.table("versioned", store=Materialized(versions), **text)
    with TopologyTestDriver(builder.build(), {"application.id": "app", "dsl.store.format": store_format}) as driver:
        for topic in ("in", "versioned"):
            made = driver.create_input_topic(topic)
            for key, value, timestamp in (line.split() for line in RECORDS):
                made.pipe_input(key, None if value == "null" else value, int(timestamp))
        for query in queries():
            for store in STORES:
                yield f"{type(query).__name__} {store} {shown(driver.get_state_store(store).query(query))}"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Compile the program, and return its command; skips the test where there is no JDK."""
    return driver_program(Path(__file__).with_name("StateQueriesProgram.java"), tmp_path_factory.mktemp("classes"))


@pytest.mark.parametrize("store_format", ["DEFAULT", "HEADERS"])
def test_queries_have_the_same_results_as_in_java(program: list[str], store_format: str, tmp_path: Path) -> None:
    file = tmp_path / "records"
    file.write_text("".join(f"{line}\n" for line in RECORDS))
    run = subprocess.run([*program, store_format, str(file)], capture_output=True, check=True, cwd=ROOT)
    assert list(of_penstock(store_format)) == run.stdout.decode().splitlines()
