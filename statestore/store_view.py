"""State stores as people look at them: keys given as text, rows as plain values that JSON can hold.

For the control socket, HTTP and ``penstock state``; the rows are those of this moment, the record cache included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from itertools import islice
from typing import Any

from penstock.topology.errors import InvalidStateStoreError
from penstock.topology.records import VersionedRecord, Windowed
from penstock.topology.store_interfaces import StoreKind

from .key_value_store import KeyValueStore
from .session_store import SessionStore
from .spelling import read_key, spell_bytes
from .state_store import StateStore
from .values import TIMESTAMPED
from .versioned_store import VersionedStore
from .window_store import LONG_MAX, WindowStore

Row = dict[str, Any]
#: A page may not be longer: the stream thread processes nothing while it makes one.
PAGE_ROWS_MAX = 1_000


def summary(store: StateStore) -> Row:
    """Return what a store is, and about how many rows it has."""
    rows = getattr(store, "approximate_num_entries", None) or store.rows.approximate_num_entries
    return {
        "store": store.name,
        "kind": store.builder.kind.value,
        "backend": store.builder.backend.value,
        "entries": rows(),
        "changelog_offset": store.committed_offset(),
    }


def lookup(store: StateStore, key: str) -> list[Row]:
    """Return the rows of a key: at most one, or one for each window, session.

    key: text, as read_key takes it. Raises BadKeyError, InvalidStateStoreError for stores that are an operator's own.
    """
    if not isinstance(store, WindowStore | SessionStore | KeyValueStore | VersionedStore):
        raise _not_for_people(store)
    return [row_of(store, found, value) for found, value in rows_of_key(store, _key(store, key))]


def _key(store: StateStore, text: str) -> Any:
    return read_key(text, store.builder.key_serde, store.name)


def rows_of_key(
    store: Any, key: Any, time_from: int = 0, time_to: int = LONG_MAX, *, reverse: bool = False
) -> Iterator[tuple[Any, Any]]:
    """Yield (key, value) of what a store has of a key: the one row, or one for each window, session with a Windowed.

    time_from, time_to: ms; of windows that start then, of sessions that overlap. reverse: the latest first.
    """
    turn = "backward_" if reverse else ""
    if store.builder.kind is StoreKind.SESSION:
        yield from getattr(store, f"{turn}find_sessions")(key, time_from, time_to)
    elif store.builder.windowed:
        for start, value in getattr(store, f"{turn}fetch_range")(key, time_from, time_to):
            yield Windowed(key, start, window_end(store, start)), value
    elif (value := store.get(key)) is not None:
        yield key, value


def page(store: StateStore, key_from: str | None, key_to: str | None, after: str | None, limit: int) -> Row:
    """Return ``rows`` in the order of the store, and ``after`` for the next page, None behind the last one.

    key_from, key_to: text, inclusive, None for an open side; after: of the page before. With windows and sessions a
    page goes through all rows before it.
    """
    limit = min(limit, PAGE_ROWS_MAX)
    if type(store) is VersionedStore or not isinstance(store, KeyValueStore | WindowStore | SessionStore):
        raise _not_for_people(store)
    low = None if key_from is None else _key(store, key_from)
    high = None if key_to is None else _key(store, key_to)
    if isinstance(store, KeyValueStore):
        rows, cursor_of = _key_value_rows(store, low, high, after), _cursor_of_key(store)
    else:
        skip = int(after or 0)
        windowed = store.fetch_keys(low, high, 0, LONG_MAX)
        rows = ((number, key, value) for number, (key, value) in enumerate(windowed) if number >= skip)
        cursor_of = _cursor_of_number
    found = list(islice(rows, limit))
    last = found[-1] if len(found) == limit else None
    return {
        "rows": [row_of(store, key, value) for _, key, value in found],
        "after": None if last is None else cursor_of(last),
    }


def _key_value_rows(store: KeyValueStore, low: Any, high: Any, after: str | None) -> Iterator[tuple[int, Any, Any]]:
    """Yield (number, key, value), from behind the key ``after`` on."""
    seen = None
    if after is not None:
        seen = bytes.fromhex(after)
        low = store.serdes.decode_key(seen)
    for number, (key, value) in enumerate(store.range(low, high)):
        if number or seen is None or store.serdes.encode_key(key) != seen:
            yield number, key, value


def _cursor_of_key(store: KeyValueStore) -> Callable[[tuple[int, Any, Any]], str]:
    return lambda row: store.serdes.encode_key(row[1]).hex()


def _cursor_of_number(row: tuple[int, Any, Any]) -> str:
    return str(row[0] + 1)


def row_of(store: StateStore, key: Any, value: Any) -> Row:
    """Return a row: key, value, and what the kind of store has: timestamp, window or session (ms), valid_to."""
    row: Row = {}
    if isinstance(key, Windowed):
        row = {"key": plain(key.key), "start": key.start, "end": key.end}
    else:
        row = {"key": plain(key)}
    parts = parts_of(store.builder.kind, value)
    return {**row, **parts, "value": plain(parts["value"])}


def parts_of(kind: StoreKind, value: Any) -> Row:
    """Return the ``value`` of a row as it is, and what its kind of store has: ``timestamp``, ``valid_to``."""
    if kind in TIMESTAMPED:  # a cache may hold it as a plain tuple
        return {"value": value[0], "timestamp": value[1]}
    if isinstance(value, VersionedRecord):
        return {"value": value.value, "timestamp": value.timestamp, "valid_to": value.valid_to}
    return {"value": value}


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it; bytes are spelled as in spelling.py."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else repr(value)  # JSON has no nan and inf
    if isinstance(value, bytes):
        return spell_bytes(value)
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(plain(key)): plain(item) for key, item in value.items()}
    fields = fields_of(value)
    if fields is not None:
        return plain(fields)
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)


def fields_of(value: Any) -> Mapping[str, Any] | None:
    """Return the fields of a NamedTuple or a msgspec.Struct by name, None for anything else."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()  # type: ignore[no-any-return]
    names = getattr(type(value), "__struct_fields__", None)  # without msgspec, which nobody else here needs
    return None if names is None else {name: getattr(value, name) for name in names}


def window_end(store: WindowStore, start: int) -> int:
    """Return where the window that starts there ends."""
    return min(start + (store.builder.window_size_ms or 0), LONG_MAX)


def _not_for_people(store: StateStore) -> InvalidStateStoreError:
    return InvalidStateStoreError(
        f"The store {store.name} ({store.builder.kind.value}) can be listed, but its rows cannot be shown so: "
        "key-value, window and session stores can, versioned ones by key"
    )
