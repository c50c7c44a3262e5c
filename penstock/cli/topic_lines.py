"""Lines of ``penstock topic produce`` and ``penstock topic consume``: see record_lines.py for lines of JSON."""

from __future__ import annotations

import io
import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import IO, Any, cast
from uuid import UUID

from confluent_kafka import Message

from penstock.statestore.view.spelling import spell_bytes
from penstock.topology.errors import SerializationError
from penstock.topology.serdes.serdes import Serde
from penstock.workers.queries.record_lines import Headers, Record, TopicSerdes, read_line
from penstock.workers.queries.store_reads import to_json

#: The size of a read, in bytes.
_READ_BYTES = 1 << 16


def read_lines(file: IO[bytes], before_waiting: Callable[[], None]) -> Iterator[bytes]:
    """Yield the lines of a file without their ends; before_waiting: called when there are no more for the moment."""
    rest = b""
    while chunk := _read_available(file, before_waiting):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _read_available(file: Any, before_waiting: Callable[[], None]) -> bytes:
    with suppress(io.UnsupportedOperation):  # it is in memory
        if not select.select([file.fileno()], [], [], 0)[0]:
            before_waiting()
    data: bytes = file.read1(_READ_BYTES)
    return data


def json_line(message: Message, serdes: TopicSerdes) -> str:
    """Return a record as a line of JSON. Raises SerializationError, which names the record."""
    key, value = key_and_value(message, serdes)
    headers = cast("Headers", message.headers() or [])
    fields = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        "key": key,
        "value": value,
        "headers": [(name, None if data is None else spell_bytes(data)) for name, data in headers],
    }
    line = _shown(fields, message)
    parts = {"key_bytes": message.key(), "value_bytes": message.value()}
    missing = {name: data.hex() for name, data in _inexact(line, message.topic() or "", serdes, parts)}
    return (_shown(fields | missing, message) if missing else line).decode()


def _inexact(
    line: bytes, topic: str, serdes: TopicSerdes, parts: Mapping[str, bytes | None]
) -> Iterator[tuple[str, bytes]]:
    """Yield the names and bytes of those parts of a record that read_line would not read from its line."""
    try:
        found = read_line(line, topic, serdes)
    except SerializationError:  # e.g. the serde can only read
        found = Record(None, None, [], 0)
    read = {"key_bytes": found.key, "value_bytes": found.value}
    for name, data in parts.items():
        if data is not None and data != read[name]:
            yield name, data


def text_line(message: Message, serdes: TopicSerdes) -> str:
    """Return key and value separated by a tab: text unchanged, other values as JSON. Raises as json_line does."""
    return "\t".join(_text(value, message) for value in key_and_value(message, serdes))


def _text(value: object, message: Message) -> str:
    if isinstance(value, bytes):
        return spell_bytes(value)
    return str(value) if isinstance(value, str | UUID) else _shown(value, message).decode()


def _shown(value: object, message: Message) -> bytes:
    try:
        return to_json(value)
    except SerializationError as error:
        raise SerializationError(
            f"The record {_place(message)} cannot be shown ({error}): choose other serdes; bytes reads all."
        ) from error


def _place(message: Message) -> str:
    return f"{message.topic()}-{message.partition()}@{message.offset()}"


def key_and_value(message: Message, serdes: TopicSerdes) -> tuple[object, object]:
    """Return the deserialized key and value; raises SerializationError, which names the record."""
    return _from_bytes(message, "key", serdes.key), _from_bytes(message, "value", serdes.value)


def _from_bytes(message: Message, part: str, serde: Serde) -> object:
    data = message.key() if part == "key" else message.value()
    try:
        return serde.deserialize(message.topic() or "", data)
    except Exception as error:
        raise SerializationError(
            f"The {part} of {_place(message)} cannot be read by {serde!r} ({error}): choose another --{part}-serde; "
            "bytes reads all."
        ) from error
