"""One version of a topology over the slice of a task, in its own process, with the results in files.

The process gets a Run as JSON on stdin. It writes ``sent.jsonl``, a line for each input record, and ``rows.jsonl``,
the rows of the stores at the end, in their order. To explain a difference, it writes ``shown.json``, records and rows
of such files as the serdes of its topology read them, and ``trace.json``, the way of one record.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from penstock.statestore.stores.state_store import StateStore
from penstock.supervisor.source.topology_gate import plain_facts
from penstock.supervisor.source.topology_source import TopologySource
from penstock.testing.driver_task import Clock, DriverTask
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.processor_wrapper import KEY as WRAPPER_KEY
from penstock.topology.context.store_interfaces import StoreKind
from penstock.topology.errors import PenstockError
from penstock.topology.graph.topology import Topology
from penstock.workers.control.messages import ReadStore
from penstock.workers.queries.store_reads import READABLE, rows_of

from .compared_values import ROWS, SENT, ComparedValues, shown
from .global_tables import open_global_tables
from .node_trace import NodeTrace
from .rehearsed_slice import RehearsedSlice, as_hex
from .replayed_task import check_stores, replayed_tasks
from .replica import Replica
from .shown_records import ShownRecords
from .starts import changed_store

TRACE, SHOWN = "trace.json", "shown.json"


@dataclass(frozen=True, slots=True)
class Run:
    """topology: ``module:attribute``, found in the folder path. slice: the directory of the task's slice.

    state: a copy of the slice's stores, which the run changes. results: the directory for the results. ignore: fields
    of values that are not compared. shown: what to show of Comparison.to_show(), None to compare all. trace: then the
    index of the record to trace, None for none.
    """

    topology: str
    path: str
    slice: str
    state: str
    results: str
    ignore: tuple[str, ...] = ()
    shown: tuple[Any, ...] | None = None
    trace: int | None = None

    def encode(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))


class RehearsalRun:
    """Processes a slice."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._slice = RehearsedSlice.read(Path(run.slice))
        self._results = Path(run.results)
        self._trace = None if run.trace is None else NodeTrace()

    def write(self) -> None:
        """Process the records and write the results. Raises PenstockError if the topology does not fit the slice."""
        config = self._slice.config()
        topology = TopologySource.of(self._run.topology).load(config)
        if self._trace is not None:
            # Without a cache each node passes its results on at once, so they have a sender.
            config = config.with_overrides({WRAPPER_KEY: self._trace, "statestore.cache.max.bytes": 0})
        with self._replica(topology, config) as replica:
            if self._run.shown is None:
                compared = ComparedValues(replica.task, config, self._run.ignore)
                self._write_sent(replica, compared)
                self._write_rows(replica, compared)
                return
            records = ShownRecords(replica.task, config, lambda value: value)
            texts = [shown(records, *each) for each in self._run.shown]
            (self._results / SHOWN).write_text(json.dumps(texts))
            if self._trace is not None:
                self._write_trace(replica, records, self._trace, self._run.trace or 0)

    def _replica(self, topology: Topology, config: StreamsConfig) -> Replica:
        given = self._slice
        tasks = replayed_tasks(topology, config, given.counts)
        task = tasks.get(given.task)
        if task is None or set(task.inputs) != given.start.offsets.keys():
            raise PenstockError(
                f"{self._run.topology} has no task {given.task} that reads {', '.join(map(str, given.start.offsets))}: "
                "only versions that read the same topics can be compared"
            )
        check_stores(f"Task {given.task}", task.topology)
        manifest = given.start.manifest
        changed = None if manifest is None else changed_store(manifest, plain_facts(topology, config))
        if changed is not None:
            raise PenstockError(f"{self._run.topology} cannot use the checkpoint: {changed}. Use --from beginning")
        state = Path(self._run.state)

        def open_global(clock: Clock) -> DriverTask | None:
            return open_global_tables(topology, config, clock, state / "global", given.of_topic)

        inputs = {partition: given.input(partition) for partition in task.inputs}
        return Replica(task, config, given.start, state, inputs, open_global, given.counts)

    def _write_sent(self, replica: Replica, compared: ComparedValues) -> None:
        with (self._results / SENT).open("wb") as file:
            for _ in range(self._slice.limit):
                head = replica.head()
                if head is None:
                    return
                error, sent = None, []
                try:
                    sent = replica.process_next()
                except Exception as failure:  # noqa: BLE001 - a difference of the versions, too
                    error = f"{type(failure).__name__}: {failure}"
                    sent = replica.task.take_produced()
                line = [[*head[0], head[1]], [compared.sent(each) for each in sent], error]
                file.write(orjson.dumps(line) + b"\n")
                if error is not None:
                    return

    def _write_rows(self, replica: Replica, compared: ComparedValues) -> None:
        with (self._results / ROWS).open("wb") as file:
            for name, store in sorted(replica.task.stores.items()):
                for key, value in _rows(store, compared):
                    file.write(orjson.dumps([name, key, value]) + b"\n")

    def _write_trace(self, replica: Replica, records: ShownRecords, trace: NodeTrace, index: int) -> None:
        for _ in range(index):
            replica.head()
            replica.process_next()
        replica.head()
        error = None
        try:
            events = trace.of(replica, records)
        except Exception as failure:  # noqa: BLE001 - part of the way of the record
            error, events = f"{type(failure).__name__}: {failure}", trace.events
        assert replica.message is not None, "it was processed"
        found = {"record": records.input(replica.message), "events": events, "error": error}
        (self._results / TRACE).write_text(json.dumps(found))


def _rows(store: StateStore, compared: ComparedValues) -> Iterator[tuple[str, str]]:
    """Yield key and value of the rows of a store, to be compared."""
    kind = store.builder.kind
    if kind is StoreKind.SUPPRESS_BUFFER:
        return
    if compared.ignores and kind in READABLE and kind is not StoreKind.VERSIONED_KEY_VALUE:
        found = rows_of(ReadStore(0, store.name), store, "")
        yield from sorted((row.order.hex(), compared.without_fields(orjson.loads(row.json))) for row in found)
        return
    for key, value in store.rows.scan(None, None):
        yield key.hex(), as_hex(value) or ""


def main() -> None:
    """Carry out a run; exits with 1 and a message if it cannot."""
    given = json.loads(sys.stdin.read())
    run = Run(**{**given, "ignore": tuple(given["ignore"])})
    os.chdir(run.path)
    sys.path.insert(0, run.path)
    try:
        RehearsalRun(run).write()
    except PenstockError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
