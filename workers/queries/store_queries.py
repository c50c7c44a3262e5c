"""Answers queries for the state of this process's tasks."""

from __future__ import annotations

from typing import Any

from penstock.statestore.stores.store_iterator import has_rows
from penstock.statestore.view.store_view import summary
from penstock.topology.errors import InvalidStateStoreError, StreamsError

from ..control.messages import LIST_STORES, Query, QueryResult
from ..tasks.task_manager import TaskManager

#: Reading methods; docs/state-stores.md describes them.
READ_METHODS = frozenset(
    (
        *("get", "range", "reverse_range", "all", "reverse_all", "prefix_scan", "approximate_num_entries"),
        *("fetch", "fetch_range", "fetch_keys", "fetch_all", "find_sessions", "fetch_session"),
        *("backward_fetch", "backward_fetch_range", "backward_fetch_keys", "backward_fetch_all", "backward_all"),
        *("backward_find_sessions", "get_versions"),
    )
)


def answer(query: Query, task_manager: TaskManager) -> QueryResult:
    """Return the result of every active task here that has the store: a dict by task id, rows of iterators as lists.

    Failures become the result's error: a task that is still restoring, an unknown method or store.
    """
    try:
        return QueryResult(query.id, _results(query, task_manager))
    except StreamsError as error:
        return QueryResult(query.id, error=str(error))
    except Exception as error:  # noqa: BLE001  whatever it is, it is the asker's, not this thread's
        return QueryResult(query.id, error=f"{type(error).__name__}: {error}")


def _results(query: Query, task_manager: TaskManager) -> dict[str, Any]:
    if query.method == LIST_STORES:
        return _all_stores(task_manager)
    if query.method not in READ_METHODS:
        raise InvalidStateStoreError(
            f"{query.method} does not read a store; use one of {', '.join(sorted(READ_METHODS))}"
        )
    active = task_manager.active
    waiting = [
        i for i, task in active.all_tasks().items() if i not in active.running and query.store in task.topology.stores
    ]
    if waiting:
        raise InvalidStateStoreError(
            f"The state store {query.store} is not readable yet: task {waiting[0]} is still restoring; try again"
        )
    stores = {
        i: t.state_manager.stores[query.store]
        for i, t in active.running.items()
        if query.store in t.state_manager.stores
    }
    return {str(task_id): _plain(getattr(store, query.method)(*query.arguments)) for task_id, store in stores.items()}


def _all_stores(task_manager: TaskManager) -> dict[str, Any]:
    """Return summaries of the stores of each task here; only the name for a store that is not open yet."""
    return {
        f"{kind}:{task_id}": [
            {
                **(summary(opened[name]) if (opened := task.state_manager.stores).get(name) else {"store": name}),
                "task_id": str(task_id),
                "task_state": task.state.name,
                "task_kind": kind,
            }
            for name in sorted(task.topology.stores)
        ]
        for kind, tasks in (("active", task_manager.active), ("standby", task_manager.standby))
        for task_id, task in tasks.all_tasks().items()
    }


def _plain(value: Any) -> Any:
    return list(value) if has_rows(value) else value
