"""Subscriptions to the committed changes of a store: its rows as of a position, then every change of them.

The changelog is the log of committed changes, the same whichever process, or host, has a task. So a subscriber needs a
task only for the first rows, which come with the offset in the changelog that they are as of. From there on it reads
the changelog: what other subscribers have read already from the tail that they share, anything older with a consumer
that is closed once it has reached the tail. Values are shown by a stream thread, which has the serdes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import StreamsError
from penstock.topology.query.isolation_level import IsolationLevel
from penstock.topology.query.position import Position, merged
from penstock.topology.records import TopicPartition
from penstock.topology.type_variables import R
from penstock.workers.control.messages import Command, CommandResult, DescribeChangelog, ReadStore, ShowChanges
from penstock.workers.queries.store_answers import ChangelogView, Row

from ..supervisor import Supervisor
from .change_position import ChangePosition
from .changelog_tail import (
    BATCH_RECORDS,
    Change,
    ChangelogClients,
    ChangelogTail,
    OvertakenError,
    changes_of,
    position_gone,
    recreated,
)
from .queries import Answers
from .store_routing import RETRY_SECONDS, Found, QueryError, StoreQueries, ask_threads, no_thread, refused

if TYPE_CHECKING:
    from penstock.workers.tasks.partition_consumer import PartitionConsumer

#: Start of a subscription without rows: with the next change.
NOW = "now"
#: Maximum number of rows in a page; of a partition for rows that cannot be read page by page.
PAGE_ROWS = 10_000
#: How long a request to stream threads may take, and how long it is repeated while tasks move or are restored.
READ_SECONDS = 5.0
PATIENCE_SECONDS = 30.0
PAUSE_SECONDS = 0.1
#: How long the reading of older changes may block, in seconds.
CATCH_UP_SECONDS = 0.5
#: Maximum size of the records that a stream thread shows at a time, in bytes, unless it is one record.
SHOWN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A request: key, prefix, partition as in ReadStore; start: None for the rows first, NOW, or the id of an event."""

    store: str
    key: str | None = None
    prefix: str | None = None
    partition: int | None = None
    start: str | None = None


class StoreChanges:
    """Makes subscriptions, and the tails that they share. Any thread may use it."""

    def __init__(self, supervisor: Supervisor, queries: StoreQueries, config: StreamsConfig) -> None:
        self.subscribers_max: int = config["penstock.http.subscriptions.max"]
        self._supervisor = supervisor
        self._queries = queries
        self._bytes_max: int = config["penstock.http.subscriptions.buffer.bytes"]
        self._clients = ChangelogClients(config, supervisor.client_id)
        self._tails: dict[str, ChangelogTail] = {}
        self._lock = threading.Lock()

    def subscribe(self, request: Subscribe, wake: Callable[[], None]) -> Subscription:
        """Return a new subscription, which its user closes. wake: called in another thread when there may be news.

        Raises QueryError.
        """
        start = None if request.start in (None, NOW) else ChangePosition.parse(request.start)
        view = self._describe(request)
        tail = self._tail(view, wake)
        try:
            tail.open()
            positions = _positions(request, start, view, tail)
        except BaseException:
            self.release(tail, wake)
            raise
        return Subscription(self, request, view, tail, wake, positions)

    def _describe(self, request: Subscribe) -> ChangelogView:
        asked = request.store, request.key, request.prefix, request.partition, request.start is None
        result = self.ask(
            lambda number: DescribeChangelog(number, *asked), Answers(enough=lambda _: True), READ_SECONDS
        )
        if result.error is not None:
            raise refused(result)
        found: ChangelogView = result.value
        return found

    def ask(self, question: Callable[[int], Command], answers: Answers, timeout: float) -> CommandResult:
        """Return the first answer of a stream thread. Raises QueryError."""
        results = ask_threads(self._supervisor, question, answers, timeout)
        if not results:
            raise no_thread()
        return results[0]

    def read(self, request: ReadStore) -> Found:
        """Return committed rows, with their offset in the changelog, from this or another host. Raises QueryError."""
        found: Found = patiently(lambda: self._queries.read(request, READ_SECONDS, local=False, wait=READ_SECONDS))
        return found

    def consumer(self) -> PartitionConsumer:
        """Return a consumer of the changes before the tail."""
        return self._clients.consumer()

    def _tail(self, view: ChangelogView, wake: Callable[[], None]) -> ChangelogTail:
        with self._lock:
            tail = self._tails.get(view.topic)
            if tail is None or tail.has_failed:
                tail = ChangelogTail(view.topic, view.partitions, self._clients, self._bytes_max)
                self._tails[view.topic] = tail
            tail.subscribe(wake)
            return tail

    def release(self, tail: ChangelogTail, wake: Callable[[], None]) -> None:
        """End a subscriber's use of a tail; the last one closes it."""
        with self._lock:
            if not tail.unsubscribe(wake):
                return
            if self._tails.get(tail.topic) is tail:
                del self._tails[tail.topic]
        tail.close()


