"""Questions to the state stores, which live in the processes of the stream threads, and where these are."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from penstock.workers.control import HostsChanged, Query, QueryResult
from penstock.workers.streams_metadata import StreamsMetadataState

from .worker import Worker


@dataclass(slots=True)
class _Pending:
    answers: Future[list[QueryResult]]
    waiting: set[int]  # slots that have not answered
    results: list[QueryResult] = field(default_factory=list)


class Queries:
    """Which questions are open. Only the supervisor's thread may use it, but any may read metadata.

    metadata: which host has which part of the state.
    """

    def __init__(self, application_server: str) -> None:
        self.metadata = StreamsMetadataState(application_server)
        self._pending: dict[int, _Pending] = {}
        self._next_id = 0

    def ask(
        self,
        workers: Iterable[Worker],
        store: str,
        method: str,
        arguments: tuple[Any, ...],
        answers: Future[list[QueryResult]],
    ) -> None:
        """Send a question to all; the future gets the results when all have answered or ended."""
        self._next_id += 1
        query = Query(self._next_id, store, method, arguments)
        asked = {worker.spec.slot for worker in workers if worker.send(query)}
        self._pending[query.id] = _Pending(answers, asked)
        self._settle(query.id)

    def on_report(self, worker: Worker, report: QueryResult | HostsChanged) -> None:
        """Take one stream thread's answer, or what its group has assigned."""
        if isinstance(report, HostsChanged):
            self.metadata.on_change(report)
        else:
            self._on_result(worker, report)

    def _on_result(self, worker: Worker, result: QueryResult) -> None:
        pending = self._pending.get(result.id)
        if pending is not None:
            pending.results.append(result)
            pending.waiting.discard(worker.spec.slot)
            self._settle(result.id)

    def on_gone(self, worker: Worker) -> None:
        """Wait for this stream thread no longer: its process has ended."""
        for query_id, pending in list(self._pending.items()):
            pending.waiting.discard(worker.spec.slot)
            self._settle(query_id)

    def _settle(self, query_id: int) -> None:
        pending = self._pending[query_id]
        if not pending.waiting:
            del self._pending[query_id]
            if pending.answers.set_running_or_notify_cancel():  # False: the asker has given up
                pending.answers.set_result(pending.results)
