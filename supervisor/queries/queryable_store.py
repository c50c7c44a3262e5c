"""A state store for a program's reads: its tasks on this host as one (Kafka: CompositeReadOnlyKeyValueStore)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import TypeVar

from penstock.topology.context.store_types import Rows
from penstock.topology.errors import StateStoreTypeError
from penstock.topology.query.isolation_level import IsolationLevel
from penstock.topology.query.position import Position
from penstock.topology.records import AggregationWithHeaders, ValueAndTimestamp, ValueTimestampHeaders
from penstock.workers.control.messages import TaskResults

T = TypeVar("T", default=Any)

#: Queries the stream threads: (method, arguments, isolation level or None for the default) -> result by task id.
Ask = Callable[[str, tuple[Any, ...], IsolationLevel | None], TaskResults]
#: Makes one result of those of all tasks (Kafka Streams: QueryableStoreType.create).
Combine = Callable[[list[Any]], Any]


class QueriedRows(Rows[T]):
    """The rows of a read, and their position in the input; None if a task does not know (KIP-796)."""

    __slots__ = ("position",)

    def __init__(self, rows: Iterable[T], position: Position | None) -> None:
        super().__init__(rows)
        self.position = position


class QueryableStore:
    """Has the reading methods of the store (docs/state-stores.md): ``get``, ``range``, ``all``, ``fetch`` …

    For their types annotate it as a ReadOnlyKeyValueStore, ReadOnlyWindowStore or ReadOnlySessionStore.

    A single value comes from the task that has one; rows come from all tasks, as a list with the ``close`` of a store's
    iterator, sorted within each task; ``approximate_num_entries`` is the sum. Methods raise InvalidStateStoreError
    while the store is restored, and TimeoutError. timestamped: timestamped stores return ValueAndTimestamp, otherwise
    plain values, as in Kafka Streams. headers: stores with headers return ValueTimestampHeaders or
    AggregationWithHeaders. isolation: None for the configuration's default. combine: makes one result of the list of
    all tasks' results, for the methods of custom stores.
    """

    # Those that __getattr__ makes, for type checkers and editors. Key-value stores:
    get: Callable[..., Any]
    range: Callable[..., QueriedRows]
    reverse_range: Callable[..., QueriedRows]
    all: Callable[..., QueriedRows]
    reverse_all: Callable[..., QueriedRows]
    prefix_scan: Callable[..., QueriedRows]
    approximate_num_entries: Callable[..., int]
    # Versioned stores:
    get_versions: Callable[..., QueriedRows]
    # Window and session stores:
    fetch: Callable[..., Any]
    backward_fetch: Callable[..., QueriedRows]
    fetch_range: Callable[..., QueriedRows]
    backward_fetch_range: Callable[..., QueriedRows]
    fetch_keys: Callable[..., QueriedRows]
    backward_fetch_keys: Callable[..., QueriedRows]
    fetch_all: Callable[..., QueriedRows]
    backward_fetch_all: Callable[..., QueriedRows]
    backward_all: Callable[..., QueriedRows]
    fetch_session: Callable[..., Any]
    find_sessions: Callable[..., QueriedRows]
    backward_find_sessions: Callable[..., QueriedRows]
    find_sessions_ending: Callable[..., QueriedRows]

    def __init__(
        self,
        ask: Ask,
        timestamped: bool = False,
        headers: bool = False,
        combine: Combine | None = None,
        isolation: IsolationLevel | None = None,
    ) -> None:
        self._ask = ask
        self._isolation = isolation
        self._timestamped = timestamped
        self._headers = headers
        self._combine = combine

    def read_only(self, isolation: IsolationLevel) -> QueryableStore:
        """Return this store for reads of an isolation level (KIP-892): as of now, or as of the last commit."""
        return QueryableStore(self._ask, self._timestamped, self._headers, self._combine, isolation)

    if not TYPE_CHECKING:  # which would take every name for a method

        def __getattr__(self, method: str) -> Callable[..., Any]:
            if method.startswith("_"):
                raise AttributeError(method)
            return partial(self._call, method)

    def _call(self, method: str, *arguments: object) -> object:
        by_task = self._ask(method, arguments, self._isolation)
        if self._combine is not None:
            return self._combine([by_task[task] for task in sorted(by_task)])
        found = combine(method, arguments, by_task)
        if isinstance(found, Rows):
            return QueriedRows(map(self._shown, found), by_task.position)
        return self._shown(found)

    def _shown(self, found: object) -> object:
        """Return a value, or the value in a row, in the form that was asked for; others as they are."""
        if isinstance(found, ValueTimestampHeaders) and not self._headers:
            return ValueAndTimestamp(*found[:2]) if self._timestamped else found.value
        if isinstance(found, AggregationWithHeaders) and not self._headers:
            return found.aggregation
        if isinstance(found, ValueAndTimestamp) and not self._timestamped:
            return found.value
        if type(found) is tuple and len(found) == 2:  # a row
            return found[0], self._shown(found[1])
        return found


def combine(method: str, arguments: tuple[object, ...], by_task: dict[str, Any]) -> Any:
    """Return one result from the results of a store's tasks."""
    results = [by_task[task] for task in sorted(by_task)]
    if method == "approximate_num_entries":
        return sum(results)
    # A window store's fetch(key, time) is one value; a session store's fetch(key) and all others are rows.
    if method in ("get", "fetch_session") or (method == "fetch" and len(arguments) > 1):
        return next((value for value in results if value is not None), None)
    if len(results) == 1 and not isinstance(results[0], list):  # a method of the user's own store
        return results[0]
    if not all(isinstance(rows, list) for rows in results):
        raise StateStoreTypeError(
            f"{method} returned a result for each of {len(results)} tasks, which only you can combine: pass combine= "
            "to KafkaStreams.store, or partition=, or call KafkaStreams.query"
        )
    return Rows(row for rows in results for row in rows)
