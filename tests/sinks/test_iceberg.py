"""What is particular to Iceberg tables: conditional commits, snapshots of other writers, and the columns."""

from __future__ import annotations

import datetime
import decimal
import gc
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from typing_extensions import override

from penstock import Serdes, StreamsBuilder
from penstock.sinks import IcebergSink, SinkContext, SinkFencedError, SinkRecord, SinkWriter
from penstock.testing import TopologyTestDriver
from penstock.topology.errors import StreamsError, TopologyError
from penstock.topology.records import TopicPartition
from tests.sinks.iceberg_tables import rows_of, sql_catalog
from tests.sinks.open_files import open_files

CATALOG, TABLE = "lake", "shop.orders"
FIRST = TopicPartition("in", 0)
NAME = uuid.UUID(int=1)


@dataclass
class Order:
    """A row."""

    id: int
    item: str | None = None


@dataclass
class Everything:
    """A value of each type."""

    flag: bool = True
    whole: int = 7
    real: float = 0.5
    exact: decimal.Decimal = decimal.Decimal("1.10")
    text: str = "tea"
    raw: bytes = b"\0"
    at: datetime.datetime = datetime.datetime(2026, 1, 1, 12)
    day: datetime.date = datetime.date(2026, 1, 2)
    hour: datetime.time = datetime.time(13, 30)
    name: uuid.UUID = NAME
    tags: list[str] = field(default_factory=lambda: ["a"])


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    return sql_catalog(tmp_path)


Opened = Callable[..., SinkWriter]


