"""Records and rows of a replay, as text for the user, who may mask values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from penstock.statestore.view.spelling import spell_bytes
from penstock.statestore.view.store_view import summary
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.store_interfaces import StoreKind
from penstock.topology.errors import ConfigError, UnknownStateStoreError
from penstock.topology.graph.processor_topology import SourceNode
from penstock.topology.records import Message, SentRecord
from penstock.topology.serdes.serdes import Serde, resolve_serde
from penstock.workers.control.messages import ReadStore
from penstock.workers.queries.store_reads import row_json, rows_of, to_json

from .replica import Replica, ReplicaTask

#: Rows of a store that are shown.
ROWS_SHOWN = 20
#: Stores whose changelogs have keys without times.
PLAIN_KEYS = (StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.VERSIONED_KEY_VALUE)
#: Returns what is shown in place of a value.
Mask = Callable[[Any], Any]


class ShownRecords:
    """Shows what a task reads, writes and stores. Values that their serdes cannot read are shown as bytes."""

    def __init__(self, task: ReplicaTask, config: StreamsConfig, mask: Mask) -> None:
        self._task, self._mask = task, mask
        self._inputs = _serdes_of_sources(task, config)
        self._outputs = serdes_of_sinks(task, config)
        self._stores = task.stores_by_changelog()

    def input(self, message: Message) -> dict[str, Any]:
        """Return an input record for JSON."""
        shown = self._record(self._inputs, message.topic(), message.key(), message.value())
        timestamp = message.timestamp()[1]
        place = {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}
        return {**place, "timestamp": timestamp, **shown}

    def lines(self, message: Message) -> str:
        """Return an input record as lines of text."""
        return as_lines(self.input(message))

    def output(self, record: SentRecord) -> dict[str, Any] | None:
        """Return a sent record for JSON; None for one of a changelog."""
        if record.topic in self._stores:
            return None
        shown = self.sent(record.topic, record.key, record.value)
        return {"topic": record.topic, "timestamp": record.timestamp, **shown}

    def change(self, record: SentRecord) -> dict[str, Any]:
        """Return a record of a changelog for JSON. Keys with times are shown as bytes."""
        store = self._stores[record.topic]
        of_key = store.serdes.key_serde if store.builder.kind in PLAIN_KEYS else None
        shown = self._record({record.topic: (of_key, store.serdes.value_serde)}, record.topic, record.key, record.value)
        return {"topic": record.topic, "timestamp": record.timestamp, **shown}

    def sent(self, topic: str, key: bytes | None, value: bytes | None) -> dict[str, Any]:
        """Return key and value of a record that is sent to a topic, for JSON."""
        return self._record(self._outputs, topic, key, value)

    def row(self, name: str, key: bytes, row: bytes) -> dict[str, Any]:
        """Return the bytes of a row of a store for JSON, as queries return it; bytes for an internal row."""
        store = self._task.stores[name]
        with suppress(Exception):  # internal, or a serde of the user raises: the bytes show why
            read = store.read_row(key, row)
            found: dict[str, object] = json.loads(row_json(read[0], read[1], store.builder))
            return {**found, "key": self._mask(found["key"]), "value": self._mask(found["value"])}
        return {"key": self._mask(spell_bytes(key)), "value": self._mask(spell_bytes(row))}

    def output_lines(self, records: Iterable[SentRecord]) -> list[str]:
        """Return a line for each sent record, without those of changelogs."""
        found = [shown for record in records if (shown := self.output(record)) is not None]
        return [f"{each['topic']}: key {as_line(each['key'])}, value {as_line(each['value'])}" for each in found]

    def _record(
        self,
        serdes: Mapping[str, tuple[Serde | None, Serde]],
        topic: str,
        key: bytes | None,
        value: bytes | None,
    ) -> dict[str, object]:
        of_key, of_value = serdes.get(topic, (None, None))
        return {
            "key": self._shown(_read(of_key, topic, key)),
            "value": self._shown(_read(of_value, topic, value)),
        }

    def _shown(self, value: object) -> object:
        return json.loads(to_json(self._mask(value)))

    # -- stores

    def stores(self) -> Iterator[str]:
        """Yield a line for each store of the task."""
        for store in self._task.stores.values():
            found = summary(store)
            yield f"{found['store']}: {found['kind']}, about {found['entries']} rows"

    def rows(self, name: str, key: str | None) -> Iterator[str]:
        """Yield rows of a store as lines of JSON: those of a key, or the first ones.

        Raises UnknownStateStoreError, BadKeyError.
        """
        if name not in self._task.stores:
            known = ", ".join(self._task.stores) or "none"
            raise UnknownStateStoreError(f"The task has no store {name}; its stores are: {known}.")
        with closing(rows_of(ReadStore(0, name, key=key), self._task.stores[name], str(self._task.task_id))) as rows:
            for row in islice(rows, ROWS_SHOWN):
                parts = json.loads(row.json)
                yield as_line({**parts, "key": self._mask(parts["key"]), "value": self._mask(parts["value"])})


class RecordCommand:
    """The command ``penstock`` of the debugger, for one record."""

    def __init__(self, replica: Replica, shown: ShownRecords) -> None:
        self._replica, self._shown = replica, shown

    def __call__(self, words: list[str]) -> list[str] | None:
        """Return the lines of an answer; None for words that are no command. Raises StreamsError."""
        match words:
            case ["record"]:
                assert self._replica.message is not None, "it is being processed"
                return self._shown.lines(self._replica.message).splitlines()
            case ["stores"]:
                return list(self._shown.stores())
            case ["store", name, *key]:
                return list(self._shown.rows(name, key[0] if key else None))
            case ["sent"]:
                return self._shown.output_lines(self._replica.task.output.produced)
        return None


def _serdes_of_sources(task: ReplicaTask, config: StreamsConfig) -> dict[str, tuple[Serde, Serde]]:
    return {
        topic: _pair(node.key_serde, node.value_serde, config, node.name)
        for node in task.topology.nodes.values()
        if isinstance(node, SourceNode)
        for topic in _full_names(task, node.topics)
    }


def serdes_of_sinks(task: ReplicaTask, config: StreamsConfig) -> dict[str, tuple[Serde, Serde]]:
    """Return the serdes of the topics that sinks name, by their full names."""
    found = {}
    for node in task.topology.sinks:
        if isinstance(node.topic, str):
            with suppress(ConfigError):  # a sink of a repartition topic may write what has no serde by itself
                (topic,) = _full_names(task, (node.topic,))
                found[topic] = _pair(node.key_serde, node.value_serde, config, node.name)
    return found


def _full_names(task: ReplicaTask, topics: tuple[str, ...]) -> list[str]:
    internal = task.topology.repartition_topics
    return [task.internal_topic(topic) if topic in internal else topic for topic in topics]


def _pair(key: Any, value: Any, config: StreamsConfig, node: str) -> tuple[Serde, Serde]:
    return resolve_serde(key, config, True, node), resolve_serde(value, config, False, node)


def _read(serde: Serde | None, topic: str, data: bytes | None) -> object:
    if data is None:
        return None
    if serde is not None:
        with suppress(Exception):  # a serde of the user may raise anything; the bytes show why
            return serde.deserialize(topic, data)
    return spell_bytes(data)


def as_lines(shown: Mapping[str, Any]) -> str:
    """Return an input record as lines of text. shown: as ShownRecords.input returns it."""
    time = datetime.fromtimestamp(shown["timestamp"] / 1000, UTC).isoformat(timespec="milliseconds")
    where = f"offset {shown['offset']} of {shown['topic']}-{shown['partition']}, {time}"
    return f"{where}\nkey: {as_line(shown['key'])}\nvalue: {as_line(shown['value'])}"


def as_line(value: object) -> str:
    """Return a value as JSON in one line."""
    return json.dumps(value, ensure_ascii=False)
