"""The way of one record through the nodes of a task."""

from __future__ import annotations

import json
from typing import Any

from typing_extensions import override

from penstock.topology.context.processor_wrapper import ProcessorWrapper, ProcessRecord, WrappedProcessor
from penstock.topology.records import Record, SentRecord
from penstock.workers.queries.store_reads import to_json

from .replica import Replica
from .shown_records import ShownRecords


class NodeTrace(ProcessorWrapper):
    """Notes what each node receives and sends while one record is processed.

    events: in their order, {"node"} for a record that a node receives, or {"sent"} for one that is sent to a topic,
    each with key, value, time and the node that it comes "from", "" for the source or a punctuation.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._path: list[str] = []
        self._replica: Replica | None = None
        self._shown: ShownRecords | None = None
        self._noted = 0

    def of(self, replica: Replica, shown: ShownRecords) -> list[dict[str, Any]]:
        """Process the next record of a replica and return its events. Raises the topology's exceptions."""
        self._replica, self._shown = replica, shown
        produced = replica.task.output.produced
        sent = replica.process_next()
        assert not produced or sent, "sent records are taken after each record"
        self._note_sent(sent)
        return self.events

    @override
    def wrap(self, processor: WrappedProcessor) -> ProcessRecord:
        def traced(record: Record) -> None:
            if self._replica is None:
                processor.process(record)
                return
            self._note_sent(self._replica.task.output.produced)
            self._note("node", processor.name, _plain(record.key), _plain(record.value), record.timestamp)
            self._path.append(processor.name)
            try:
                processor.process(record)
                self._note_sent(self._replica.task.output.produced)
            finally:
                self._path.pop()

        return traced

    def _note(self, kind: str, name: str, key: object, value: object, timestamp: int | None) -> None:
        sender = self._path[-1] if self._path else ""
        self.events.append({kind: name, "from": sender, "key": key, "value": value, "timestamp": timestamp})

    def _note_sent(self, produced: list[SentRecord]) -> None:
        for record in produced[self._noted :]:
            assert self._shown is not None, "a record is being processed"
            found = self._shown.output(record) or self._shown.change(record)
            self._note("sent", record.topic, found["key"], found["value"], record.timestamp)
        self._noted = len(produced)


def _plain(value: object) -> object:
    return json.loads(to_json(value))
