"""Records as lines of JSON, as ``penstock topic produce`` reads and ``penstock topic consume --json`` prints them.

A line is an object with ``key``, ``value``, ``headers`` and ``timestamp``, all of them optional. A consumed line also
has ``topic``, ``partition`` and ``offset``, the source of the record; produce ignores them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import orjson
from confluent_kafka import Message

from penstock.statestore.view.spelling import read_bytes, spell_bytes
from penstock.topology.errors import SerializationError
from penstock.topology.serdes.serdes import PlainSerde, Serde
from penstock.workers.queries.store_reads import to_json

Headers = list[tuple[str, bytes | None]]
FIELDS = ("key", "value", "headers", "timestamp")
_IGNORED = ("topic", "partition", "offset")
_FROM_JSON: Mapping[str, Callable[[Any], Any]] = {"bytes": read_bytes, "uuid": UUID}


@dataclass(frozen=True, slots=True)
class Record:
    """A record to be written. timestamp: ms since the epoch."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


@dataclass(frozen=True, slots=True)
class TopicSerdes:
    """The serdes of a topic's keys and values."""

    key: Serde[Any]
    value: Serde[Any]


def read_line(line: bytes, topic: str, serdes: TopicSerdes) -> Record:
    """Return the record of a line of JSON; raises SerializationError, which describes what is wrong with the line.

    A missing key or value is null, a missing timestamp now. headers: an object, or a list of [key, value] pairs.
    """
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise SerializationError(f"it is not JSON ({error}): write one record per line, e.g. {EXAMPLE}") from error
    if not isinstance(fields, dict):
        raise SerializationError(f"it is not a JSON object: expected e.g. {EXAMPLE}")
    if unknown := fields.keys() - {*FIELDS, *_IGNORED}:
        raise SerializationError(f"unknown field {', '.join(sorted(unknown))}: a record has {', '.join(FIELDS)}")
    return Record(
        _to_bytes(fields.get("key"), "key", topic, serdes.key),
        _to_bytes(fields.get("value"), "value", topic, serdes.value),
        _headers(fields.get("headers")),
        _timestamp(fields.get("timestamp")),
    )


EXAMPLE = '{"key": "a", "value": {"n": 1}, "headers": {"trace": "7"}, "timestamp": "2026-11-21T06:00:00Z"}'


def _to_bytes(value: Any, part: str, topic: str, serde: Serde[Any]) -> bytes | None:
    if value is None:
        return None
    from_json = _FROM_JSON.get(serde.name) if isinstance(serde, PlainSerde) else None
    try:
        return serde.serialize(topic, value if from_json is None else from_json(value))
    except Exception as error:
        raise SerializationError(
            f"the {part} {json.dumps(value)} does not fit {serde!r} ({error}): correct it, or choose another "
            f"--{part}-serde"
        ) from error


def _headers(given: Any) -> Headers:
    pairs = list(given.items()) if isinstance(given, dict) else given or []
    if not isinstance(pairs, list) or not all(map(_is_header, pairs)):
        raise SerializationError('headers are an object of strings, or a list of pairs: [["trace", "7"]]')
    return [(name, None if value is None else read_bytes(value)) for name, value in pairs]


def _is_header(pair: Any) -> bool:
    return (
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and isinstance(pair[1], str | None)
    )


def _timestamp(given: Any) -> int:
    if given is None:
        return time.time_ns() // 1_000_000
    try:
        found = given if type(given) is int else round(datetime.fromisoformat(given).timestamp() * 1000)
    except (TypeError, ValueError):
        found = -1
    if not 0 <= found < 2**63:
        raise SerializationError(
            f"the timestamp {json.dumps(given)} is neither ms since the epoch nor a time such as 2026-11-21T06:00:00Z"
        )
    return found


def json_line(message: Message, serdes: TopicSerdes) -> str:
    """Return a record as a line of JSON. Raises SerializationError, as key_and_value does."""
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
    return to_json(fields).decode()


def text_line(message: Message, serdes: TopicSerdes) -> str:
    """Return key and value separated by a tab: text unchanged, other values as JSON. Raises as json_line does."""
    return "\t".join(map(_text, key_and_value(message, serdes)))


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return spell_bytes(value)
    return str(value) if isinstance(value, str | UUID) else to_json(value).decode()


def key_and_value(message: Message, serdes: TopicSerdes) -> tuple[Any, Any]:
    """Return the deserialized key and value; raises SerializationError, which names the record."""
    return _from_bytes(message, "key", serdes.key), _from_bytes(message, "value", serdes.value)


def _from_bytes(message: Message, part: str, serde: Serde[Any]) -> Any:
    data = message.key() if part == "key" else message.value()
    try:
        return serde.deserialize(message.topic() or "", data)
    except Exception as error:
        raise SerializationError(
            f"The {part} of {message.topic()}-{message.partition()}@{message.offset()} cannot be read by {serde!r} "
            f"({error}): choose another --{part}-serde; bytes reads all."
        ) from error
