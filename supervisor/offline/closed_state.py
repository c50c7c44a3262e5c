"""The state of a stopped application, read from its directory without changing it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from penstock.statestore.directory.state_directory import GLOBAL_DIRECTORY, STORES_DIRECTORY, StateDirectory
from penstock.statestore.rows.rocksdb_store import RocksDBStore
from penstock.statestore.store_factory import build_store
from penstock.statestore.stores.state_store import StateStore
from penstock.statestore.view.store_view import summary
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.context.task_context import TaskContext
from penstock.topology.context.task_output import NoOutput
from penstock.topology.errors import InvalidStateStoreError
from penstock.topology.records import TaskId
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.control.messages import ReadStore
from penstock.workers.queries.store_reads import rows_of

from ..source.state_places import application_directory, left_behind
from ..source.topology_source import TopologySource


class ClosedState:
    """The stores below an application's state directory, each opened read-only while it is read.

    topology: ``module:attribute``, which defines the stores; without it rows are bytes. A context manager; the
    application cannot start until it is closed. Raises InvalidStateStoreError if there is no state, LockError if the
    application runs.
    """

    def __init__(self, config: StreamsConfig, topology: str | None) -> None:
        config.require("application.id")
        self._config = config
        path = application_directory(config)
        if not path.is_dir():
            raise InvalidStateStoreError(
                f"There is no state in {path}, and no application runs there. If it has another application.id or "
                f"state.dir, name its configuration: --config FILE. {left_behind(config)}".rstrip()
            )
        self._builders = None if topology is None else _builders(topology, config)
        self._directory = StateDirectory(config["state.dir"], config["application.id"])
        self._directory.lock_application()

    def close(self) -> None:
        """Release the lock."""
        self._directory.close()

    def __enter__(self) -> ClosedState:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stores(self) -> list[dict[str, Any]]:
        """Return a summary of each store of each task, by name and task; as Administration.stores."""
        return [self._summary(task, name) for name, task in sorted((name, task) for task, name in self._on_disk())]

    def _summary(self, task: TaskId | None, name: str) -> dict[str, object]:
        with self._open(task, name) as store:
            found = {**summary(store), "task_id": _shown(task), "task_kind": "closed", "task_state": "CLOSED"}
        return found if self._builders is not None else {**found, "kind": None}

    def get(self, store: str, key: str) -> list[dict[str, Any]]:
        """Return the rows of a key, as Administration.store_get."""
        return list(self._read(ReadStore(0, store, key=key)))

    def rows(self, store: str, key_from: str | None, key_to: str | None) -> Iterator[dict[str, Any]]:
        """Yield the rows of a range, task after task."""
        return self._read(ReadStore(0, store, key_from=key_from, key_to=key_to))

    def _read(self, request: ReadStore) -> Iterator[dict[str, object]]:
        for task in self._tasks_with(request.store):
            with self._open(task, request.store) as opened, closing(rows_of(request, opened, _shown(task))) as rows:
                yield from ({**json.loads(row.json), "task_id": row.task} for row in rows)

    def _on_disk(self) -> Iterator[tuple[TaskId | None, str]]:
        """Yield each store with its task."""
        for task in self._directory.tasks_on_disk():
            for path in sorted((self._directory.directory_for_task(task) / STORES_DIRECTORY).glob("*")):
                yield task, path.name

    def _tasks_with(self, store: str) -> list[TaskId | None]:
        found = list(self._on_disk())
        tasks = [task for task, name in found if name == store]
        if not tasks:
            there = ", ".join(sorted({name for _, name in found})) or "none: no application has run there"
            raise InvalidStateStoreError(f"There is no store {store} in {self._directory.path}; there are {there}.")
        return tasks

    @contextmanager
    def _open(self, task: TaskId | None, name: str) -> Iterator[StateStore]:
        directory = self._directory.directory_for_task(task) if task else self._directory.path / GLOBAL_DIRECTORY
        with ExitStack() as stack:
            rows = RocksDBStore(directory / STORES_DIRECTORY / name, read_only=True)
            stack.callback(rows.close)
            context = TaskContext(task or TaskId(-1, 0), self._config, NoOutput("Closed stores are only read"))
            builder = self._builder(name).with_logging_disabled()  # nothing is written
            yield build_store(builder, context, directory, None, open_rows=lambda *_: rows)

    def _builder(self, name: str) -> StoreBuilder:
        if self._builders is None:
            return StoreBuilder(name, StoreKind.KEY_VALUE, Serdes.bytes(), Serdes.bytes(), logging=False)
        if name not in self._builders:
            raise InvalidStateStoreError(
                f"The topology has no store {name}: it belongs to an older one. Without --topology its rows are shown "
                "as bytes."
            )
        return self._builders[name]


def _builders(topology: str, config: StreamsConfig) -> dict[str, StoreBuilder]:
    built = TopologySource.of(topology).load_for_command(config).internal_builder.build_subtopologies(config)
    return {name: builder for one in built for name, builder in one.stores.items()}


def _shown(task: TaskId | None) -> str:
    return "global" if task is None else str(task)
