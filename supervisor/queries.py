"""Questions to the state stores, which live in the processes of the stream threads, and where these are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from penstock.workers.control import Command, HostsChanged, QueryResult
from penstock.workers.streams_metadata import StreamsMetadataState

from .worker import Worker

#: Makes a command of the id that its answers must have.
Question = Callable[[int], Command]


@dataclass(slots=True)
class Answers:
    """What is answered to one question. results grows as answers come; done is set when all have answered or ended.

    enough(result): True for an answer behind which no other is waited for.
    """

    enough: Callable[[QueryResult], bool] = lambda _: False
    results: list[QueryResult] = field(default_factory=list)
    done: Future[list[QueryResult]] = field(default_factory=Future)


@dataclass(slots=True)
class _Pending:
    answers: Answers
    waiting: set[int]  # slots that have not answered


class Queries:
    """Which questions are open. Only the supervisor's thread may use it, but any may read metadata.

    metadata: which host has which part of the state.
    """

    def __init__(self, application_server: str) -> None:
        self.metadata = StreamsMetadataState(application_server)
        self._pending: dict[int, _Pending] = {}
        self._next_id = 0

    def ask(self, workers: Iterable[Worker], question: Question, answers: Answers) -> None:
        """Send a question to all; see Answers."""
        self._next_id += 1
        command = question(self._next_id)
        asked = {worker.spec.slot for worker in workers if worker.send(command)}
        self._pending[self._next_id] = _Pending(answers, asked)
        self._settle(self._next_id)

    def on_report(self, worker: Worker, report: QueryResult | HostsChanged) -> None:
        """Take one stream thread's answer, or what its group has assigned."""
        if isinstance(report, HostsChanged):
            self.metadata.on_change(report)
        else:
            self._on_result(worker, report)

    def _on_result(self, worker: Worker, result: QueryResult) -> None:
        pending = self._pending.get(result.id)
        if pending is not None:
            pending.answers.results.append(result)
            pending.waiting.discard(worker.spec.slot)
            if pending.answers.enough(result):
                pending.waiting.clear()
            self._settle(result.id)

    def on_gone(self, worker: Worker) -> None:
        """Wait for this stream thread no longer: its process has ended."""
        for query_id, pending in list(self._pending.items()):
            pending.waiting.discard(worker.spec.slot)
            self._settle(query_id)

    def _settle(self, query_id: int) -> None:
        pending = self._pending[query_id]
        if not pending.waiting or pending.answers.done.cancelled():  # cancelled: the asker has given up
            del self._pending[query_id]
            if pending.answers.done.set_running_or_notify_cancel():
                pending.answers.done.set_result(pending.answers.results)
