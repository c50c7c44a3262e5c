"""A state store for a program's reads: its tasks on this host as one (Kafka: CompositeReadOnlyKeyValueStore)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.statestore.stores.store_iterator import Rows
from penstock.topology.records import ValueAndTimestamp

#: Queries the stream threads: (method, arguments) -> result by task id.
Ask = Callable[[str, tuple[Any, ...]], dict[str, Any]]


class QueryableStore:
    """Has the reading methods of the store (docs/state-stores.md): ``get``, ``range``, ``all``, ``fetch`` …

    A single value comes from the task that has one; rows come from all tasks, as a list with the ``close`` of a store's
    iterator, sorted within each task; ``approximate_num_entries`` is the sum. Methods raise InvalidStateStoreError
    while the store is restored, and TimeoutError. timestamped: timestamped stores return ValueAndTimestamp, otherwise
    plain values, as in Kafka Streams.
    """

    def __init__(self, ask: Ask, timestamped: bool = False) -> None:
        self._ask = ask
        self._timestamped = timestamped

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        return partial(self._call, method)

    def _call(self, method: str, *arguments: Any) -> Any:
        found = combine(method, arguments, self._ask(method, arguments))
        if self._timestamped:
            return found
        return Rows(map(without_timestamp, found)) if isinstance(found, Rows) else without_timestamp(found)


def combine(method: str, arguments: tuple[Any, ...], by_task: dict[str, Any]) -> Any:
    """Return one result from the results of a store's tasks."""
    results = [by_task[task] for task in sorted(by_task)]
    if method == "approximate_num_entries":
        return sum(results)
    # A window store's fetch(key, time) is one value; a session store's fetch(key) and all others are rows.
    if method in ("get", "fetch_session") or (method == "fetch" and len(arguments) > 1):
        return next((value for value in results if value is not None), None)
    return Rows(row for rows in results for row in rows)


def without_timestamp(found: Any) -> Any:
    """Return a timestamped store's value, or a row (key, value) of it, as a plain store's; others as they are."""
    if isinstance(found, ValueAndTimestamp):
        return found.value
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], ValueAndTimestamp):
        return found[0], found[1].value
    return found
