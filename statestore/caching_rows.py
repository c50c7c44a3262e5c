"""A table's store whose record cache keeps rows as bytes; see StoreBuilder.cached_as_rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.topology.serdes import Inline, as_serde, inline
from penstock.topology.store_interfaces import StoreBackend, StoreBuilder, StoreKind

from .caching_store import CachingKeyValueStore, CachingStore, Copy
from .state_store import LONG
from .values import headers_logged

#: Of a row: the timestamp, in front of the value.
TIMESTAMP_BYTES = 8


def can_cache_rows(builder: StoreBuilder) -> bool:
    """Return whether a store may be a CachingRowStore: its rows are timestamps and values that readers may change."""
    serde = as_serde(builder.value_serde)
    return (
        builder.cached_as_rows
        and builder.kind is StoreKind.TIMESTAMPED_KEY_VALUE
        and builder.backend is not StoreBackend.LRU
        and not builder.plain_values
        and not any(headers_logged(builder))
        and serde is not None
        and serde.copy is not None
    )


class CachingRowStore(CachingKeyValueStore):
    """A timestamped key-value store behind a cache of rows: 8 bytes of timestamp and the serialized value.

    A put serializes, a get parses, and a flush has nothing left to do but to write.
    """

    def _copier(self) -> Copy:
        return self.values.decode

    def _access(self) -> tuple[Callable[..., Any], ...]:
        get, put = self._getter(self._load, self.values.decode), self._putter(self.values.encode)
        return get, get, put, put

    def _below(self, key: Any) -> Any:
        return self.rows.get(self._row_key(key))

    def _row(self, value: Any) -> bytes | None:
        row: bytes | None = value
        return row

    def _own_value(self) -> Inline:
        return inline(self.serdes.decode_value).of(f"{{}}[{TIMESTAMP_BYTES}:]")

    def _write_entry(self, key: Any, value: Any) -> None:
        row_key = self._row_key(key)
        if value is None:
            self.rows.put(row_key, self._log_value(row_key, None))
            return
        if self.builder.logging:
            (timestamp,) = LONG.unpack_from(value)
            self.task.log_change(self.name, row_key, value[TIMESTAMP_BYTES:], timestamp)
        self.rows.put(row_key, value)

    _write_entries = CachingStore._write_entries  # not the one in line, which serializes
