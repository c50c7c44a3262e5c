"""Reads state stores by keys given as text, for queries over HTTP (KIP-67, KIP-535, KIP-562).

The stream thread has the serdes and the tasks, so it decides everything: the type of the key, its partition, and
whether its task is here and may answer. Values leave the process as rows of JSON, so users' classes stay inside.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, takewhile
from typing import Any

import orjson

from penstock.statestore.stores.key_value_store import TaskKeyValueStore
from penstock.statestore.stores.segmented_stores import TaskSessionStore, TaskWindowStore
from penstock.statestore.stores.state_store import LONG_MAX, StateStore
from penstock.statestore.stores.versioned_store import VersionedStore
from penstock.statestore.view.spelling import BadKeyError, read_key
from penstock.statestore.view.store_view import parts_of, plain, rows_of_key
from penstock.topology.context.partitioners import partition_for_key
from penstock.topology.context.store_facades import view_of_results
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.errors import BrokerUnavailableError, StreamsError, UnknownStateStoreError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.query.isolation_level import IsolationLevel
from penstock.topology.query.position import Position, merged
from penstock.topology.records import TaskId
from penstock.topology.serdes.serdes import PlainSerde, as_serde

from ..control.messages import ReadStore
from ..group.source_topics import BuiltTopologies
from ..group.topic_names import TopicNames
from ..restore.store_changelog_reader import StoreChangelogReader
from ..tasks.global_state import GlobalState
from ..tasks.task import Task
from ..tasks.task_manager import TaskManager
from ..tasks.task_state import TaskState
from .store_answers import ColumnsRead, Reply, Row, StoreRead
from .store_scans import OpenScans, ScansFullError, columns_read, prefix_bytes

#: Stands for the id of a task in answers about a global store.
GLOBAL = "global"
READABLE = (
    *(StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.VERSIONED_KEY_VALUE),
    *(StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW, StoreKind.SESSION),
)


#: (key, value), as store_view.rows_of_key gives them
_Found = Iterator[tuple[Any, Any]]


@dataclass(eq=False)
class StoreReader:
    """Reads the stores of one stream thread, between two batches."""

    topologies: BuiltTopologies
    topics: TopicNames
    task_manager: TaskManager
    global_state: GlobalState
    changelog_reader: StoreChangelogReader
    partition_count: Callable[[str], int]
    default_isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    scans: OpenScans = field(default_factory=OpenScans)

    def read(self, request: ReadStore) -> StoreRead:
        """Answer a request; errors become part of the answer and never end the thread."""
        answer = self._answer(request)
        if answer.reply is not Reply.OK and request.columns is not None:
            self.scans.end(request.scan)  # another task may have opened it
        return answer

    def _answer(self, request: ReadStore) -> StoreRead:
        try:
            return self._read(request)
        except ScansFullError as error:
            return StoreRead(Reply.FULL, str(error))
        except BrokerUnavailableError as error:
            return StoreRead(Reply.NOT_YET, str(error))
        except UnknownStateStoreError as error:
            return StoreRead(Reply.UNKNOWN_STORE, str(error))
        except StreamsError as error:
            return StoreRead(Reply.BAD_REQUEST, str(error))
        except Exception as error:  # noqa: BLE001  a user's serde may raise anything
            return StoreRead(Reply.BAD_REQUEST, f"{type(error).__name__}: {error}")

    def _read(self, request: ReadStore) -> StoreRead:
        if self.is_global(request.store):
            return self._read_global(request)
        topology = next(t for t in self.topologies if request.store in t.stores)
        builder = topology.stores[request.store]
        check_readable(builder)
        if not request.at_least.is_empty:
            self.check_bound(request.store, request.at_least)
        topics = self._topics(request.store)
        self.check_partition(request.store, request.partition)
        if request.key is None or request.everywhere:
            return self._read_range(request, topology)
        key = read_key(request.key, builder.key_serde, builder.name)
        partition = self._partition(key, builder, topics) if request.partition is None else request.partition
        task = self._task(TaskId(topology.subtopology, partition))
        if task is None:
            return StoreRead(Reply.ELSEWHERE, partition=partition, topics=topics)
        serde = as_serde(builder.key_serde)
        name = serde.name if isinstance(serde, PlainSerde) else ""
        partitions = self._partitions(topics)
        found = partial(StoreRead, partition=partition, topics=topics, partitions=partitions, key_serde=name)
        return self._read_task(request, task, found)

    def is_global(self, store: str) -> bool:
        """Return whether a store is global; raises UnknownStateStoreError if the topology has none of this name."""
        if any(store in topology.stores for topology in self.topologies):
            return False
        if any(store in topology.global_stores for topology in self.topologies):
            return True
        known = sorted(name for topology in self.topologies for name in (*topology.stores, *topology.global_stores))
        names = ", ".join(dict.fromkeys(known)) or "none"
        raise UnknownStateStoreError(f"The topology has no state store {store!r}; it has: {names}.")

    def check_partition(self, store: str, partition: int | None) -> None:
        """Raise BadKeyError for a partition that a store does not have; None is right."""
        if partition is None:
            return
        partitions = self.partitions_of(store)
        if not 0 <= partition < partitions:
            raise BadKeyError(f"The store {store} has {partitions} partitions, from 0 to {partitions - 1}.")

    def partitions_of(self, store: str) -> int:
        """Return the number of a store's partitions, on all hosts."""
        return self._partitions(self._topics(store))

    def builder(self, store: str) -> StoreBuilder:
        """Return how a store is built. Raises UnknownStateStoreError."""
        if self.is_global(store):
            found: StoreBuilder = self.global_state.task.stores[store].builder
            return found
        return next(topology.stores[store] for topology in self.topologies if store in topology.stores)

    def check_bound(self, store: str, bound: Position) -> None:
        """Raise BadKeyError for a bound that a store can never reach: of partitions that are not its input."""
        if self.is_global(store):
            if not bound.is_empty:
                raise BadKeyError("at_least= is for stores of tasks; every host has all rows of a global store.")
            return
        topology = next(t for t in self.topologies if store in t.stores)
        inputs = {self.topics.full(topic) for topic in topology.source_topics}
        for topic, partition in bound.offsets:
            if topic not in inputs:
                known = ", ".join(sorted(inputs))
                raise BadKeyError(f"at_least= names {topic}, which is no input of {store}; these are: {known}.")
            if not 0 <= partition < self.partition_count(topic):
                raise BadKeyError(f"at_least= names partition {partition} of {topic}, which does not exist.")

    def _read_global(self, request: ReadStore) -> StoreRead:
        self.check_bound(request.store, request.at_least)
        store = self.global_state.task.stores[request.store]
        rows = self._rows(request, store, store, GLOBAL)
        position = self.global_state.position(request.store)
        return StoreRead(Reply.OK, rows=rows, partition=-1, tasks=(GLOBAL,), position=position, reader=os.getpid())

    def columns(self, store: str) -> ColumnsRead | None:
        """Return the columns of a store; None if no running task here has it. Raises UnknownStateStoreError."""
        if self.is_global(store):
            return columns_read([self.global_state.task.stores[store]])
        check_readable(self.builder(store))
        tasks = self.task_manager.active.running.values()
        return columns_read([task.state_manager.stores[store] for task in tasks if store in task.topology.stores])

    def _rows(self, request: ReadStore, store: StateStore, shown: StateStore, task: str) -> tuple[Row, ...]:
        """Return the rows of a task's store, or open their scan, if columns are wanted. shown: as of a level."""
        if request.columns is None:
            return _rows(request, shown, task)
        self.scans.open(request, store, shown)
        return ()

    def isolated(self, store: StateStore, isolation: IsolationLevel | None) -> StateStore:
        """Return a task's store for reads of an isolation level, None for the configuration's."""
        found: StateStore = store.read_only(isolation or self.default_isolation)
        return found

    def position(self, task: Task, store: str, isolation: IsolationLevel | None) -> Position | None:
        """Return the position of the rows of isolated() in the task's input; None if the task does not know."""
        return task.position(store, isolation or self.default_isolation)

    def _topics(self, store: str) -> tuple[str, ...]:
        return tuple(sorted(self.topologies.store_topics(self.topics).get(store, ())))

    def _partitions(self, topics: tuple[str, ...]) -> int:
        return max(map(self.partition_count, topics), default=1)

    def _partition(self, key: object, builder: StoreBuilder, topics: tuple[str, ...]) -> int:
        serde = as_serde(builder.key_serde)
        data = None if serde is None or not topics else serde.serialize(topics[0], key)
        if data is None:
            raise BadKeyError(f"The partition of this key in {builder.name} is not known; give it with partition=.")
        return partition_for_key(data, self._partitions(topics))

    def _task(self, task_id: TaskId) -> Task | None:
        return self.task_manager.all_tasks().get(task_id)

    def _read_range(self, request: ReadStore, topology: ProcessorTopology) -> StoreRead:
        manager = self.task_manager
        tasks: list[Task] = [*manager.active.all_tasks().values()]
        if request.max_lag is not None and request.partition is not None:  # otherwise a row could be read from both
            tasks += manager.standby.all_tasks().values()
        mine = sorted((t for t in tasks if t.task_id.subtopology == topology.subtopology), key=lambda t: t.task_id)
        if request.partition is not None:
            mine = [task for task in mine if task.task_id.partition == request.partition]
        answers = [self._read_task(request, task) for task in mine]
        failed = next((answer for answer in answers if answer.reply is not Reply.OK), None)
        if failed is not None:
            return failed
        topics = self._topics(request.store)
        partitions = self._partitions(topics)
        if not answers:
            return StoreRead(Reply.ELSEWHERE, partition=request.partition, topics=topics, partitions=partitions)
        return StoreRead(
            Reply.OK,
            rows=tuple(row for answer in answers for row in answer.rows),
            tasks=tuple(task for answer in answers for task in answer.tasks),
            topics=topics,
            partition=request.partition,
            partitions=partitions,
            lag=max((answer.lag for answer in answers if answer.lag is not None), default=None),
            after=answers[0].after,
            position=merged(answer.position for answer in answers),
            reader=os.getpid(),
            changelog={partition: at for answer in answers for partition, at in answer.changelog.items()},
        )

    def _read_task(self, request: ReadStore, task: Task, found: Callable[..., StoreRead] = StoreRead) -> StoreRead:
        """Read one task, if it may answer: a running active task, or a standby task that has caught up enough.

        found: makes the answer, of a key with its place; a copy with it would cost a sixth of a read.
        """
        reader, name = self.changelog_reader, str(task.task_id)
        active = task.kind == "task"
        lag = None if active else reader.lag(task)
        if task.state is not TaskState.RUNNING:
            return self._not_yet(task, found)
        if not active and request.max_lag is None:
            return found(Reply.ELSEWHERE)
        if not active and (lag is None or lag > (request.max_lag or 0)):
            behind = "an unknown number of" if lag is None else str(lag)
            return found(
                Reply.NOT_YET,
                f"The standby task {name} is {behind} records behind, more than max_lag={request.max_lag}.",
                lag=lag,
            )
        position = self.position(task, request.store, request.isolation)
        if not (position or Position()).reaches(request.at_least, task.task_id.partition):
            if not active:
                return found(Reply.ELSEWHERE)  # only an active task knows its position
            detail = f"The rows of task {name} are as of {position}, not yet as of {request.at_least}."
            return found(Reply.BEHIND, detail, tasks=(name,), position=position)
        store = task.state_manager.stores[request.store]
        shown = self.isolated(store, request.isolation)
        changelog = {}
        if request.changelog:
            offset = task.changelog_offset(request.store)
            if offset is None:
                detail = f"The end of the changelog as of the last commit of task {name} is not known yet."
                return found(Reply.BEHIND, detail, tasks=(name,), position=position)
            changelog = {task.task_id.partition: offset}
        rows = self._rows(request, store, shown, name)
        after = page_after(request, shown, rows)
        return found(Reply.OK, rows=rows, tasks=(name,), lag=lag, after=after, position=position, changelog=changelog)

    def _not_yet(self, task: Task, found: Callable[..., StoreRead]) -> StoreRead:
        reader = self.changelog_reader
        remaining, rate = reader.progress(task)[0], reader.rate(task)
        left = remaining or "an unknown number of"
        return found(
            Reply.NOT_YET,
            f"Task {task.task_id} is {task.state.name}: {left} records are still to be restored.",
            tasks=(str(task.task_id),),
            restore_remaining=remaining,
            eta_seconds=remaining / rate if remaining and rate else None,
        )


