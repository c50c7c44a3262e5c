"""Records as lines of JSON: an object with ``key``, ``value``, ``headers`` and ``timestamp``, all of them optional.

A line that ``penstock topic consume --json`` has printed also has ``topic``, ``partition`` and ``offset``, the source
of the record, and is read again as exactly the same bytes. Where key or value does not say them all, such as JSON with
spaces, the line has ``key_bytes`` or ``value_bytes``, too, which are preferred.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import MAX_EMAX, Decimal, InvalidOperation
from typing import Any
from uuid import UUID

import orjson

from penstock.statestore.view.spelling import read_bytes
from penstock.topology.errors import SerializationError
from penstock.topology.serdes.serdes import PlainSerde, Serde

Headers = list[tuple[str, bytes | None]]
FIELDS = ("key", "value", "headers", "timestamp")
_BYTES = ("key_bytes", "value_bytes")
_IGNORED = ("topic", "partition", "offset")
#: Kafka's timestamp of a record that has none.
NO_TIMESTAMP = -1
#: How much of a value an error shows.
_SHOWN_CHARACTERS = 200
_FROM_JSON: Mapping[str, Callable[[Any], object]] = {"bytes": read_bytes, "uuid": UUID}


@dataclass(frozen=True, slots=True)
class Record:
    """A record to be written. timestamp: ms since the epoch, NO_TIMESTAMP for none."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


@dataclass(frozen=True, slots=True)
class TopicSerdes:
    """The serdes of a topic's keys and values."""

    key: Serde
    value: Serde


def read_line(line: bytes, topic: str, serdes: TopicSerdes) -> Record:
    """Return the record of a line of JSON; raises SerializationError, which describes what is wrong with the line.

    A missing key or value is null, a missing timestamp now, and -1 none. headers: an object, or a list of [key, value]
    pairs.
    """
    try:
        return _read_fields(line, topic, serdes)
    except RecursionError:
        raise SerializationError("it has too many lists or objects inside of each other") from None


def _read_fields(line: bytes, topic: str, serdes: TopicSerdes) -> Record:
    try:
        fields = json.loads(line, parse_float=_decimal, parse_constant=_refuse_constant)
    except ValueError as error:
        raise SerializationError(f"it is not JSON ({error}): write one record per line, e.g. {EXAMPLE}") from error
    if not isinstance(fields, dict):
        raise SerializationError(f"it is not a JSON object: expected e.g. {EXAMPLE}")
    if unknown := fields.keys() - {*FIELDS, *_BYTES, *_IGNORED}:
        raise SerializationError(f"unknown field {', '.join(sorted(unknown))}: a record has {', '.join(FIELDS)}")
    return Record(
        _part(fields, "key", topic, serdes.key),
        _part(fields, "value", topic, serdes.value),
        _headers(fields.get("headers")),
        _timestamp(fields.get("timestamp")),
    )


EXAMPLE = '{"key": "a", "value": {"n": 1}, "headers": {"trace": "7"}, "timestamp": "2026-11-21T06:00:00Z"}'


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise SerializationError(f"the exponent of {_beginning(text)} is beyond {MAX_EMAX:,}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def _part(fields: Mapping[str, Any], part: str, topic: str, serde: Serde) -> bytes | None:
    exact = fields.get(f"{part}_bytes")
    if exact is None:
        return _to_bytes(fields.get(part), part, topic, serde)
    try:
        return bytes.fromhex(exact)
    except (TypeError, ValueError) as error:
        raise SerializationError(f"{part}_bytes are hexadecimal digits, not {_shown(exact)}") from error


def _numbers(value: object, exact: Callable[[Decimal | int], object]) -> object:
    """Return a value of JSON with floats for Decimals, and exact(number) for numbers that a float or int64 is not."""
    if isinstance(value, Decimal):
        near = float(value)
        return near if Decimal(repr(near)) == value else exact(value)
    if type(value) is int:
        return value if -(2**63) <= value < 2**64 else exact(value)
    if isinstance(value, dict):
        return {name: _numbers(each, exact) for name, each in value.items()}
    return [_numbers(each, exact) for each in value] if isinstance(value, list) else value


def _as_written(number: Decimal | int) -> orjson.Fragment:
    return orjson.Fragment(str(number))


def _rounded(number: Decimal | int) -> float | int:
    return number if isinstance(number, int) else float(number)


def _shown(value: object) -> str:
    return _beginning(json.dumps(value, default=str))


def _beginning(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _to_bytes(value: object, part: str, topic: str, serde: Serde) -> bytes | None:
    if value is None:
        return None
    from_json = _FROM_JSON.get(serde.name) if isinstance(serde, PlainSerde) else None
    value = _numbers(value, _as_written if isinstance(serde, PlainSerde) and serde.name == "json" else _rounded)
    try:
        return serde.serialize(topic, value if from_json is None else from_json(value))
    except Exception as error:
        raise SerializationError(
            f"the {part} {_shown(value)} does not fit {serde!r} ({error}): correct it, or choose another --{part}-serde"
        ) from error


def _headers(given: object) -> Headers:
    pairs = list(given.items()) if isinstance(given, dict) else given or []
    if not isinstance(pairs, list) or not all(map(_is_header, pairs)):
        raise SerializationError('headers are an object of strings, or a list of pairs: [["trace", "7"]]')
    for text in itertools.chain.from_iterable(pairs):
        _check_text(text)
    try:
        return [(name, None if value is None else read_bytes(value)) for name, value in pairs]
    except ValueError as error:
        raise SerializationError(f"a header has no hexadecimal digits after 0x ({error})") from error


def _check_text(text: str | None) -> None:
    """Raise SerializationError for a lone surrogate, which JSON can spell and UTF-8 cannot."""
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        raise SerializationError(
            f"the header text {_shown(text)} has half of a character ({error.reason}): write bytes as 0xff00"
        ) from error


def _is_header(pair: object) -> bool:
    return (
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and isinstance(pair[1], str | None)
    )


def _timestamp(given: Any) -> int:
    if given is None:
        return time.time_ns() // 1_000_000
    if type(given) is int and given == NO_TIMESTAMP:
        return given
    try:
        found = given if type(given) is int else round(datetime.fromisoformat(given).timestamp() * 1000)
    except (TypeError, ValueError):
        found = -1
    if not 0 <= found < 2**63:
        raise SerializationError(
            f"the timestamp {_shown(given)} is neither ms since the epoch nor a time such as 2026-11-21T06:00:00Z"
        )
    return found
