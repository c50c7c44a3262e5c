"""What a rehearsal compares of sent records and rows: bytes, or values without the fields to ignore; and their text."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any

import orjson

from penstock.statestore.view.spelling import spell_bytes
from penstock.statestore.view.store_view import plain
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.exception_handlers import LETTER_HEADER
from penstock.topology.records import SentRecord
from penstock.topology.serdes.serdes import deserializer_for

from .rehearsed_slice import as_hex, from_hex
from .replica import ReplicaTask
from .shown_records import ShownRecords, serdes_of_sinks

#: The files of a run, and the kinds of what is compared.
SENT, ROWS = "sent.jsonl", "rows.jsonl"
#: The first character of a compared value that is JSON, and not bytes in hexadecimal digits.
JSON_MARK = "="
#: The header of a dead letter with the stack trace, which has line numbers.
_STACK = f"{LETTER_HEADER}stacktrace"


class ComparedValues:
    """ignore: names of fields, at any depth of a value; without them bytes are compared."""

    def __init__(self, task: ReplicaTask, config: StreamsConfig, ignore: Collection[str]) -> None:
        self._ignore = frozenset(ignore)
        self._stores = task.stores_by_changelog()
        self._serdes = serdes_of_sinks(task, config) if ignore else {}

    @property
    def ignores(self) -> bool:
        """Whether fields are ignored."""
        return bool(self._ignore)

    def sent(self, record: SentRecord) -> list[Any]:
        """Return a sent record: topic, key, time, what is compared, and whether the topic is a changelog.

        shown() reads what is compared.
        """
        headers = [[name, as_hex(data)] for name, data in record.headers or () if name != _STACK]
        compared = [self._value(record), headers] if headers else self._value(record)
        return [record.topic, as_hex(record.key), record.timestamp, compared, record.topic in self._stores]

    def _value(self, record: SentRecord) -> str | None:
        if record.value is None:
            return self.without_fields(None)
        if self._ignore:
            with suppress(Exception):  # a serde of the user may raise anything; then bytes are compared
                return self.without_fields(self._decoded(record.topic, record.value))
        return as_hex(record.value)

    def _decoded(self, topic: str, value: bytes) -> object:
        if topic in self._stores:
            return self._stores[topic].serdes.decode_value(value)
        return deserializer_for(self._serdes[topic][1], topic)(value)

    def without_fields(self, value: object) -> str:
        """Return a value as marked JSON, without the ignored fields."""
        return JSON_MARK + orjson.dumps(self._stripped(plain(value)), option=orjson.OPT_SORT_KEYS).decode()

    def _stripped(self, value: object) -> object:
        if isinstance(value, dict):
            return {name: self._stripped(each) for name, each in value.items() if name not in self._ignore}
        return [self._stripped(each) for each in value] if isinstance(value, list) else value


def shown(records: ShownRecords, kind: str, name: str, key: str | None, value: Any) -> list[Any] | None:
    """Return a compared record of a topic, or row of a store, for JSON: its key, and all other parts by name.

    key, value: as the files of a run have them; None for a value that does not exist.
    """
    if value is None:
        return None
    data, headers = value if isinstance(value, list) else (value, None)
    parts = _parts(records, kind, name, key, data)
    if headers is not None:
        parts["headers"] = [[header, text and spell_bytes(bytes.fromhex(text))] for header, text in headers]
    found = parts.pop("key")
    return [{"key": found, "window": parts.pop("window")} if "window" in parts else found, parts]


def _parts(records: ShownRecords, kind: str, name: str, key: str | None, data: str) -> dict[str, Any]:
    if not data.startswith(JSON_MARK):
        if kind == SENT:
            return records.sent(name, from_hex(key), from_hex(data))
        return records.row(name, bytes.fromhex(key or ""), bytes.fromhex(data))
    known: Any = orjson.loads(data.removeprefix(JSON_MARK))
    return {**records.sent(name, from_hex(key), None), "value": known} if kind == SENT else known
