"""The stores of a topology and their changelogs: those that a handover moves, and those that it refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.statestore.buffers.time_ordered_buffers import HEADERS, changelog_value
from penstock.statestore.rows import dated_rows
from penstock.statestore.stores.dated_stores import dated_record
from penstock.statestore.stores.headers_format import HeadersFormat
from penstock.statestore.stores.segmented_stores import TIME_FIRST, WINDOW_KEY_SCHEMA
from penstock.statestore.stores.segments import INDEX_PREFIX
from penstock.statestore.stores.state_store import LONG
from penstock.statestore.stores.values import TIMESTAMPED
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.errors import TopologyError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.records import SentRecord

from ..queries.capabilities import buckets_of

#: Kinds whose rows have the segment's number, 8 bytes, before the changelog's key.
_SEGMENTED = {
    StoreKind.WINDOW: WINDOW_KEY_SCHEMA,
    StoreKind.TIMESTAMPED_WINDOW: WINDOW_KEY_SCHEMA,
    StoreKind.SESSION: TIME_FIRST,
}


@dataclass(frozen=True, slots=True)
class StoreChangelog:
    """One store. topic: its changelog's full name. is_source: whether it is a user topic that a table reads."""

    builder: StoreBuilder
    topic: str
    is_source: bool


def changelogs_of(topology: ProcessorTopology, application_id: str) -> dict[str, StoreChangelog]:
    """Return the changelogs of a sub-topology by store; stores without one are left out."""
    sources = set(topology.source_topics) - topology.repartition_topics.keys()
    return {
        store: StoreChangelog(
            topology.stores[store], topic if topic in sources else f"{application_id}-{topic}", topic in sources
        )
        for store, topic in topology.changelog_topics.items()
    }


def check_portable(built: Iterable[ProcessorTopology], config: StreamsConfig) -> None:
    """Raise TopologyError with all stores that cannot be moved to another engine, and why. config: a StreamsConfig."""
    refused = [text for topology in built for text in _refused(topology, config)]
    if refused:
        raise TopologyError(f"The application cannot be handed over: {'; '.join(refused)}")


def _refused(topology: ProcessorTopology, config: StreamsConfig) -> Iterator[str]:
    if buckets_of(topology, config) > 1:
        yield (
            f"sub-topology {topology.subtopology} has its state in buckets, each with its own stream time: only "
            "with penstock.spark.buckets=1 are Spark's tasks those of the local engine"
        )
    for name, store in topology.stores.items():
        if name not in topology.changelog_topics:
            yield (
                f"the store {name} has no changelog, which carries rows between the engines: switch its "
                "logging on, and run the local engine on all of the input again"
            )
        elif store.kind is StoreKind.VERSIONED_KEY_VALUE:
            yield (
                f"the store {name} is versioned: deletions that came before every version leave no row, so that its "
                "changelog cannot be recreated. `penstock reset` and a run from the beginning move it"
            )


def changelog_records(
    changelog: StoreChangelog, task: int, rows: Iterable[tuple[bytes, bytes]], stream_time_ms: int
) -> Iterator[SentRecord]:
    """Yield the changelog records of these rows, to be written to the task's partition.

    Timestamps are those of the local engine: of the value if the row has one, of the window, otherwise stream_time_ms.
    (The timestamp of the record that wrote the row is not stored.)
    """
    builder, topic = changelog.builder, changelog.topic
    kind = builder.kind
    schema = _SEGMENTED.get(kind)
    timestamped = kind in TIMESTAMPED and not builder.plain_values
    with_headers = HeadersFormat(timestamped) if builder.keeps_headers else None
    headers: Any = list(HEADERS) if kind is StoreKind.SUPPRESS_BUFFER else None
    at: int | None = None if stream_time_ms < 0 else stream_time_ms
    for row_key, data in rows:
        if schema is not None and row_key.startswith(INDEX_PREFIX):
            continue
        key, value, timestamp = row_key, data, at
        if builder.is_dated:
            if row_key.startswith(dated_rows.INDEX):
                continue
            key, value, headers = row_key[1:], *dated_record(builder, data)
            data = value
        if schema is not None:
            key = row_key[8:]
            timestamp = schema.time_of(key)
        if with_headers is not None:
            value, *times, headers = with_headers.split(data)
            timestamp = times[0] if times else timestamp
        elif timestamped:
            value, timestamp = data[8:], LONG.unpack_from(data)[0]
        elif kind is StoreKind.JOIN_BUFFER:
            value = changelog_value(data)
        yield SentRecord(topic, key, value, None if timestamp is None or timestamp < 0 else timestamp, headers, task)


def tombstones(changelog: StoreChangelog, task: int, keys: Iterable[bytes]) -> Iterator[SentRecord]:
    """Yield the records that delete keys from a changelog."""
    headers: Any = None
    for key in keys:
        yield SentRecord(changelog.topic, key, None, None, headers, task)
