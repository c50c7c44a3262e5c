"""Open scans: rows of stores as Arrow batches, read batch by batch between the batches of a stream thread.

A scan shows the rows as they were when it was opened: what RocksDB calls a snapshot, with a copy of the rows in memory.
It is complete, or it fails: if a task of it closes, its rows would be missing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.statestore.stores.state_store import Bounds, StateStore
from penstock.statestore.stores.store_iterator import ClosedStore
from penstock.statestore.view.arrow_extra import pyarrow
from penstock.statestore.view.spelling import BadKeyError, read_key
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.errors import InvalidStateStoreError
from penstock.topology.serdes.serdes import Serdes, as_serde

from ..control.messages import ReadScan, ReadStore
from .store_answers import ColumnsRead, ScanRead

if TYPE_CHECKING:
    from penstock.statestore.view.columns import StoreColumns

#: How many scans may be open at a time in a stream thread: each keeps RocksDB's files of its moment on the disk.
SCANS_MAX = 32
#: A read returns batches until they have so many bytes: up to a batch more.
READ_BYTES = 256 << 10
#: A scan that is not read for so long is closed: its reader is gone, or too slow. In seconds.
UNREAD_SECONDS = 30.0


@dataclass(slots=True)
class _Scan:
    """store: the name. parts: of each task the store, which shows whether the task has closed it, and the batches."""

    store: str
    read_at: float
    parts: list[tuple[StateStore, Generator[Any, None, None]]] = field(default_factory=list)


class ScansFullError(InvalidStateStoreError):
    """As many scans as are allowed are open."""


class OpenScans:
    """The scans of one stream thread, by number. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._scans: dict[int, _Scan] = {}

    def __len__(self) -> int:
        return len(self._scans)

    def open(self, request: ReadStore, store: StateStore, shown: StateStore) -> None:
        """Add a task's store to the scan of a request. shown: the store as of the request's isolation level."""
        pa, columns = pyarrow(), store_columns(shown)
        if request.scan not in self._scans:
            if len(self._scans) >= SCANS_MAX:
                raise ScansFullError(f"{SCANS_MAX} scans of stores are open already; try again.")
            self._scans[request.scan] = _Scan(request.store, self._clock())
        schema = pa.ipc.read_schema(pa.py_buffer(request.columns))
        rows = shown.stored_rows(bounds_of(request, shown))
        self._scans[request.scan].parts.append((store, _batches(columns, rows, schema)))

    def read(self, command: ReadScan) -> ScanRead | None:
        """Return the next rows; None if another process has to. Raises StreamsError, and then the scan is closed."""
        if command.reader not in (None, os.getpid()):
            return None
        scan = self._scans.get(command.scan)
        if scan is None:
            return None
        try:
            batches = _next(scan)
        except BaseException:
            self.end(command.scan)
            raise
        scan.read_at = self._clock()
        has_more = bool(scan.parts)
        if not has_more:
            self.end(command.scan)
        return ScanRead(tuple(batches), has_more)

    def end(self, number: int) -> None:
        """Close a scan, if it is open."""
        scan = self._scans.pop(number, None)
        for _, batches in () if scan is None else scan.parts:
            batches.close()

    def end_unread(self) -> None:
        """Close the scans whose readers are gone."""
        if self._scans:
            now = self._clock()
            for number in [n for n, scan in self._scans.items() if now - scan.read_at > UNREAD_SECONDS]:
                self.end(number)


def _next(scan: _Scan) -> list[bytes]:
    """Return the next batches, those of small tasks together. Raises InvalidStateStoreError if a task has moved."""
    found: list[bytes] = []
    size = 0
    while scan.parts and size < READ_BYTES:
        store, batches = scan.parts[0]
        batch = next(batches, None)
        if isinstance(store.rows, ClosedStore):  # which ends the rows without an error
            raise InvalidStateStoreError(f"A task of {scan.store} has moved while it was read. Try again.")
        if batch is None:
            del scan.parts[0]
        else:
            found.append(batch)
            size += len(batch)
    return found


def _batches(columns: StoreColumns, rows: Iterator[Any], schema: Any) -> Generator[bytes, None, None]:
    """Yield the batches of rows as bytes."""
    try:
        for batch in columns.batches(rows, schema):
            yield batch.serialize().to_pybytes()
    finally:
        close = getattr(rows, "close", None)
        if close is not None:
            close()


def columns_read(stores: list[StateStore]) -> ColumnsRead | None:
    """Return the columns of a store of several tasks; None without any."""
    if not stores:
        return None
    pyarrow()
    from penstock.statestore.view.columns import merged_schemas

    described = [(store_columns(store), store) for store in stores]
    schema = merged_schemas(columns.schema(store) for columns, store in described)
    sessions = stores[0].builder.kind is StoreKind.SESSION
    return ColumnsRead(schema.serialize().to_pybytes(), described[0][0].key_order, sessions)


def store_columns(store: StateStore) -> StoreColumns:
    """Return the columns of a task's store."""
    from penstock.statestore.view.columns import StoreColumns

    return StoreColumns(store)


def bounds_of(request: ReadStore, store: StateStore) -> Bounds:
    """Return the rows that a request wants; raises BadKeyError for bounds that do not fit the store."""
    builder: StoreBuilder = store.builder
    if not builder.windowed and (request.time_from is not None or request.time_to is not None):
        raise BadKeyError(
            f"time_from= and time_to= are for window and session stores, and {builder.name} is a {builder.kind.value} "
            "store."
        )
    encode_key, default = store.serdes.encode_key, Bounds()
    first, last = (
        None if text is None else encode_key(read_key(text, builder.key_serde, builder.name))
        for text in (request.key_from, request.key_to)
    )
    return Bounds(
        first,
        last,
        prefix_bytes(request.prefix, builder) if request.prefix else b"",
        default.time_from if request.time_from is None else request.time_from,
        default.time_to if request.time_to is None else request.time_to,
    )


def prefix_bytes(text: str, builder: StoreBuilder) -> bytes:
    """Return the beginning of serialized keys that a text spells. Raises BadKeyError."""
    if as_serde(builder.key_serde) is not Serdes.bytes():
        return text.encode()
    prefix: bytes = read_key(text, builder.key_serde, builder.name)  # type: ignore[assignment]
    return prefix
