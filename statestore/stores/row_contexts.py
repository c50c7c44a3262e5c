"""Trace contexts of a table's rows: they link the reader of a row to the trace that wrote it.

Only with dsl.store.format=HEADERS and a processor wrapper, and only for sampled records. In the changelog, the context
is in the record's headers, where Kafka Streams' stores in that format have the headers of a value (KIP-1271). On disk,
contexts are separate from the rows, which are the same with and without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

from penstock.topology.context.processor_wrapper import KEY
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.context.task_context import TaskContext
from penstock.topology.context.trace_context import TRACEPARENT, TRACESTATE, trace_context
from penstock.topology.records import Headers, Message

from ..rows.bytes_store import BytesStore
from .values import LogValue

_CHECKSUM_BYTES = 4
_SEPARATOR = b"\0"


def keeps_contexts(builder: StoreBuilder, task: TaskContext) -> bool:
    """Return whether a store keeps trace contexts."""
    table = builder.kind is StoreKind.TIMESTAMPED_KEY_VALUE
    return table and builder.headers_format and task.config.get(KEY) is not None


class RowContexts:
    """The contexts of one store. Each has a checksum of its row, so an untraced update invalidates it."""

    def __init__(self, task: TaskContext, rows: BytesStore) -> None:
        self._task = task
        self._rows = rows

    def keeping(self, log: LogValue) -> LogValue:
        """Wrap log to also store the context of the record being processed."""
        task, keep = self._task, self._rows.keep_context

        def log_and_keep(key: bytes, value: Any) -> bytes | None:
            row = log(key, value)
            if row is None:
                keep(key, None)
            elif (context := trace_context(task.headers)) is not None:
                keep(key, _encode(row, context))
            return row

        return log_and_keep

    def noting(self, get: Callable[[Any], Any], context_of: Callable[[Any], Headers]) -> Callable[[Any], Any]:
        """Wrap get to also pass the context of the found row to the task, if requested."""
        task = self._task

        def get_and_note(key: Any) -> Any:
            found = get(key)
            if found is not None and task.row_contexts is not None:
                context = context_of(key)
                if context is not None:
                    task.row_contexts.append(context)
            return found

        return get_and_note

    def of_row(self, row_key: bytes) -> Headers:
        """Return the context of a key's row; None without one."""
        kept = self._rows.context(row_key)
        row = None if kept is None else self._rows.get(row_key)
        if kept is None or row is None or kept[:_CHECKSUM_BYTES] != _checksum(row):
            return None
        parent, _, state = kept[_CHECKSUM_BYTES:].partition(_SEPARATOR)
        return [(TRACEPARENT, parent), (TRACESTATE, state)] if state else [(TRACEPARENT, parent)]

    def restore(self, messages: Sequence[Message], row_of: Callable[[Message], bytes | None]) -> None:
        """Store the contexts of changelog records."""
        for message in messages:
            key, row = message.key(), row_of(message)
            if key is not None and row is not None and (context := trace_context(message.headers())) is not None:
                self._rows.keep_context(key, _encode(row, context))


def _encode(row: bytes, context: Headers) -> bytes:
    found = dict(context or ())
    state = found.get(TRACESTATE)
    return _checksum(row) + (found[TRACEPARENT] or b"") + (_SEPARATOR + state if state else b"")


def _checksum(row: bytes) -> bytes:
    return crc32(row).to_bytes(_CHECKSUM_BYTES, "big")
