"""Routes store reads to the stream thread, or the host, that has the key's task (KIP-67, KIP-535).

A read returns complete results, or an error that says whether to retry. Only a request for this host's part returns the
rows of some tasks without the others.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock.statestore.view.spelling import BadKeyError, read_key
from penstock.topology.context.partitioners import partition_for_key
from penstock.topology.errors import UnknownStateStoreError
from penstock.topology.query.position import Position, merged
from penstock.topology.records import TopicPartition
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.control.messages import CommandResult, ReadStore, numbered
from penstock.workers.group.streams_metadata import HostInfo
from penstock.workers.queries.store_answers import Reply, Row, StoreRead

from ..supervisor import Supervisor
from .queries import Answers, Question

T = TypeVar("T")

#: Default number of seconds after which a client may retry.
RETRY_SECONDS = 1
#: The code of the error for rows that have not reached the requested position (Kafka Streams: FailureReason).
NOT_UP_TO_BOUND = "NOT_UP_TO_BOUND"
#: How often rows that must reach a position are asked for: about as often as a stream thread processes a batch.
BOUND_POLL_SECONDS = 0.05


class QueryError(Exception):
    """An error response: an HTTP status, a code for programs, a sentence for people.

    retry_after: seconds, None if another attempt would fail in the same way.
    """

    def __init__(self, status: int, code: str, message: str, retry_after: int | None = None, **details: object) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after
        self.details = details

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the answer."""
        error = {"status": self.status, "code": self.code, "message": self.message, **self.details}
        if self.retry_after is not None:
            error["retry_after_seconds"] = self.retry_after
        return {"error": error}


class HostScan(Protocol):
    """The rows of another host's own tasks, as batches of Arrow."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield the batches. Raises QueryError."""

    def close(self) -> None:
        """Close the connection; the other host then closes the scan."""


@dataclass
class Scans:
    """The open scans of a request for columns. readers: the processes of this host; hosts: those of other hosts."""

    readers: list[int] = field(default_factory=list)
    hosts: list[HostScan] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of a read, in the order of their keys. lag: of the standby task that answered, None for an active one.

    tasks: the owners of the rows; complete: whether these are all tasks with a part of the store. after: the start of
    the next page, whose rows are in the store's order. position: of the rows in the input; None if a task does not
    know. scans: of a request for columns, which returns no rows. changelog: by partition, the offset in the changelog
    that the rows are as of; if requested.
    """

    rows: list[Row]
    tasks: list[str] = field(default_factory=list)
    lag: int | None = None
    complete: bool = True
    after: str | None = None
    position: Position | None = None
    scans: Scans = field(default_factory=Scans)
    changelog: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Owners:
    """Where the keys of a store should be, learned from an answer: stream threads are not all woken for each key.

    key_serde: the name of a built-in serde; task: any of the store's tasks; partitions: their number. It may be wrong,
    after a change of the topology or with the user's own partitioner.
    """

    key_serde: str
    task: str
    partitions: int

    def task_of(self, request: ReadStore) -> str | None:
        """Return the task that should have the key of a request; None if the key does not fit."""
        assert request.key is not None
        partition = request.partition
        if partition is None:
            serde = Serdes.of(self.key_serde)
            try:
                data = serde.serialize("", read_key(request.key, serde, request.store))
            except BadKeyError:  # the stream thread refuses it, with its own serde
                return None
            partition = None if data is None else partition_for_key(data, self.partitions)
        return None if partition is None else f"{self.task.rpartition('_')[0]}_{partition}"


class RemoteHosts(Protocol):
    """Queries other hosts; see http/forwarding.py."""

    def read(self, host: HostInfo, request: ReadStore, timeout: float) -> Found:
        """Return the rows of another host's own tasks, or their open scan. Raises QueryError."""

    def columns(self, host: HostInfo, store: str, timeout: float) -> Any:
        """Return the columns of a store in another host's tasks, a store_scans.Table. Raises QueryError."""


class Asking(NamedTuple):
    """A step of a read: wait for the answers of stream threads; see Supervisor.ask."""

    question: Question
    answers: Answers


#: What a read waits for: answers, or a function that blocks.
Step = Asking | Callable[[], Any]
#: A read: it yields steps, and gets their results. So a thread can wait for them, and an event loop needs no thread.
Steps = Generator[Step, Any, T]


