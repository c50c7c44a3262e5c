"""Keys that come as text, and rows that go as JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator, Mapping
from typing import Any
from uuid import UUID

import orjson

from penstock.statestore.values import TIMESTAMPED
from penstock.topology.records import VersionedRecord, Windowed
from penstock.topology.serdes import PlainSerde, as_serde
from penstock.topology.store_interfaces import StoreBuilder, StoreKind

from .control import ReadStore
from .store_answers import Row

LAST_MS = (1 << 63) - 1


class BadKeyError(ValueError):
    """What was asked does not fit the store; the message says how it must be."""


def _json_or_text(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


_PARSERS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "string": (str, "text"),
    "bytes": (bytes.fromhex, "hexadecimal digits"),
    "json": (_json_or_text, "JSON, or text"),
    "uuid": (UUID, "a UUID"),
    **dict.fromkeys(("int16", "int32", "int64"), (int, "a whole number")),
    **dict.fromkeys(("float32", "float64"), (float, "a number")),
}


def parse_key(text: str, builder: StoreBuilder) -> Any:
    """Return the key of a store that a text stands for; raises BadKeyError.

    By the store's key serde: text, a number, hexadecimal digits for bytes, a UUID; with any other serde JSON, and text
    if it is no JSON.
    """
    serde = as_serde(builder.key_serde)
    name = serde.name if isinstance(serde, PlainSerde) else "json"
    parse, expected = _PARSERS.get(name, _PARSERS["json"])
    try:
        key = parse(text)
        if serde is not None:
            serde.serialize("", key)
    except BadKeyError:
        raise
    except Exception as error:
        raise BadKeyError(
            f"{text!r} is no key of the store {builder.name}, whose keys are {serde!r}: expected {expected} ({error})."
        ) from error
    return key


def rows_of(request: ReadStore, store: Any) -> Generator[Row, None, None]:
    """Yield what a request finds in one store, at most one row more than its limit is taken. Raises BadKeyError."""
    builder: StoreBuilder = store.builder
    encode = _order(builder)
    rows = _window_rows if builder.windowed else _key_value_rows
    for key, window, value in rows(request, store, builder):
        order = encode(key) + (b"" if window is None else b"%020d" % window[0])
        yield Row(order, row_json(key, window, value, builder.kind in TIMESTAMPED))


def _order(builder: StoreBuilder) -> Callable[[Any], bytes]:
    serde = as_serde(builder.key_serde)
    return lambda key: (serde.serialize("", key) if serde is not None else None) or b""


def _bounds(request: ReadStore, builder: StoreBuilder) -> tuple[Any, Any]:
    low, high = (None if text is None else parse_key(text, builder) for text in (request.key_from, request.key_to))
    return low, high


#: key, (start, end or None) of its window or None, value
_Found = Generator[tuple[Any, tuple[int, int | None] | None, Any], None, None]


def _key_value_rows(request: ReadStore, store: Any, builder: StoreBuilder) -> _Found:
    versioned = builder.kind is StoreKind.VERSIONED_KEY_VALUE
    if request.key is not None:
        key = parse_key(request.key, builder)
        value = store.get(key, request.time_to) if versioned and request.time_to is not None else store.get(key)
        if value is not None:
            yield key, None, value
        return
    if versioned:
        raise BadKeyError(f"The versioned store {builder.name} can only be read key by key.")
    if request.prefix is not None:
        found = store.prefix_scan(request.prefix.encode()) if request.prefix else store.all()
    else:
        found = (store.reverse_range if request.reverse else store.range)(*_bounds(request, builder))
    for key, value in found:
        yield key, None, value


def _window_rows(request: ReadStore, store: Any, builder: StoreBuilder) -> _Found:
    if request.prefix is not None:
        raise BadKeyError(f"prefix= is for key-value stores, and {builder.name} is a {builder.kind.value} store.")
    first = 0 if request.time_from is None else request.time_from
    last = LAST_MS if request.time_to is None else request.time_to
    turn = "backward_" if request.reverse else ""
    size = builder.window_size_ms
    if request.key is None:
        for windowed, value in getattr(store, f"{turn}fetch_keys")(*_bounds(request, builder), first, last):
            yield windowed.key, (windowed.start, windowed.end), value
        return
    key = parse_key(request.key, builder)
    if builder.kind is StoreKind.SESSION:
        for windowed, value in getattr(store, f"{turn}find_sessions")(key, first, last):
            yield windowed.key, (windowed.start, windowed.end), value
        return
    for start, value in getattr(store, f"{turn}fetch_range")(key, first, last):
        yield key, (start, None if size is None else start + size), value


def row_json(key: Any, window: tuple[int, int | None] | None, value: Any, timestamped: bool) -> bytes:
    """Return {"key", "value"}, with "window" and "timestamp" where there are such."""
    row: dict[str, Any] = {"key": key}
    if window is not None:
        row["window"] = {"start": window[0], "end": window[1]}
    if timestamped:  # a cache may hold it as a plain tuple
        row |= {"value": value[0], "timestamp": value[1]}
    elif isinstance(value, VersionedRecord):
        row |= {"value": value.value, "timestamp": value.timestamp, "valid_to": value.valid_to}
    else:
        row["value"] = value
    return to_json(row)


def to_json(value: Any) -> bytes:
    """Return JSON; bytes become {"base64": ...}, and what JSON has no word for its repr."""
    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # e.g. a number of more than 64 bits
        return orjson.dumps({name: _fallback(part) for name, part in value.items()})


def _fallback(part: Any) -> Any:
    try:
        return orjson.Fragment(orjson.dumps(part, default=_plain, option=orjson.OPT_NON_STR_KEYS))
    except TypeError:
        return repr(part)


def _plain(value: Any) -> Any:
    if isinstance(value, Windowed):
        return {"key": value.key, "start": value.start, "end": value.end}
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, tuple):
        fields = getattr(value, "_asdict", None)
        return list(value) if fields is None else fields()
    if isinstance(value, set | frozenset):
        return list(value)
    return repr(value)