def _rows(request: ReadStore, store: StateStore, task: str) -> tuple[Row, ...]:
    with closing(rows_of(request, store, task)) as rows:
        return tuple(islice(rows, request.limit + 1))


def check_readable(builder: StoreBuilder) -> None:
    """Raise BadKeyError for an operator's internal store."""
    if builder.kind not in READABLE:
        raise BadKeyError(f"{builder.name} is a {builder.kind.value} store, which cannot be read as rows.")


def rows_of(request: ReadStore, store: StateStore, task: str) -> Generator[Row, None, None]:
    """Yield all rows of a task's store that match a request. Raises BadKeyError."""
    builder: StoreBuilder = store.builder
    check_readable(builder)
    encode = _order(builder)
    if isinstance(store, TaskWindowStore | TaskSessionStore):
        rows = _window_rows(request, store, builder)
    else:
        assert isinstance(store, TaskKeyValueStore | VersionedStore)  # see READABLE
        rows = _key_value_rows(request, store, builder)
    for key, value in rows:
        order = encode(key.key) + b"%020d" % key.start if builder.windowed else encode(key)
        if builder.windowed or not request.after or order.hex() != request.after:
            yield Row(order, row_json(key, value, builder), task)


def page_after(request: ReadStore, store: StateStore, rows: tuple[Row, ...]) -> str | None:
    """Return the position after which the next page starts: the last key, and for windows and sessions the number of
    rows.
    """
    if request.after is None or len(rows) <= request.limit:
        return None
    windowed = store.builder.windowed
    return str(int(request.after or 0) + request.limit) if windowed else rows[request.limit - 1].order.hex()