async def followed(steps: Steps[T], done: Callable[[Step], Awaitable[object]]) -> T:
    """Return the result of steps. done: waits for a step, and returns its result."""
    step = next(steps)
    while True:
        try:
            result = await done(step)
        except Exception as error:  # noqa: BLE001  the steps' own to handle
            proceed = partial(steps.throw, error)
        else:
            proceed = partial(steps.send, result)
        try:
            step = proceed()
        except StopIteration as end:
            found: T = end.value
            return found


class StoreQueries:
    """Any thread may use it. remote: the other hosts; without it every read must be local.

    clock, pause: seconds, and the function that waits for some.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        remote: RemoteHosts | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._supervisor = supervisor
        self._remote = remote
        self._clock = clock
        self._pause = pause
        self._owners: dict[str, _Owners] = {}

    def read(self, request: ReadStore, timeout: float, local: bool, wait: float = 0) -> Found:
        """Return the result of a request; local: on this host only. Raises QueryError.

        wait: how long to ask again while the rows have not reached request.at_least, in seconds.
        """

        async def done(step: Step) -> object:
            return ask_threads(self._supervisor, *step, timeout) if isinstance(step, Asking) else step()

        reading = followed(self.steps(request, timeout, local, wait), done)
        try:
            reading.send(None)  # to its end: it never awaits what is not done
        except StopIteration as end:
            found: Found = end.value
            return found
        raise AssertionError("a step was not done in this thread")

    def steps(self, request: ReadStore, timeout: float, local: bool, wait: float = 0) -> Steps[Found]:
        """Return the steps of a read."""
        deadline = self._clock() + wait
        while True:
            try:
                return (yield from self._read_key_anywhere(request, timeout, local))
            except QueryError as error:
                if error.code != NOT_UP_TO_BOUND or self._clock() >= deadline:
                    raise
            yield partial(self._pause, BOUND_POLL_SECONDS)

    def _read_key_anywhere(self, request: ReadStore, timeout: float, local: bool) -> Steps[Found]:
        """Return the result of a request.

        If a key is not in the partition of Kafka's partitioner, all tasks are searched: confluent-kafka's default is
        another partitioner, and its records are processed as well.
        """
        found = yield from self._read(request, timeout, local)
        if found.rows or request.key is None or request.partition is not None or request.everywhere or local:
            return found
        return (yield from self._read(replace(request, everywhere=True), timeout, local))

    def _read(self, request: ReadStore, timeout: float, local: bool) -> Steps[Found]:
        self.check_running()
        answers = yield from self._ask(request)
        for answer in answers:
            _check_request(answer)
        if request.partition is None and (request.key is None or request.everywhere):
            found: Found = yield partial(self._range, request, answers, timeout, local)
            return found
        return (yield from self._one(request, answers, timeout, local))

    def check_running(self) -> None:
        """Raise QueryError unless the application is RUNNING or REBALANCING."""
        if not self._supervisor.states.state.is_running_or_rebalancing:
            state = self._supervisor.states.state.name
            raise QueryError(503, "NOT_RUNNING", f"The application is {state}.", RETRY_SECONDS)

    def _ask(self, request: ReadStore) -> Steps[list[StoreRead]]:
        if request.key is None or request.everywhere:
            found = yield from _answers(request, Answers())
        else:
            found = yield from self._ask_owner(request)
        if not found:
            raise no_thread()
        return found

    def _ask_owner(self, request: ReadStore) -> Steps[list[StoreRead]]:
        """Ask the stream thread that should have the key; all of them if it is not known, or has not."""
        owners = self._owners.get(request.store)
        task = None if owners is None else owners.task_of(request)
        if task is not None:
            found = yield from _answers(request, Answers(task=task))
            if any(map(_is_of_active, found)):
                return found
        found = yield from _answers(request, Answers(enough=_is_enough))
        for answer in found:
            if answer.key_serde and _is_of_active(answer):
                self._owners[request.store] = _Owners(answer.key_serde, answer.tasks[0], answer.partitions)
        return found

    def remote_columns(self, store: str, timeout: float) -> list[Any]:
        """Return the columns of a store, as store_scans.Table, on each other host with a part of it."""
        if self._remote is None:
            return []
        return [self._remote.columns(host, store, timeout) for host in self.hosts_with(store)]

    # -- one key, or one partition

    def _one(self, request: ReadStore, answers: list[StoreRead], timeout: float, local: bool) -> Steps[Found]:
        good = sorted((a for a in answers if a.reply is Reply.OK), key=lambda answer: answer.lag is not None)
        if good:
            best = good[0]
            rows = _ordered(request, best.rows)
            return Found(
                rows,
                list(best.tasks),
                best.lag,
                after=best.after,
                position=best.position,
                scans=Scans([best.reader] if best.tasks else []),
                changelog=best.changelog,
            )
        _check_bound(answers)
        waiting = next((answer for answer in answers if answer.reply is Reply.NOT_YET), None)
        hosts = [] if local else self._hosts_of(answers[0], request)
        if waiting is not None and (local or request.max_lag is None or not hosts):
            raise not_yet(waiting)
        if not hosts:
            raise self._nobody(answers[0], local)
        found: Found = yield partial(self._first, hosts, request, timeout)
        return found

    def _hosts_of(self, answer: StoreRead, request: ReadStore) -> list[HostInfo]:
        """Return the other hosts to query, the one with the active task first."""
        partition = answer.partition if answer.partition is not None else request.partition
        wanted = {TopicPartition(topic, partition) for topic in answer.topics if partition is not None}
        others = [m for m in self._supervisor.queries.metadata.others() if wanted]
        active = [m.host_info for m in others if m.topic_partitions & wanted]
        standby = [m.host_info for m in others if m.standby_topic_partitions & wanted]
        return active + (standby if request.max_lag is not None else [])

    def _first(self, hosts: list[HostInfo], request: ReadStore, timeout: float) -> Found:
        failed: QueryError | None = None
        assert self._remote is not None
        for host in hosts:
            try:
                return self._remote.read(host, request, timeout)
            except QueryError as error:
                failed = failed or error
        assert failed is not None
        raise failed

    def _nobody(self, answer: StoreRead, local: bool) -> QueryError:
        where = f"partition {answer.partition}" if answer.partition is not None else "this store"
        if local:
            text = f"The task of {where} is not on this host now."
        elif self._supervisor.queries.metadata.all_metadata():
            text = f"No host has the task of {where} now: it is moving."
        else:
            text = (
                f"The task of {where} is not on this host now. If the application has other hosts, set "
                "application.server on all of them, so that they can find each other."
            )
        return QueryError(503, "NOT_HERE", text, RETRY_SECONDS, partition=answer.partition)

    # -- a range

    def _range(self, request: ReadStore, answers: list[StoreRead], timeout: float, local: bool) -> Found:
        waiting = next((answer for answer in answers if answer.reply is Reply.NOT_YET), None)
        if waiting is not None:
            raise not_yet(waiting)
        _check_bound(answers)
        scans = Scans([answer.reader for answer in answers if answer.tasks])
        try:
            return self._whole_range(request, answers, timeout, local, scans)
        except BaseException:
            for scan in scans.hosts:
                scan.close()
            raise

    def _whole_range(
        self, request: ReadStore, answers: list[StoreRead], timeout: float, local: bool, scans: Scans
    ) -> Found:
        positions = [answer.position for answer in answers if answer.tasks]
        rows = [row for answer in answers for row in answer.rows]
        answered = [task for answer in answers for task in answer.tasks]
        tasks = set(answered)
        if tasks == {"global"}:
            first = Scans(scans.readers[:1])  # all processes have all rows
            return Found(_ordered(request, answers[0].rows), ["global"], position=answers[0].position, scans=first)
        wanted = max(answer.partitions for answer in answers)
        if not local and len(tasks) < wanted:
            assert self._remote is not None
            for host in self.hosts_with(request.store):
                part = self._remote.read(host, request, timeout)
                rows += part.rows
                answered += part.tasks
                positions.append(part.position)
                scans.hosts += part.scans.hosts
        tasks = set(answered)
        if len(tasks) < len(answered):
            raise QueryError(
                503,
                "INCOMPLETE",
                f"A task of {request.store} has moved while it was read, and would be in the answer twice. Try again.",
                RETRY_SECONDS,
            )
        if not local and len(tasks) < wanted:
            raise QueryError(
                503,
                "INCOMPLETE",
                f"{len(tasks)} of the {wanted} tasks with a part of {request.store} can be read at this moment. Try"
                " again, or read what is on this host with local=true. If the application has other hosts, set"
                " application.server on all of them.",
                RETRY_SECONDS,
            )
        complete = len(tasks) >= wanted
        return Found(_ordered(request, rows), sorted(tasks), complete=complete, position=merged(positions), scans=scans)

    def hosts_with(self, store: str) -> list[HostInfo]:
        """Return the other hosts with a part of a store."""
        return [m.host_info for m in self._supervisor.queries.metadata.others() if store in m.state_store_names]


def _answers(request: ReadStore, answers: Answers) -> Steps[list[StoreRead]]:
    yield Asking(partial(numbered, request), answers)
    return [result.value for result in answers.results if result.value is not None]


def ask_threads(supervisor: Supervisor, question: Question, answers: Answers, timeout: float) -> list[CommandResult]:
    """Return the answers of the stream threads. timeout: in seconds. Raises QueryError if they are busy."""
    try:
        return supervisor.ask(question, answers, timeout)
    except TimeoutError:
        raise busy(timeout) from None


def busy(timeout: float) -> QueryError:
    """Return the error for stream threads that have not answered. timeout: in seconds."""
    text = f"The stream threads did not answer within {timeout:g} s: they are busy."
    return QueryError(503, "TIMEOUT", text, RETRY_SECONDS)


def refused(result: CommandResult) -> QueryError:
    """Return the error for a request that a stream thread has refused."""
    if issubclass(result.kind, UnknownStateStoreError):
        return QueryError(404, "UNKNOWN_STORE", str(result.error))
    return QueryError(400, "BAD_REQUEST", str(result.error))


def no_thread() -> QueryError:
    """Return the error for an application none of whose stream threads has answered."""
    return QueryError(503, "NOT_RUNNING", "No stream thread is running now.", RETRY_SECONDS)


def _is_enough(result: CommandResult) -> bool:
    return result.value is not None and _is_of_active(result.value)


def _is_of_active(answer: StoreRead) -> bool:
    return answer.reply is Reply.OK and answer.lag is None


def _ordered(request: ReadStore, rows: list[Row] | tuple[Row, ...]) -> list[Row]:
    if request.after is not None:
        return list(rows)
    return sorted(rows, key=lambda row: row.order, reverse=request.reverse)


def _check_request(answer: StoreRead) -> None:
    if answer.reply is Reply.UNKNOWN_STORE:
        raise QueryError(404, "UNKNOWN_STORE", answer.detail)
    if answer.reply is Reply.BAD_REQUEST:
        raise QueryError(400, "BAD_REQUEST", answer.detail)
    if answer.reply is Reply.FULL:
        raise QueryError(503, "TOO_MANY_REQUESTS", answer.detail, RETRY_SECONDS)


def position_json(position: Position | None) -> dict[str, dict[str, int]] | None:
    """Return a position for JSON, whose keys are text."""
    if position is None:
        return None
    return {topic: {str(p): offset for p, offset in mine.items()} for topic, mine in position.to_map().items()}


def read_position(offsets: Mapping[str, Mapping[str, int]] | None) -> Position | None:
    """Return the position that position_json has written."""
    if offsets is None:
        return None
    return Position.from_map({topic: {int(p): at for p, at in mine.items()} for topic, mine in offsets.items()})


def _check_bound(answers: list[StoreRead]) -> None:
    behind = next((answer for answer in answers if answer.reply is Reply.BEHIND), None)
    if behind is not None:
        position = position_json(behind.position)
        raise QueryError(
            503, NOT_UP_TO_BOUND, behind.detail, RETRY_SECONDS, tasks=list(behind.tasks), position=position
        )


def not_yet(answer: StoreRead) -> QueryError:
    """Return the error for a task that cannot serve reads yet, with its progress."""
    if answer.lag is not None:
        return QueryError(503, "STANDBY_LAGS", answer.detail, RETRY_SECONDS, lag=answer.lag)
    eta = answer.eta_seconds
    details: Mapping[str, object] = {
        "tasks": list(answer.tasks),
        "restore_remaining": answer.restore_remaining,
        "restore_eta_seconds": eta,
    }
    return QueryError(503, "RESTORING", answer.detail, max(RETRY_SECONDS, min(round(eta or 0), 60)), **details)
