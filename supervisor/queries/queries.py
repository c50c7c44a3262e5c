"""Queries of the state stores in the stream threads' processes, and the hosts of the stores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from penstock.workers.control.messages import Command, CommandResult, HostsChanged
from penstock.workers.group.streams_metadata import StreamsMetadataState

from ..processes.slot import Slot
from ..processes.worker import Worker

#: Creates a command from the id for its responses.
Question = Callable[[int], Command]


@dataclass(slots=True)
class Answers:
    """The responses to one query. results grows as they arrive; done is set when all have responded or ended.

    enough(result): True for a response that ends the wait for others. has_gaps: whether a stream thread that has tasks
    cannot respond. away: tasks of removed stream threads that no other one may have yet. of_any: ask only one stream
    thread, each time another one. task: ask only the stream thread with this active task, if there is one.
    """

    enough: Callable[[CommandResult], bool] = lambda _: False
    results: list[CommandResult] = field(default_factory=list)
    has_gaps: bool = False
    away: frozenset[str] = frozenset()
    done: Future[list[CommandResult]] = field(default_factory=Future)
    of_any: bool = False
    task: str | None = None


@dataclass(slots=True)
class _Pending:
    answers: Answers
    waiting: set[int]  # slots that have not responded


class Queries:
    """The open queries. Any thread may ask; the supervisor's loop passes on what the stream threads report.

    slots: those of the stream threads, which the supervisor's loop changes. now: returns its monotonic ms. metadata:
    the hosts of all parts of the state.
    """

    def __init__(self, application_server: str, slots: Mapping[int, Slot], now: Callable[[], int]) -> None:
        self.metadata = StreamsMetadataState(application_server)
        self._slots = slots
        self._now = now
        self._lock = threading.Lock()
        self._away: dict[str, int] = {}
        self._pending: dict[int, _Pending] = {}
        self._next_id = 0

    def leave(self, tasks: Iterable[str], until_ms: int) -> None:
        """Note the active tasks of a stream thread that was removed; at the latest then, another host has them."""
        with self._lock:
            self._away |= dict.fromkeys(tasks, until_ms)

    def return_to(self, tasks: Iterable[str] | None) -> None:
        """Note that other stream threads have these tasks; None: an assignment since has settled all."""
        with self._lock:
            for task in [*self._away] if tasks is None else tasks:
                self._away.pop(task, None)

    def ask(self, question: Question, answers: Answers) -> None:
        """Send a query to all stream threads, in the calling thread; see Answers.

        An ended process leaves its slot before on_gone(), so a query either does not reach it or is settled there.
        """
        with self._lock:
            slots = [(slot, slot.worker) for slot in [*self._slots.values()]]
            workers = [worker for _, worker in slots if worker is not None]
            answers.has_gaps = any(worker is None and not slot.is_new for slot, worker in slots)
            now_ms = self._now()
            answers.away = frozenset(task for task, until_ms in self._away.items() if now_ms < until_ms)
            self._next_id += 1
            self._ask(workers, question(self._next_id), answers)

    def _ask(self, workers: list[Worker], command: Command, answers: Answers) -> None:
        if answers.task is not None:
            workers = [worker for worker in workers if answers.task in worker.active_tasks]
        if answers.of_any:
            first = self._next_id % max(len(workers), 1)
            workers = workers[first:] + workers[:first]
            reached = next((worker for worker in workers if worker.send(command)), None)
            asked = set() if reached is None else {reached.spec.slot}
        else:
            asked = {worker.spec.slot for worker in workers if worker.send(command)}
        answers.has_gaps |= len(asked) < len(workers)
        self._pending[self._next_id] = _Pending(answers, asked)
        self._settle(self._next_id)

    def on_report(self, worker: Worker, report: CommandResult | HostsChanged) -> None:
        """Accept one stream thread's response, or its group's assignment."""
        if isinstance(report, HostsChanged):
            self.metadata.on_change(report)
        else:
            with self._lock:
                self._on_result(worker, report)

    def _on_result(self, worker: Worker, result: CommandResult) -> None:
        pending = self._pending.get(result.id)
        if pending is not None:
            pending.answers.results.append(result)
            pending.waiting.discard(worker.spec.slot)
            if pending.answers.enough(result):
                pending.waiting.clear()
            self._settle(result.id)

    def on_gone(self, worker: Worker) -> None:
        """Stop waiting for this stream thread: its process has ended."""
        with self._lock:
            for query_id, pending in list(self._pending.items()):
                pending.answers.has_gaps |= worker.spec.slot in pending.waiting
                pending.waiting.discard(worker.spec.slot)
                self._settle(query_id)

    def _settle(self, query_id: int) -> None:
        pending = self._pending[query_id]
        if not pending.waiting or pending.answers.done.cancelled():  # canceled: the caller has timed out
            del self._pending[query_id]
            if pending.answers.done.set_running_or_notify_cancel():
                pending.answers.done.set_result(pending.answers.results)


def others_of(found: Collection[str], tasks: Iterable[str]) -> list[str]:
    """Return those of the tasks that are not found, but belong to the sub-topology of one that is."""
    subtopologies = {task.partition("_")[0] for task in found}
    return [task for task in tasks if task not in found and task.partition("_")[0] in subtopologies]