def _positions(
    request: Subscribe, start: ChangePosition | None, view: ChangelogView, tail: ChangelogTail
) -> dict[int, int]:
    """Return the positions at which a subscription begins, {} if its rows decide. Raises QueryError."""
    if request.start == NOW:
        ends = tail.ends()
        return ends if request.partition is None else {request.partition: ends[request.partition]}
    if start is None:
        return {}
    if start.topic_id != tail.topic_id:
        raise recreated(view.topic)
    wanted = set(range(view.partitions)) if request.partition is None else {request.partition}
    if start.offsets.keys() != wanted:
        raise QueryError(
            400,
            "BAD_REQUEST",
            f"The id has the partitions {sorted(start.offsets)}, and this subscription has {sorted(wanted)}: use an id "
            "only for the subscription that it comes from.",
        )
    for partition, (first, end) in tail.bounds(wanted).items():
        at = start.offsets[partition]
        if at > end:
            raise QueryError(
                400,
                "FUTURE_POSITION",
                f"The id is at offset {at} of {view.topic}-{partition}, which ends at {end}: it is of another log, "
                "or records were lost. Subscribe again without an id, which begins with the rows.",
            )
        if at < first:
            raise position_gone(view.topic, f"partition {partition} begins at offset {first}, the id is at {at}")
    return dict(start.offsets)


