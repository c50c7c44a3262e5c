"""The bytes of a row, alone, are read as the store reads them, for all kinds of stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock import StateStoreTypeError
from penstock.topology.context.store_interfaces import StoreBackend, StoreKind
from penstock.topology.records import VersionedRecord
from tests.statestore.kinds import TIMES_MS, builder
from tests.statestore.support import OpenStore
from tests.statestore.test_store_columns import KEYS, STORES, version_rows

#: Those whose rows are all visible.
RECENT_MS = TIMES_MS[:4]


def read(opened: OpenStore) -> Iterator[tuple[Any, Any]]:
    """Yield the rows one by one, without the entries of an index."""
    for key, row in opened.store.rows.scan(None, None):
        with suppress(StateStoreTypeError):
            yield opened.store.read_row(key, row)


@pytest.mark.parametrize("in_memory", [False, True], ids=["on disk", "in memory"])
@pytest.mark.parametrize("kind", STORES)
def test_a_row_is_read_as_the_store_reads_it(kind: str, in_memory: bool, tmp_path: Path) -> None:
    of, put, _ = STORES[kind]
    if in_memory and of.backend is StoreBackend.ROCKSDB:
        of = builder(
            of.kind, caching=of.caching, time_ordered=of.time_ordered, ttl=of.ttl, backend=StoreBackend.IN_MEMORY
        )
    opened = OpenStore(of, None if in_memory else tmp_path)
    for number, time_ms in enumerate(RECENT_MS):
        opened.task.timestamp = time_ms
        for key in KEYS:
            put(opened.store, key, time_ms, number)
    opened.commit()
    found = list(read(opened))
    if of.kind is StoreKind.VERSIONED_KEY_VALUE:
        versions: list[tuple[str, VersionedRecord]] = found
        assert sorted((key, *version) for key, version in versions) == sorted(version_rows(opened.store))
    else:
        assert len(found) >= 2
        assert sorted(found, key=repr) == sorted(opened.store.all(), key=repr)
    opened.store.close()


def test_a_deleted_version_has_no_value(tmp_path: Path) -> None:
    opened = OpenStore(STORES["versioned"][0], tmp_path)
    opened.store.put("a", None, 1_000)
    opened.commit()
    assert list(read(opened)) == [("a", None)]
    opened.store.close()


def test_rows_of_internal_stores_are_refused(tmp_path: Path) -> None:
    opened = OpenStore(builder(StoreKind.SUPPRESS_BUFFER), tmp_path)
    with pytest.raises(StateStoreTypeError, match="whose rows are internal"):
        opened.store.read_row(b"", b"")
    opened.store.close()
