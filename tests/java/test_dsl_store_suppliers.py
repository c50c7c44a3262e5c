"""With the same DslStoreSuppliers, Java and Penstock write the same outputs and changelogs."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    DslKeyValueParams,
    DslSessionParams,
    DslStoreSuppliers,
    DslWindowParams,
    JoinWindows,
    Materialized,
    RocksDBDslStoreSuppliers,
    Serdes,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
)
from penstock.testing import TopologyTestDriver
from tests.java.conftest import driver_program
from tests.java.handover import ROOT
from tests.java.versions import is_since
from tests.own_stores import OwnRows, OwnSessions, OwnSuppliers, OwnWindows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_since((4, 4)), reason="the interface is that of 4.4"),
]
TEXT = Serdes.string()
TEXTS: dict[str, Any] = {"key_serde": TEXT, "value_serde": TEXT}
MINUTE = 60_000


class Mixed(DslStoreSuppliers):
    """SuppliersProgram's class."""

    def key_value_store(self, params: DslKeyValueParams) -> Any:
        if params.name.startswith("KSTREAM-AGGREGATE"):
            return Stores.lru_map(params.name, 3)
        return Stores.in_memory_key_value_store(params.name)

    def window_store(self, params: DslWindowParams) -> Any:
        sizes = params.retention_ms, params.window_size_ms
        if params.retain_duplicates:
            return Stores.in_memory_window_store(params.name, *sizes, True)
        return Stores.persistent_timestamped_window_store(params.name, *sizes)

    def session_store(self, params: DslSessionParams) -> Any:
        return Stores.in_memory_session_store(params.name, params.retention_ms)


class MixedOwn(Mixed):
    """The same with stores of its own where SuppliersProgram has those in memory."""

    own = OwnSuppliers()

    def key_value_store(self, params: DslKeyValueParams) -> Any:
        chosen = super().key_value_store(params)
        return self.own.key_value_store(params) if chosen.max_entries is None else chosen

    def window_store(self, params: DslWindowParams) -> Any:
        return self.own.window_store(params) if params.retain_duplicates else super().window_store(params)

    def session_store(self, params: DslSessionParams) -> Any:
        return self.own.session_store(params)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Compile the program, and return its command; skips the test where there is no JDK."""
    return driver_program(Path(__file__).with_name("SuppliersProgram.java"), tmp_path_factory.mktemp("classes"))


def topology() -> Any:
    """Return SuppliersProgram's topology."""
    builder = StreamsBuilder()
    left, right = (builder.stream(name, **TEXTS) for name in ("left", "right"))
    grouped = left.group_by_key(**TEXTS)
    grouped.count().to_stream().map_values(str).to("count", **TEXTS)
    windowed = {
        "windows": TimeWindows.of_size_and_grace(MINUTE, MINUTE),
        "sliding": SlidingWindows.of_time_difference_and_grace(MINUTE // 2, MINUTE),
        "sessions": SessionWindows.of_inactivity_gap_and_grace(20_000, MINUTE),
    }
    for name, windows in windowed.items():
        counts: Any = grouped.windowed_by(windows).count()  # type: ignore[call-overload]
        counts.to_stream().map(lambda key, count: (str(key), "null" if count is None else str(count))).to(name, **TEXTS)
    table = builder.table("people", **TEXTS)
    other = builder.table("places", store=Materialized.as_(RocksDBDslStoreSuppliers), **TEXTS)
    table.outer_join(other, lambda one, two: f"{java(one)}+{java(two)}", **TEXTS).to_stream().to("joined", **TEXTS)
    foreign = table.left_join(
        other, lambda one, two: f"{java(one)}@{java(two)}", foreign_key=lambda value: f"key-{value[-1]}", **TEXTS
    )
    foreign.to_stream().to("foreign", **TEXTS)
    left.outer_join(
        right,
        lambda one, two: f"{java(one)}+{java(two)}",
        JoinWindows.of_time_difference_and_grace(MINUTE // 2, MINUTE),
        **TEXTS,
        other_value_serde=TEXT,
    ).to("streams", **TEXTS)
    return builder.build()


def java(value: str | None) -> str:
    """Return what Java writes for a value in a text."""
    return "null" if value is None else value


def commands(seed: int) -> list[str]:
    """Return random records: topic, key, value, timestamp."""
    chance, now = random.Random(seed), 0
    found = []
    for _ in range(300):
        now += chance.choice((0, 100, 3_000, 15_000, 40_000))
        timestamp = max(now - chance.choice((0, 0, 0, 20_000, 100_000)), 0)
        topic = chance.choice(("left", "left", "right", "people", "places"))
        value = "-" if topic in ("people", "places") and chance.random() < 0.2 else f"v{chance.randrange(5)}"
        found.append(f"{topic} key-{chance.randrange(5)} {value} {timestamp}")
    return found


def record(config: Mapping[str, Any], given: list[str]) -> list[str]:
    """Run records in a TopologyTestDriver; return what each has produced, as SuppliersProgram writes it."""
    produced = []
    raw = Serdes.bytes()
    with TopologyTestDriver(topology(), config) as driver:
        for command in given:
            topic, key, value, timestamp = command.split(" ")
            source = driver.create_input_topic(topic, TEXT, TEXT)
            source.pipe_input(key, None if value == "-" else value, int(timestamp))
            for name in sorted(driver.produced_topic_names()):
                for found in driver.create_output_topic(name, raw, raw).read_records_to_list():
                    data = ["null" if part is None else part.hex() for part in (found.key, found.value)]
                    produced.append(f"{name} {data[0]} {data[1]} {found.timestamp}")
    return produced


@pytest.mark.parametrize("cache_bytes", ["0", "1000000"])
def test_the_same_records_are_written(program: list[str], cache_bytes: str, tmp_path: Path) -> None:
    given = commands(3)
    config = {"application.id": "app", "bootstrap.servers": "unused:1", "statestore.cache.max.bytes": cache_bytes}
    properties, records = tmp_path / "properties", tmp_path / "records"
    everything = {**config, "dsl.store.suppliers.class": "SuppliersProgram$Mixed", "state.dir": str(tmp_path / "java")}
    properties.write_text("".join(f"{key}={value}\n" for key, value in everything.items()))
    records.write_text("".join(f"{line}\n" for line in given))
    run = subprocess.run([*program, str(properties), str(records)], capture_output=True, check=True, cwd=ROOT)
    expected = run.stdout.decode().splitlines()
    topics = {line.partition(" ")[0] for line in expected}
    assert {"count", "windows", "sliding", "sessions", "joined", "foreign", "streams"} <= topics
    assert len([topic for topic in topics if topic.endswith("-changelog")]) > 8

    if cache_bytes == "0":  # a cache has the counts that the store below evicts
        assert record(config, given) != expected
    assert record({**config, "dsl.store.suppliers.class": Mixed}, given) == expected
    before = OwnRows.puts, OwnSessions.puts, OwnWindows.puts
    assert record({**config, "dsl.store.suppliers.class": MixedOwn}, given) == expected
    assert all(now > then for now, then in zip((OwnRows.puts, OwnSessions.puts, OwnWindows.puts), before, strict=True))
