"""The stores have the methods of their public types, KeyValueStore and the like, with the same parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from penstock import (
    KeyValueStore,
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyWindowStore,
    SessionStore,
    StoreBuilder,
    VersionedKeyValueStore,
    WindowStore,
)
from penstock.statestore.cache.caching_store import CachingKeyValueStore
from penstock.statestore.cache.caching_windows import CachingSessionStore, CachingWindowStore
from penstock.statestore.stores.key_value_store import TaskKeyValueStore
from penstock.statestore.stores.segmented_stores import TaskSessionStore, TaskWindowStore
from penstock.statestore.stores.versioned_store import VersionedStore
from penstock.supervisor.queries.queryable_store import QueryableStore
from penstock.topology.context.store_interfaces import StoreKind

IMPLEMENTATIONS: list[tuple[type, type]] = [
    (KeyValueStore, TaskKeyValueStore),
    (KeyValueStore, CachingKeyValueStore),
    (WindowStore, TaskWindowStore),
    (WindowStore, CachingWindowStore),
    (SessionStore, TaskSessionStore),
    (SessionStore, CachingSessionStore),
    (VersionedKeyValueStore, VersionedStore),
]


def methods(kind: type) -> dict[str, Any]:
    return {name: method for name, method in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}


def parameters(method: Any) -> list[tuple[str, Any]]:
    return [(parameter.name, parameter.default) for parameter in inspect.signature(method).parameters.values()]


@pytest.mark.parametrize(("kind", "implementation"), IMPLEMENTATIONS, ids=lambda kind: kind.__name__)
def test_a_store_has_the_methods_of_its_type(kind: type, implementation: type) -> None:
    assert methods(kind)
    for name, method in methods(kind).items():
        assert parameters(getattr(implementation, name)) == parameters(method), name


@pytest.mark.parametrize("kind", [ReadOnlyKeyValueStore, ReadOnlyWindowStore, ReadOnlySessionStore])
def test_a_queryable_store_declares_the_reads(kind: type) -> None:
    declared = QueryableStore.__annotations__.keys() | methods(QueryableStore).keys()
    assert methods(kind).keys() <= declared


def checked(  # checked by mypy, not run
    key_value: TaskKeyValueStore,
    window: TaskWindowStore,
    session: TaskSessionStore,
    versioned: VersionedStore,
    queryable: QueryableStore,
) -> tuple[
    KeyValueStore[str, int],
    WindowStore[str, int],
    SessionStore[str, int],
    VersionedKeyValueStore[str, int],
    ReadOnlyKeyValueStore[str, int],
    ReadOnlyWindowStore[str, int],
    ReadOnlySessionStore[str, int],
]:
    return key_value, window, session, versioned, queryable, queryable, queryable


def test_a_builder_is_created_with_its_type() -> None:
    assert StoreBuilder[KeyValueStore[str, int]]("counts", StoreKind.KEY_VALUE).name == "counts"
