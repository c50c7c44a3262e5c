"""State stores for people and programs: keys as text, rows as plain values for JSON.

For the control socket, HTTP and ``penstock state``. Rows are current, including those in the record cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from penstock.topology.context.store_interfaces import StoreKind
from penstock.topology.errors import SerializationError
from penstock.topology.records import AggregationWithHeaders, ValueTimestampHeaders, VersionedRecord, Windowed

from ..stores.key_value_store import TaskKeyValueStore
from ..stores.segmented_stores import TaskSessionStore, TaskWindowStore
from ..stores.state_store import LONG_MAX, StateStore
from ..stores.values import TIMESTAMPED
from ..stores.versioned_store import VersionedStore
from .spelling import spell_bytes

Row = dict[str, Any]
#: Kinds that can be read from outside; buffers and the stores of joins are internal.
ReadableStore = TaskKeyValueStore | VersionedStore | TaskWindowStore | TaskSessionStore


def summary(store: StateStore) -> Row:
    """Return the kind of a store, and its approximate number of rows."""
    rows = getattr(store, "approximate_num_entries", None) or store.rows.approximate_num_entries
    return {
        "store": store.name,
        "kind": store.builder.kind.value,
        "backend": store.builder.backend.value,
        "entries": rows(),
        "changelog_offset": store.committed_offset(),
    }


def rows_of_key(
    store: ReadableStore, key: object, time_from: int = 0, time_to: int = LONG_MAX, *, reverse: bool = False
) -> Iterator[tuple[object, object]]:
    """Yield (key, value) of the rows of a key: one row, or one per window or session, with a Windowed.

    time_from, time_to: in ms, for window starts and overlapping sessions. reverse: the latest first.
    """
    if isinstance(store, TaskSessionStore):
        yield from (store.backward_find_sessions if reverse else store.find_sessions)(key, time_from, time_to)
    elif isinstance(store, TaskWindowStore):
        for start, value in (store.backward_fetch_range if reverse else store.fetch_range)(key, time_from, time_to):
            yield Windowed(key, start, store.window_end(start)), value
    elif (value := store.get(key)) is not None:
        yield key, value


def parts_of(kind: StoreKind, value: Any) -> Row:
    """Return the ``value`` of a row, and ``timestamp``, ``headers`` and ``valid_to`` if the kind of store has them."""
    if isinstance(value, ValueTimestampHeaders | AggregationWithHeaders):
        return {"value": value[0], **({"timestamp": value[1]} if len(value) > 2 else {}), "headers": value.headers}
    if kind in TIMESTAMPED:  # a cache may hold a plain tuple
        return {"value": value[0], "timestamp": value[1]}
    if isinstance(value, VersionedRecord):
        return {"value": value.value, "timestamp": value.timestamp, "valid_to": value.valid_to}
    return {"value": value}


def plain(value: object) -> Any:
    """Return a value for JSON; bytes are written as in spelling.py.

    Raises SerializationError for a value that is too deep for Python's stack.
    """
    try:
        return _plain(value)
    except RecursionError:
        raise SerializationError("a value has too many lists or objects inside of each other to be shown") from None


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else repr(value)  # JSON does not have nan and inf
    if isinstance(value, bytes):
        return spell_bytes(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(_plain(key)): _plain(item) for key, item in value.items()}
    fields = fields_of(value)
    if fields is not None:
        return _plain(fields)
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return str(value)


def fields_of(value: object) -> Mapping[str, object] | None:
    """Return the fields of a NamedTuple or a msgspec.Struct by name, None for anything else."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()  # type: ignore[no-any-return]
    names = getattr(type(value), "__struct_fields__", None)  # avoids importing msgspec, which nothing else here needs
    return None if names is None else {name: getattr(value, name) for name in names}
