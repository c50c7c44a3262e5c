"""How table operators use their store (Kafka Streams: KeyValueStoreWrapper, TimestampedTupleForwarder)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ..errors import InvalidStateStoreError
from ..records import Change, Headers, ValueAndTimestamp
from ..serdes import copy_json
from ..store_interfaces import StoreKind
from .operator import NodeContext
from .value_getters import Getter, GetterAsOf, KTableValueGetter, KTableValueGetterSupplier

#: What ``put`` returns for the newest version of a key, and for one that a versioned store did not keep.
IS_LATEST = -1
NOT_PUT = -(2**63)

#: The timestamp of a row whose own is not known (Kafka: ConsumerRecord.NO_TIMESTAMP).
NO_TIMESTAMP = -1

_TABLE_KINDS = (StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.VERSIONED_KEY_VALUE)

_IMMUTABLE = frozenset((type(None), bool, int, float, str, bytes))


class TableStore:
    """The key-value store of a table, in one task.

    get(key) -> row or None; get_for_update(key): the same, but the value may be changed and put back;
    put(key, value, timestamp) -> IS_LATEST, NOT_PUT or another code; put_row(key, row or None): the same in fewer
    calls, for a row that the caller leaves to the store, None if the store is versioned; get_as_of is None unless it
    is.
    """

    __slots__ = ("get", "get_as_of", "get_for_update", "put", "put_row", "store")

    get: Getter
    get_for_update: Getter
    put: Callable[[Any, Any, int], int]

    def __init__(self, node: NodeContext, store_name: str) -> None:
        store = node.store(store_name)
        if store.builder.kind not in _TABLE_KINDS:
            raise InvalidStateStoreError(
                f"A table's store must be a timestamped or versioned key-value store, but {store_name} is a "
                f"{store.builder.kind.value} store (windowed aggregations of cogrouped streams cannot be read)"
            )
        self.store = store
        self.get_as_of: GetterAsOf | None = None
        self.put_row: Callable[[Any, ValueAndTimestamp | None], None] | None = None
        if store.builder.kind is StoreKind.VERSIONED_KEY_VALUE:
            self.get = self.get_for_update = _get_versioned(store)
            self.get_as_of = _get_versioned_as_of(store)
            self.put = store.put
        else:
            self.get = store.get
            self.get_for_update = store.get_for_update
            self.put = _put_timestamped(store)
            self.put_row = store.put_owned


def _put_timestamped(store: Any) -> Callable[[Any, Any, int], int]:
    store_put = store.put

    def put(key: Any, value: Any, timestamp: int) -> int:
        store_put(key, None if value is None else ValueAndTimestamp(value, timestamp))
        return IS_LATEST

    return put


def _get_versioned(store: Any) -> Getter:
    store_get = store.get

    def get(key: Any) -> ValueAndTimestamp | None:
        found = store_get(key)
        return None if found is None else ValueAndTimestamp(found.value, found.timestamp)

    return get


def _get_versioned_as_of(store: Any) -> GetterAsOf:
    store_get = store.get

    def get_as_of(key: Any, timestamp: int) -> ValueAndTimestamp | None:
        found = store_get(key, timestamp)
        return None if found is None else ValueAndTimestamp(found.value, found.timestamp)

    return get_as_of


class KTableMaterializedValueGetterSupplier(KTableValueGetterSupplier):
    """Reads a table from its key-value store (also for Kafka Streams' KTableSourceValueGetterSupplier)."""

    def __init__(self, store_name: str) -> None:
        self.store_name = store_name

    @property
    def store_names(self) -> tuple[str, ...]:
        """See KTableValueGetterSupplier."""
        return (self.store_name,)

    def compile(self, node: NodeContext) -> KTableValueGetter:
        """See KTableValueGetterSupplier."""
        store = TableStore(node, self.store_name)
        timestamped = store.store.builder.kind is StoreKind.TIMESTAMPED_KEY_VALUE
        return KTableValueGetter(store.get, store.get_as_of, store.store.cells() if timestamped else None)


def forwards_itself(node: NodeContext, store: Any, send_old_values: bool) -> bool:
    """Return whether the operator must forward each update (Kafka Streams: TimestampedTupleForwarder).

    False: the store caches, and from now on forwards its merged updates itself when it is flushed.
    """
    forward = node.forward

    def flushed(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        if new is not None:
            timestamp = new[1]
        forward(key, Change(None if new is None else new[0], None if old is None else old[0]), timestamp, headers)

    node.owns(flushed)
    return not store.set_flush_listener(flushed, send_old_values)


def private_copy(value: Any) -> Any:
    """Return a copy that shares nothing changeable with value, so that a user's function may change value in place."""
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    return copy_json(value) if kind is dict or kind is list else copy.deepcopy(value)
