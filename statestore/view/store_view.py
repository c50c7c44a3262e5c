"""State stores as people look at them: keys given as text, rows as plain values that JSON can hold.

For the control socket, HTTP and ``penstock state``; the rows are those of this moment, the record cache included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from penstock.topology.context.store_interfaces import StoreKind
from penstock.topology.records import VersionedRecord, Windowed

from ..stores.key_value_store import KeyValueStore
from ..stores.segmented_stores import LONG_MAX, SessionStore, WindowStore
from ..stores.state_store import StateStore
from ..stores.values import TIMESTAMPED
from ..stores.versioned_store import VersionedStore
from .spelling import spell_bytes

Row = dict[str, Any]
#: Those that can be read from outside; buffers and the stores of joins are their operators' own.
ReadableStore = KeyValueStore | VersionedStore | WindowStore | SessionStore


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


def rows_of_key(
    store: ReadableStore, key: Any, time_from: int = 0, time_to: int = LONG_MAX, *, reverse: bool = False
) -> Iterator[tuple[Any, Any]]:
    """Yield (key, value) of what a store has of a key: the one row, or one for each window, session with a Windowed.

    time_from, time_to: ms; of windows that start then, of sessions that overlap. reverse: the latest first.
    """
    if isinstance(store, SessionStore):
        yield from (store.backward_find_sessions if reverse else store.find_sessions)(key, time_from, time_to)
    elif isinstance(store, WindowStore):
        for start, value in (store.backward_fetch_range if reverse else store.fetch_range)(key, time_from, time_to):
            yield Windowed(key, start, window_end(store, start)), value
    elif (value := store.get(key)) is not None:
        yield key, value


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
    names = getattr(type(value), "__struct_fields__", None)  # without msgspec, which nothing else here needs
    return None if names is None else {name: getattr(value, name) for name in names}


def window_end(store: WindowStore, start: int) -> int:
    """Return where the window that starts there ends."""
    return min(start + (store.builder.window_size_ms or 0), LONG_MAX)
