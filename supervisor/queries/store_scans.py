"""Reads whole stores as batches of Arrow, over all stream threads and hosts; see workers/queries/store_scans.py.

Needs penstock-streams[sql]. Batches stay bytes here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.statestore.view.arrow_extra import pyarrow
from penstock.topology.errors import InvalidStateStoreError, StreamsError
from penstock.topology.query.position import Position
from penstock.workers.control.messages import DescribeColumns, EndScan, ReadScan, ReadStore
from penstock.workers.queries.store_answers import ScanRead

from ..supervisor import Supervisor
from .queries import Answers
from .store_routing import RETRY_SECONDS, Found, QueryError, StoreQueries, ask_threads, refused

if TYPE_CHECKING:
    import pyarrow as pa

#: How long stream threads may take to close a scan; they close it later all the same. In seconds.
CLOSE_SECONDS = 1.0
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Table:
    """A store as a table. schema: its columns. key_order, sessions: see ColumnsRead."""

    schema: pa.Schema
    key_order: str
    sessions: bool


class Scan:
    """The rows of a store as of its position, in batches of Arrow as bytes. Close it.

    found: what the hosts have opened; timeout: of each read, in seconds.
    """

    def __init__(self, request: ReadStore, found: Found, supervisor: Supervisor, timeout: float) -> None:
        #: The position of the rows in the input; None if a task does not know.
        self.position: Position | None = found.position
        #: The owners of the rows, and whether these are all tasks with a part of the store.
        self.tasks, self.complete = found.tasks, found.complete
        self._scans = found.scans
        self._request = request
        self._supervisor = supervisor
        self._timeout = timeout
        self._left = len(found.scans.readers)  # stream threads that have rows left

    def __iter__(self) -> Iterator[bytes]:
        """Yield the batches. Raises QueryError unless all rows can be read."""
        while self._left:
            reads = self._read()
            self._left = sum(read.has_more for read in reads)
            for read in reads:
                yield from read.batches
        for host in self._scans.hosts:
            yield from host

    def _read(self) -> list[ScanRead]:
        """Return the next batches of each stream thread that has some left."""
        scan, store = self._request.scan, self._request.store
        reader = self._scans.readers[0] if self.tasks == ["global"] else None
        results = ask_threads(self._supervisor, lambda n: ReadScan(n, scan, reader), Answers(), self._timeout)
        for failed in (result for result in results if result.error is not None):
            if failed.kind is InvalidStateStoreError:
                raise QueryError(503, "INCOMPLETE", str(failed.error), RETRY_SECONDS)
            raise QueryError(400, "BAD_REQUEST", str(failed.error))
        reads = [result.value for result in results if result.value is not None]
        if len(reads) < self._left:
            text = f"A stream thread with rows of {store} has ended, or has waited too long for its reader. Try again."
            raise QueryError(503, "INCOMPLETE", text, RETRY_SECONDS)
        return reads

    def close(self) -> None:
        """Close the scan on all hosts."""
        for host in self._scans.hosts:
            host.close()
        if self._left or self.tasks == ["global"]:
            _end(self._supervisor, self._request.scan)


class StoreScans:
    """Any thread may use it. queries: they find the hosts and stream threads."""

    def __init__(self, supervisor: Supervisor, queries: StoreQueries) -> None:
        self._supervisor = supervisor
        self._queries = queries

    def columns(self, store: str, timeout: float, local: bool) -> Table | None:
        """Return the columns of a store, with null for unknown types; None if no running task has the store.

        local: of the tasks on this host. Raises QueryError.
        """
        pa = pyarrow()
        from penstock.statestore.view.columns import merged_schemas

        results = ask_threads(self._supervisor, lambda number: DescribeColumns(number, store), Answers(), timeout)
        for failed in (result for result in results if result.error is not None):
            raise refused(failed)
        found = [
            Table(pa.ipc.read_schema(pa.py_buffer(read.schema)), read.key_order, read.sessions)
            for read in (result.value for result in results)
            if read is not None
        ]
        if not local:
            remote: list[Table] = self._queries.remote_columns(store, timeout)
            found += [table for table in remote if table.schema.names]
        return replace(found[0], schema=merged_schemas(table.schema for table in found)) if found else None

    def table(self, store: str, timeout: float, local: bool = False) -> Table:
        """Return a store as a table. Raises QueryError."""
        found = self.columns(store, timeout, local)
        if found is None:
            raise QueryError(503, "NOT_HERE", f"No task of {store} is running now. Try again.", RETRY_SECONDS)
        from penstock.statestore.view.columns import table_schema

        try:
            return replace(found, schema=table_schema([found.schema], store))
        except StreamsError as error:
            raise QueryError(400, "BAD_REQUEST", str(error)) from error

    def open(self, request: ReadStore, schema: pa.Schema, timeout: float, local: bool, wait: float = 0) -> Scan:
        """Open a scan of some of the columns of a table. Raises QueryError.

        request: which rows. wait: see StoreQueries.read.
        """
        columns: bytes = schema.serialize().to_pybytes()
        request = replace(request, columns=columns, scan=next(_numbers))
        try:
            found = self._queries.read(request, timeout, local, wait)
        except BaseException:
            _end(self._supervisor, request.scan)
            raise
        return Scan(request, found, self._supervisor, timeout)


def _end(supervisor: Supervisor, scan: int) -> None:
    with suppress(QueryError):
        ask_threads(supervisor, lambda number: EndScan(number, scan), Answers(), CLOSE_SECONDS)