def patiently(action: Callable[[], R]) -> R:
    """Return the result of an action, repeated for a limited time after errors that allow it. Raises QueryError."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return action()
        except QueryError as error:
            if error.retry_after is None or time.monotonic() >= deadline:
                raise
        time.sleep(PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class ShownChange:
    """A change for a subscriber. row: JSON, without a value if the row was deleted. position: see Subscription."""

    change: Change
    row: bytes
    position: ChangePosition | None

    @property
    def is_deletion(self) -> bool:
        """Whether the row was deleted."""
        return self.change.record.value() is None


class Subscription:
    """Used by one subscriber. Its methods block for a limited time, except ``close``, and raise QueryError."""

    def __init__(
        self,
        changes: StoreChanges,
        request: Subscribe,
        view: ChangelogView,
        tail: ChangelogTail,
        wake: Callable[[], None],
        positions: dict[int, int],
    ) -> None:
        self.topic = view.topic
        self.has_rows = request.start is None
        #: Of the rows in the input; see Position.
        self.input_position: Position | None = None
        #: Whether it has read everything that the tail has.
        self.is_live = False
        self._changes = changes
        self._request = request
        self._view = view
        self._tail = tail
        self._wake = wake
        self._positions = positions
        #: By partition, the pages of its rows: the last key, None if there is no further page, and their offset.
        self._pages: dict[int, list[tuple[bytes | None, int]]] = {}
        self._place: int | None = None
        self._was_live = False
        self._consumer: PartitionConsumer | None = None
        self._lock = threading.Lock()  # held while the consumer is used
        self._is_closed = False

    @property
    def position(self) -> ChangePosition | None:
        """The position after all changes that were returned; None while no position describes them."""
        if any(self._positions[partition] < pages[-1][1] for partition, pages in self._pages.items()):
            return None  # the keys of later pages are ahead of the others
        return ChangePosition(self._tail.topic_id, dict(self._positions)) if self._positions else None

    # -- the rows

    def rows(self) -> Iterator[list[tuple[int, Row]]]:
        """Yield the rows page by page, with their partitions."""
        one = self._request.partition
        inputs: list[Position | None] = []
        for partition in range(self._view.partitions) if one is None else (one,):
            after: str | None = "" if self._view.has_pages else None
            while True:
                found = self._page(partition, after)
                inputs.append(found.position)
                after = found.after
                yield [(partition, row) for row in found.rows[:PAGE_ROWS]]
                if after is None:
                    break
        self.input_position = merged(inputs)

    def _page(self, partition: int, after: str | None) -> Found:
        request = self._request
        found = self._changes.read(
            ReadStore(
                0,
                request.store,
                request.key,
                prefix=request.prefix,
                limit=PAGE_ROWS,
                partition=partition,
                after=after,
                isolation=IsolationLevel.READ_COMMITTED,
                changelog=True,
            )
        )
        if partition not in found.changelog:
            raise QueryError(
                503, "HOST_FAILED", "The host with the task has an older version of Penstock, without subscriptions.", 5
            )
        if after is None and len(found.rows) > PAGE_ROWS:
            raise QueryError(
                413,
                "TOO_MANY_ROWS",
                f"Partition {partition} of {request.store} has more than {PAGE_ROWS} such rows, which cannot be read "
                "page by page. Subscribe to a key, or with from=now.",
            )
        at = found.changelog[partition]
        last = None if found.after is None else bytes.fromhex(found.after)
        self._pages.setdefault(partition, []).append((last, at))
        self._positions.setdefault(partition, at)
        return found

    # -- the changes

    def changes(self) -> list[ShownChange]:
        """Return the next changes; [] if there are none now, or none of those read were requested."""
        if self._place is None and not self._join():
            return self._older()
        assert self._place is not None
        try:
            batch, ends = self._tail.batch(self._place)
        except OvertakenError:
            if self._was_live:
                raise _slow() from None
            self._place = None
            return []
        if batch is None:
            self.is_live = self._was_live = True
            self._advance(ends)
            return []
        self.is_live = False
        self._place += 1
        return self._take(batch)

    def _join(self) -> bool:
        """Continue with the tail, if it has all further changes."""
        self._place = self._tail.place_of(self._positions)
        if self._place is not None:
            self._close_consumer()
        return self._place is not None

    def _older(self) -> list[ShownChange]:
        """Return some of the changes before those of the tail."""
        with self._lock:
            if self._is_closed:
                return []
            starts = self._tail.starts()
            behind = {
                TopicPartition(self.topic, partition): at
                for partition, at in self._positions.items()
                if at < starts[partition]
            }
            consumer = self._consumer = self._consumer or self._changes.consumer()
            try:
                consumer.unassign([p for p in consumer.assignment() if p not in behind])
                consumer.assign({p: at for p, at in behind.items() if p not in consumer.assignment()})
                batch = changes_of(consumer.poll(BATCH_RECORDS, CATCH_UP_SECONDS))
            except StreamsError as error:
                raise self._tail.unreadable(error) from error
            finally:
                if self._is_closed:
                    self._consumer = None
                    consumer.close()
            ends = {p.partition: consumer.position(p) or 0 for p in behind}
        shown = self._take(batch)
        self._advance(ends)
        return shown

    def _advance(self, ends: dict[int, int]) -> None:
        for partition, at in ends.items():
            if at > self._positions.get(partition, at):
                self._positions[partition] = at

    def _take(self, batch: tuple[Change, ...]) -> list[ShownChange]:
        wanted = [change for change in batch if self._wants(change)]
        self._show([change for change in wanted if change.row is None])
        shown, of = [], set(map(id, wanted))
        for change in batch:
            if change.offset < self._positions.get(change.partition, change.offset + 1):
                continue
            self._positions[change.partition] = change.offset + 1
            if id(change) in of:
                assert change.row is not None
                shown.append(ShownChange(change, change.row, self.position))
        return shown

    def _wants(self, change: Change) -> bool:
        """Return whether a change is requested, and neither in the rows nor returned already."""
        partition, data = change.partition, change.record.key()
        if data is None or change.offset < self._positions.get(partition, change.offset + 1):
            return False
        key = data[: len(data) - self._view.suffix]
        if self._view.key is not None and key != self._view.key:
            return False
        if self._view.prefix is not None and not key.startswith(self._view.prefix):
            return False
        pages = self._pages.get(partition, ())
        return change.offset >= next((at for last, at in pages if last is None or key <= last), 0)

    def _show(self, changes: list[Change]) -> None:
        """Let a stream thread show changes."""
        left = iter(changes)
        while part := _part(left):
            records = tuple(change.record for change in part)

            def show(records: tuple[Any, ...] = records) -> CommandResult:
                question = lambda number: ShowChanges(number, self._request.store, records)  # noqa: E731
                return self._changes.ask(question, Answers(of_any=True), READ_SECONDS)

            result: CommandResult = patiently(show)
            if result.error is not None:
                raise QueryError(409, "UNREADABLE_CHANGE", result.error)
            for change, row in zip(part, result.value, strict=True):
                change.row = row

    # -- the end

    def close(self) -> None:
        """Release everything; a call that is in progress in another thread ends by itself."""
        self._is_closed = True
        self._close_consumer()
        self._changes.release(self._tail, self._wake)

    def _close_consumer(self) -> None:
        consumer = self._consumer
        if consumer is None:
            return
        consumer.wake()
        with self._lock:
            if self._consumer is not None:
                self._consumer = None
                consumer.close()


def _part(changes: Iterator[Change]) -> list[Change]:
    """Return the next changes that are shown together, [] if there is none."""
    part = list(islice(changes, 1))
    size = sum(change.bytes for change in part)
    while size < SHOWN_BYTES and (more := next(changes, None)) is not None:
        part.append(more)
        size += more.bytes
    return part


def _slow() -> QueryError:
    return QueryError(
        503,
        "SLOW_READER",
        "This subscriber reads more slowly than the store changes, and its next changes are not kept any more. "
        "Continue from the id of the last event.",
        RETRY_SECONDS,
    )
