"""Describes a store's changelog, and shows its records as rows, for subscribers of its changes.

Any stream thread can do it: it needs the store's declaration and serdes, and none of its tasks.
"""

from __future__ import annotations

from penstock.statestore.stores.segmented_stores import PAIR, WINDOW_KEY_SCHEMA, end_of_window
from penstock.statestore.stores.state_store import StoreSerdes
from penstock.statestore.stores.values import row_reader
from penstock.statestore.view.spelling import BadKeyError
from penstock.topology.context.store_interfaces import StoreBackend, StoreBuilder, StoreKind
from penstock.topology.errors import StreamsError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.records import Message, VersionedRecord, Windowed

from ..control.messages import DescribeChangelog, ShowChanges
from .store_answers import ChangelogView
from .store_reads import StoreReader, check_readable, key_of, row_json, to_json
from .store_scans import prefix_bytes

_SUFFIXES = {
    StoreKind.WINDOW: WINDOW_KEY_SCHEMA.suffix.size,
    StoreKind.TIMESTAMPED_WINDOW: WINDOW_KEY_SCHEMA.suffix.size,
    StoreKind.SESSION: PAIR.size,
}


def changelog_view(request: DescribeChangelog, reader: StoreReader) -> ChangelogView:
    """Return the description of a store's changelog.

    Raises UnknownStateStoreError, BadKeyError for a request that does not fit the store, and StreamsError for a store
    without a changelog of its changes.
    """
    builder, topic = _changelog(request.store, reader)
    reader.check_partition(request.store, request.partition)
    if request.prefix is not None and builder.windowed:
        raise BadKeyError(f"prefix= is for key-value stores, and {builder.name} is a {builder.kind.value} store.")
    if request.rows and request.key is None and builder.kind is StoreKind.VERSIONED_KEY_VALUE:
        raise BadKeyError(f"The rows of the versioned store {builder.name} can only be read key by key: give key=.")
    if request.rows and builder.backend is StoreBackend.CUSTOM:
        raise BadKeyError(
            f"{builder.name} is kept in your own store, whose rows cannot be read as committed: use from=now."
        )
    serdes = StoreSerdes(builder, topic)
    return ChangelogView(
        topic,
        reader.partitions_of(request.store),
        _SUFFIXES.get(builder.kind, 0),
        None if request.key is None else serdes.encode_key(key_of(request.key, builder)),
        None if request.prefix is None else prefix_bytes(request.prefix, builder),
        has_pages=not builder.windowed and request.key is None,
    )


def _changelog(store: str, reader: StoreReader) -> tuple[StoreBuilder, str]:
    """Return the declaration of a store, and the full name of its changelog."""
    if reader.is_global(store):
        raise StreamsError(
            f"{store} is a global store, which has no changelog: it is a copy of its topic. Read that topic instead."
        )
    topology = next(t for t in reader.topologies if store in t.stores)
    builder = topology.stores[store]
    check_readable(builder)
    return builder, reader.topics.full(_topic(store, topology))


def _topic(store: str, topology: ProcessorTopology) -> str:
    topic = topology.changelog_topics.get(store)
    if topic is None:
        raise StreamsError(
            f"{store} has no changelog: logging is disabled for it, so its changes are not recorded. Enable logging."
        )
    if topic in topology.source_topics:
        raise StreamsError(
            f"{store} has no changelog, because topology.optimization reuses its input topic {topic}. Read that topic "
            "instead."
        )
    return topic


def rows_of_changes(request: ShowChanges, reader: StoreReader) -> tuple[bytes, ...]:
    """Return a JSON object for each record of a changelog: a row as in reads, or one without a value for a deletion.

    Raises StreamsError for a record that the store's serdes cannot read.
    """
    builder, topic = _changelog(request.store, reader)
    shown = _ChangedRows(builder, topic)
    return tuple(map(shown.json, request.records))


class _ChangedRows:
    """Shows the records of one changelog."""

    def __init__(self, builder: StoreBuilder, topic: str) -> None:
        self._builder = builder
        serdes = StoreSerdes(builder, topic)
        self._decode_key = serdes.decode_key
        self._row_of, self._decode = row_reader(builder, serdes.decode_value)
        self._suffix = _SUFFIXES.get(builder.kind, 0)

    def json(self, record: Message) -> bytes:
        try:
            return self._json(record)
        except Exception as error:
            raise StreamsError(
                f"The record at offset {record.offset()} of {record.topic()}-{record.partition()} cannot be shown: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _json(self, record: Message) -> bytes:
        key, value = self._key(record.key() or b""), self._value(record)
        if value is not None:
            return row_json(key, value, self._builder)
        if isinstance(key, Windowed) and self._builder.windowed:
            return to_json({"key": key.key, "window": {"start": key.start, "end": key.end}})
        return to_json({"key": key})

    def _key(self, data: bytes) -> object:
        if not self._suffix:
            return self._decode_key(data)
        key = self._decode_key(data[: -self._suffix])
        if self._builder.kind is StoreKind.SESSION:
            end, start = PAIR.unpack_from(data, len(data) - PAIR.size)
            return Windowed(key, start, end)
        start, _ = WINDOW_KEY_SCHEMA.suffix.unpack_from(data, len(data) - self._suffix)
        return Windowed(key, start, end_of_window(self._builder, start))

    def _value(self, record: Message) -> object:
        if record.value() is None:
            return None
        value = self._decode(self._row_of(record))
        if self._builder.kind is StoreKind.VERSIONED_KEY_VALUE and value is not None:
            return VersionedRecord(value, record.timestamp()[1])
        return value