def key_of(text: str, builder: StoreBuilder) -> Any:
    """Return the key that a text spells. Raises BadKeyError."""
    return read_key(text, builder.key_serde, builder.name)


def _order(builder: StoreBuilder) -> Callable[[Any], bytes]:
    serde = as_serde(builder.key_serde)
    return lambda key: (serde.serialize("", key) if serde is not None else None) or b""


def _bounds(request: ReadStore, builder: StoreBuilder) -> tuple[object, object]:
    low, high = (None if text is None else key_of(text, builder) for text in (request.key_from, request.key_to))
    serde = as_serde(builder.key_serde)
    if request.after and not builder.windowed and serde is not None:
        low = serde.deserialize("", bytes.fromhex(request.after))
    return low, high


def _key_value_rows(request: ReadStore, store: TaskKeyValueStore | VersionedStore, builder: StoreBuilder) -> _Found:
    versioned = isinstance(store, VersionedStore)
    if request.time_from is not None or (request.time_to is not None and not versioned):
        names = "time_from= is" if versioned else "time_from= and time_to= are"
        raise BadKeyError(f"{names} for window and session stores, and {builder.name} is a {builder.kind.value} store.")
    if request.key is not None and isinstance(store, VersionedStore) and request.time_to is not None:
        key = key_of(request.key, builder)
        value = store.get(key, request.time_to)
        return iter(()) if value is None else iter([(key, value)])
    if request.key is not None:
        return rows_of_key(store, key_of(request.key, builder))
    if isinstance(store, VersionedStore):
        raise BadKeyError(f"The versioned store {builder.name} can only be read key by key.")
    prefix = prefix_bytes(request.prefix, builder) if request.prefix else b""
    if prefix and not request.after:
        return iter(store.prefix_scan(prefix))
    rows = iter((store.reverse_range if request.reverse else store.range)(*_bounds(request, builder)))
    encode = _order(builder)
    return takewhile(lambda row: encode(row[0]).startswith(prefix), rows) if prefix else rows