@pytest.fixture
def catalog(properties: dict[str, str]) -> Iterator[Catalog]:
    with load_catalog(CATALOG, **properties) as catalog:
        yield catalog


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Open writers of sinks, and close them at the end."""
    with ExitStack() as writers:

        def open_writer(sink: IcebergSink, serde: Any = None) -> SinkWriter:
            context = SinkContext("application", "node", Serdes.string(), serde or Serdes.json(Order))
            return writers.enter_context(closing(sink.open(context)))

        yield open_writer


def orders(*numbers: int) -> list[SinkRecord]:
    return [SinkRecord("key", Order(number), 0, None) for number in numbers]


def written(properties: dict[str, str]) -> list[int]:
    return sorted(row["id"] for row in rows_of(CATALOG, TABLE, properties))


class Overtaken(IcebergSink):
    """Lets another commit come between reading the table and a commit."""

    between: Callable[[], object] | None = None

    @override
    def load(self, catalog: Catalog) -> Table | None:
        found = super().load(catalog)
        between, self.between = self.between, None
        if between is not None:
            between()
        return found


def test_a_commit_that_a_new_owner_has_overtaken_is_not_repeated(properties: dict[str, str], opened: Opened) -> None:
    sink = Overtaken(CATALOG, TABLE, properties=properties)
    zombie, owner = opened(sink), opened(IcebergSink(CATALOG, TABLE, properties=properties))
    zombie.fence({FIRST: ""})
    zombie.write(orders(1), {FIRST: 1})
    sink.between = lambda: owner.fence({FIRST: ""})
    with pytest.raises(SinkFencedError, match=r"another writer has replaced this one for in-0 in Iceberg table shop"):
        zombie.write(orders(2), {FIRST: 2})
    owner.write(orders(3), {FIRST: 2})
    assert written(properties) == [1, 3]


def test_a_commit_that_other_writers_have_overtaken_is_repeated(
    properties: dict[str, str], opened: Opened, catalog: Catalog
) -> None:
    sink = Overtaken(CATALOG, TABLE, properties=properties)
    writer = opened(sink)
    writer.fence({FIRST: ""})
    table = catalog.load_table(TABLE)
    sink.between = lambda: table.append(pa.table({"id": [100], "item": ["by hand"]}, rows_schema(table)))
    writer.write(orders(1), {FIRST: 1})
    assert written(properties) == [1, 100]
    assert dict(opened(sink).fence({FIRST: ""})) == {FIRST: (1, "")}


def rows_schema(table: Table) -> pa.Schema:
    return pa.schema([pa.field(each.name, each.type, each.nullable) for each in table.schema().as_arrow()])


def test_tasks_commit_side_by_side(properties: dict[str, str], opened: Opened) -> None:
    opened(IcebergSink(CATALOG, TABLE, properties=properties)).close()

    def task(partition: int) -> None:
        writer = opened(IcebergSink(CATALOG, TABLE, properties=properties))
        mine = TopicPartition("in", partition)
        writer.fence({mine: ""})
        for number in range(5):
            writer.write(orders(partition * 100 + number), {mine: number + 1})
        writer.close()

    with ThreadPoolExecutor(3) as tasks:
        list(tasks.map(task, range(3)))
    assert written(properties) == sorted(partition * 100 + number for partition in range(3) for number in range(5))
    stored = IcebergSink(CATALOG, TABLE, properties=properties).stored("application")
    assert [(sink, partition.partition, offset) for sink, partition, offset in stored] == [
        ("node", partition, 5) for partition in range(3)
    ]


def test_without_the_snapshots_of_the_offsets_nothing_is_written(
    properties: dict[str, str], opened: Opened, catalog: Catalog
) -> None:
    sink = IcebergSink(CATALOG, TABLE, properties=properties)
    writer = opened(sink)
    writer.fence({FIRST: ""})
    writer.write(orders(1), {FIRST: 1})
    table = catalog.load_table(TABLE)
    table.append(pa.table({"id": [100], "item": ["by hand"]}, rows_schema(table)))
    ours = [snapshot.snapshot_id for snapshot in table.snapshots()[:-1]]
    table.maintenance.expire_snapshots().by_ids(ours).commit()
    with pytest.raises(StreamsError, match=r"No snapshot of Iceberg table shop\.orders of catalog lake has offsets"):
        opened(sink).fence({FIRST: ""})
    assert written(properties) == [1, 100]


def test_the_types_of_columns(properties: dict[str, str], opened: Opened) -> None:
    sink = IcebergSink(CATALOG, "shop.all", key="user", properties=properties)
    writer = opened(sink, Serdes.json(Everything))
    writer.fence({FIRST: ""})
    writer.write([SinkRecord("ann", Everything(), 0, None)], {FIRST: 1})
    assert rows_of(CATALOG, "shop.all", properties) == [
        {
            "user": "ann",
            "flag": True,
            "whole": 7,
            "real": 0.5,
            "exact": "1.10",
            "text": "tea",
            "raw": b"\0",
            "at": datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC),
            "day": datetime.date(2026, 1, 2),
            "hour": datetime.time(13, 30),
            "name": str(NAME),
            "tags": '["a"]',
        }
    ]


def test_an_existing_table_is_checked(properties: dict[str, str], opened: Opened, catalog: Catalog) -> None:
    catalog.create_namespace("shop")
    needed = pa.field("due", pa.date32(), nullable=False)
    catalog.create_table(TABLE, pa.schema([pa.field("id", pa.string()), needed]))
    message = (
        "Iceberg table shop.orders of catalog lake does not fit: column id has type .*string, and the records have "
        r"int64; it has no column item \(string\); column due must not be null, and no record has a value for it"
    )
    with pytest.raises(StreamsError, match=message):
        opened(IcebergSink(CATALOG, TABLE, properties=properties))


def test_wrong_arguments(properties: dict[str, str], opened: Opened) -> None:
    with pytest.raises(TopologyError, match=r'has a namespace, as "shop.orders" has; got .orders'):
        IcebergSink(CATALOG, "orders")
    with pytest.raises(StreamsError, match=r"Iceberg table shop\.orders of catalog lake"):
        opened(IcebergSink(CATALOG, TABLE, properties={"type": "no such type"}))


def test_a_topology_writes_it(properties: dict[str, str]) -> None:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.json(Order)).to_sink(
        IcebergSink(CATALOG, TABLE, properties=properties), name="orders-sink"
    )
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in")
        for number in range(5):
            source.pipe_input("ann", Order(number, f"item-{number % 2}"))
    rows = rows_of(CATALOG, TABLE, properties)
    assert Counter(row["item"] for row in rows) == {"item-0": 3, "item-1": 2}


def test_every_catalog_is_closed_where_it_was_opened(
    properties: dict[str, str], tmp_path: Path, opened: Opened
) -> None:
    sink = IcebergSink(CATALOG, TABLE, properties=properties)
    writer = opened(sink)
    writer.fence({FIRST: ""})
    writer.write(orders(1), {FIRST: 1})
    writer.close()
    assert open_files(tmp_path) == []
    gc.disable()  # it would close what is forgotten
    try:
        assert len(sink.stored("application")) == 1
        sink.forget("application")
        with pytest.raises(StreamsError, match="does not fit") as refused:
            opened(sink, Serdes.json(Everything))
        assert open_files(tmp_path) == [], refused
    finally:
        gc.enable()
