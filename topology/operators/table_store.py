"""How table operators read other tables and use their own store.

Kafka Streams: KTableValueGetterSupplier, KeyValueStoreWrapper, TimestampedTupleForwarder. A supplier is declared with
the topology; ``compile`` returns the getter of one task. A row is a ValueAndTimestamp or None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..context.store_interfaces import Cells, NodeRows, StoreKind
from ..errors import InvalidStateStoreError
from ..records import Change, Headers, ValueAndTimestamp, Windowed
from .operator import NodeContext

#: What ``put`` returns for the newest version of a key, and for a version that a versioned store did not keep.
IS_LATEST = -1
NOT_PUT = -(2**63)

#: The timestamp of a row whose timestamp is unknown (Kafka: ConsumerRecord.NO_TIMESTAMP).
NO_TIMESTAMP = -1

_TABLE_KINDS = (StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.VERSIONED_KEY_VALUE)

#: Creates a ValueAndTimestamp or a Change in half the time of calling its class.
new_row = tuple.__new__

#: update(key, new value, old value, timestamp of the row, timestamp and headers of the record); see TableStore.updater.
Update = Callable[[Any, Any, Any, int, int, Headers], None]


#: (key) -> row.
Getter = Callable[[Any], ValueAndTimestamp | None]
#: (key, timestamp in ms) -> row as of that time.
GetterAsOf = Callable[[Any, int], ValueAndTimestamp | None]


class KTableValueGetter:
    """The getter of one task (Kafka Streams: KTableValueGetter).

    get(key): the current row; get_as_of(key, timestamp): the row as of a time, None unless the table is versioned.
    get_forwarded(key): the row that the table forwarded last, without unflushed updates in its cache. A join of tables
    reads this row. If it read a row that is put and deleted between two flushes, and thus never forwarded, the result
    of that join would never be deleted.
    cells: the cache of the store if get returns its rows unchanged, otherwise None; rows: the same for a store without
    a cache.
    """

    __slots__ = ("cells", "get", "get_as_of", "get_forwarded", "rows")

    def __init__(
        self,
        get: Getter,
        get_as_of: GetterAsOf | None = None,
        cells: Cells | None = None,
        get_forwarded: Getter | None = None,
        rows: NodeRows | None = None,
    ) -> None:
        self.rows = rows
        self.get = get
        self.get_forwarded = get_forwarded or get
        self.get_as_of = get_as_of
        self.cells = cells

    def map(self, row: Callable[[Any, ValueAndTimestamp | None], ValueAndTimestamp | None]) -> KTableValueGetter:
        """Return a getter whose rows are row(key, row of this getter or None)."""
        get, as_of, forwarded = self.get, self.get_as_of, self.get_forwarded
        if as_of is None:
            return KTableValueGetter(lambda key: row(key, get(key)), get_forwarded=lambda key: row(key, forwarded(key)))
        return KTableValueGetter(lambda key: row(key, get(key)), lambda key, timestamp: row(key, as_of(key, timestamp)))


class KTableValueGetterSupplier(NamedTuple):
    """Declares how a table is read (Kafka Streams: KTableValueGetterSupplier).

    store_names: the stores that the reading node must be connected to. compile(node): the getter for one task.
    """

    store_names: tuple[str, ...]
    compile: Callable[[NodeContext], KTableValueGetter]


class Table(Protocol):
    """What an operator needs of its parent KTable."""

    def value_getter_supplier(self) -> KTableValueGetterSupplier:
        """Return how the table is read."""

    def enable_sending_old_values(self, force_materialization: bool) -> bool:
        """Make the table forward old values; returns whether it will."""


class TableStore:
    """The key-value store of a table, in one task.

    get(key) -> row or None; the caller may change its value. get_as_of: the same as of a time, None unless the store is
    versioned. as_read(value): a copy of the value as the store reads it back; raises the serde's errors.
    """

    __slots__ = ("as_read", "get", "get_as_of", "store")

    get: Getter

    def __init__(self, node: NodeContext, store_name: str) -> None:
        store = node.store(store_name)
        if store.builder.kind not in _TABLE_KINDS:
            raise InvalidStateStoreError(
                f"A table's store must be a timestamped or versioned key-value store, but {store_name} is a "
                f"{store.builder.kind.value} store (windowed aggregations of cogrouped streams cannot be read)"
            )
        self.store = store
        self.as_read = as_read(store)
        self.get_as_of: GetterAsOf | None = None
        if store.builder.kind is StoreKind.VERSIONED_KEY_VALUE:
            self.get = self.get_as_of = store.get_row
        else:
            self.get = store.get

    def updater(self, node: NodeContext, send_old_values: bool) -> tuple[Update, bool]:
        """Return a function that puts a new value and forwards the change, and whether it needs the old value.

        It does not if the store caches: the cache forwards merged changes when it is flushed, and finds old values
        itself. With or without a cache, the forwarded value is the one that the store reads back.
        """
        task, store = node.task, self.store
        hold, read, put_held = store.values.hold_plain, store.values.read_plain, store.put_held
        versioned = store.builder.kind is StoreKind.VERSIONED_KEY_VALUE
        forwards = forwards_itself(node, store, send_old_values)
        forward, has_children = node.forward, bool(node.children)

        def update(key: object, new: object, old: object, newest: int, timestamp: int, headers: Headers) -> None:
            held = None if new is None else hold(new)
            task.timestamp = timestamp
            task.headers = headers
            put_held(key, None if held is None else (held, newest))
            if forwards and has_children:
                forward(key, new_row(Change, (None if held is None else read(held), old, True)), newest, headers)

        def update_versioned(
            key: object, new: object, old: object, newest: int, timestamp: int, headers: Headers
        ) -> None:
            held = None if new is None else hold(new)
            task.timestamp = timestamp
            task.headers = headers
            code = put_held(key, held, newest)
            if forwards and has_children and code != NOT_PUT:
                forward(key, Change(None if held is None else read(held), old, code == IS_LATEST), newest, headers)

        return update_versioned if versioned else update, send_old_values and forwards


def window_updater(
    node: NodeContext, store: Any, send_old_values: bool, on_close: bool
) -> tuple[Callable[[Windowed, Any, Any, int, int, Headers], None], bool]:
    """As TableStore.updater, for a window store, whose keys are windowed. on_close: nothing is forwarded."""
    task, forward, put_held = node.task, node.forward, store.put_held
    hold, read = store.values.hold_plain, store.values.read_plain
    forwards = not on_close and forwards_itself(node, store, send_old_values)

    def update(window: Windowed, new: object, old: object, newest: int, timestamp: int, headers: Headers) -> None:
        held = None if new is None else hold(new)
        task.timestamp = timestamp
        task.headers = headers
        put_held(window[0], None if held is None else (held, newest), window[1])
        if forwards:
            forward(window, Change(None if held is None else read(held), old), newest, headers)

    return update, send_old_values and forwards


def session_updaters(
    node: NodeContext, store: Any, send_old_values: bool, on_close: bool
) -> tuple[Callable[[Windowed, Any, int, Headers], None], Callable[[Windowed, Any, int, Headers], None]]:
    """Return put(session, new aggregate, timestamp, headers), and remove, which gets the old one; see window_updater.

    A change has the timestamp of its session's end, and no headers.
    """
    task, forward = node.task, node.forward
    put_held, remove, hold, read = store.put_held, store.remove, store.values.hold, store.values.read
    forwards = not on_close and forwards_itself(node, store, send_old_values)

    def put_session(session: Windowed, new: object, timestamp: int, headers: Headers) -> None:
        held = hold(new)
        task.timestamp = timestamp
        task.headers = headers
        put_held(session, held)
        if forwards:
            forward(session, Change(read(held), None), session[2], None)

    def remove_session(session: Windowed, old: object, timestamp: int, headers: Headers) -> None:
        task.timestamp = timestamp
        task.headers = headers
        remove(session)
        if forwards:
            forward(session, Change(None, old if send_old_values else None), session[2], None)

    return put_session, remove_session


def as_read(store: Any) -> Callable[[Any], object]:
    """Return a function that copies a value (not None) as the store reads it back."""
    hold, read = store.values.hold_plain, store.values.read_plain
    return lambda value: read(hold(value))


def materialized_view(store_name: str) -> KTableValueGetterSupplier:
    """Return how a table is read from its key-value store (Kafka Streams: KTableMaterializedValueGetterSupplier)."""

    def compile_getter(node: NodeContext) -> KTableValueGetter:
        store = TableStore(node, store_name)
        if store.store.builder.kind is StoreKind.VERSIONED_KEY_VALUE:  # has no cache
            return KTableValueGetter(store.get, store.get_as_of)
        kept = store.store
        if node.notes_rows:
            return KTableValueGetter(store.get, get_forwarded=kept.get_forwarded)
        return KTableValueGetter(
            store.get, cells=kept.cells(), get_forwarded=kept.get_forwarded, rows=kept.timestamped_rows()
        )

    return KTableValueGetterSupplier((store_name,), compile_getter)


def forwards_itself(node: NodeContext, store: Any, send_old_values: bool) -> bool:
    """Return whether the operator must forward each update (Kafka Streams: TimestampedTupleForwarder).

    False: the store caches, and from now on forwards its merged updates itself when it is flushed.
    """
    return not store.send_changes(node.name, node.child, send_old_values)