def _window_rows(request: ReadStore, store: TaskWindowStore | TaskSessionStore, builder: StoreBuilder) -> _Found:
    if request.prefix is not None:
        raise BadKeyError(f"prefix= is for key-value stores, and {builder.name} is a {builder.kind.value} store.")
    first = 0 if request.time_from is None else request.time_from
    last = LONG_MAX if request.time_to is None else request.time_to
    if request.key is not None:
        return rows_of_key(store, key_of(request.key, builder), first, last, reverse=request.reverse)
    fetch_keys = store.backward_fetch_keys if request.reverse else store.fetch_keys
    return islice(fetch_keys(*_bounds(request, builder), first, last), int(request.after or 0), None)


def row_json(key: Any, value: object, builder: StoreBuilder) -> bytes:
    """Return {"key", "value"}, and "window", "timestamp", "headers" and "valid_to" if the row has them."""
    row: dict[str, object] = {"key": key}
    if builder.windowed:
        row = {"key": key.key, "window": {"start": key.start, "end": key.end}}
    view = view_of_results(builder)
    return to_json({**row, **parts_of(builder.kind, value if view is None else view.show(value))})


def to_json(value: object) -> bytes:
    """Return JSON. Bytes are written as in spelling.py, other objects that JSON cannot represent as their repr."""
    try:
        return orjson.dumps(plain(value))
    except TypeError:  # a number of more than 64 bits, which orjson cannot write
        return json.dumps(plain(value)).encode()
