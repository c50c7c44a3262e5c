"""The brokers of the producers of clients/writing, and which producer holds a transactional id.

Requests and responses are encoded and decoded.
"""

from __future__ import annotations

import math
from typing import Any

from penstock.clients.cluster.brokers import Leader
from penstock.clients.protocol.produce_messages import NEW_TRANSACTIONS_VERSION
from penstock.clients.protocol.schema import Request
from penstock.testing.broker.apis.produce import PRODUCE
from penstock.topology.records import TopicPartition
from tests.produce_bytes import ProduceBytes
from tests.simulation.broker import Broker
from tests.simulation.stamps import stamp_of

#: Requests whose response makes a producer the holder of its transactional id.
_HOLDING = ("InitProducerId", "EndTxn")
#: The first versions of the new protocol (KIP-890), in which two requests have no place.
_NEW_VERSIONS = {"AddPartitionsToTxn": math.inf, "AddOffsetsToTxn": math.inf, "TxnOffsetCommit": 5, "EndTxn": 5}


class Coordinators:
    """The brokers of a schedule."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: By transactional id: its last producer, with the id and the epoch that it was given.
        self._holders: dict[str, tuple[object, int, int]] = {}

    @property
    def is_new(self) -> bool:
        """Whether transactions are those of KIP-890."""
        return self._broker.is_new

    def answer(self, request: Request, holder: Any) -> Any:
        """Handle a request and return the response. holder: the requesting producer, with client and timeout."""
        begin = _NEW_VERSIONS.get(request.api.name, 0)
        assert not begin or (min(request.api.highest, request.version_max) >= begin) == self.is_new
        response = self._broker.exchange(request, holder.client)
        if request.api.name in _HOLDING and not response.error_code:
            transactional_id = request.body["transactional_id"]
            found = self._broker.cluster.transactions.transactions[transactional_id]
            self._holders[transactional_id] = holder, found.producer_id, found.epoch
        return response

    def producer_id(self) -> int:
        """Return an id that no other producer has."""
        return self._broker.cluster.new_producer_id()

    def is_held_by(self, holder: object) -> bool:
        """Return True if this process still holds a transactional id, that is, was not fenced."""
        found = self._broker.cluster.transactions.transactions
        return any(
            by is holder and (producer_id, epoch) == (found[id_].producer_id, found[id_].epoch)
            for id_, (by, producer_id, epoch) in self._holders.items()
        )

    def leaders(self, topic: str) -> dict[TopicPartition, Leader]:
        """Return the leaders of a topic's partitions, none for an unknown topic."""
        found = self._broker.cluster.topics.get(topic)
        partitions = enumerate(found.partitions if found else ())
        return {TopicPartition(topic, number): Leader(p.leader, p.leader_epoch) for number, p in partitions}

    def produce(self, node: int, request: ProduceBytes, holder: Any) -> dict[TopicPartition, int]:
        """Write the batches of a request to a node; return the error codes."""
        broker, batches = self._broker, request.record_batches
        is_transactional = request.transactional_id is not None
        assert not is_transactional or (request.version >= NEW_TRANSACTIONS_VERSION) == self.is_new
        ends = {partition: broker.logs[partition].end for partition in batches if partition in broker.logs}
        answer = PRODUCE.decode(broker.receive(node, request.data), request.version)
        for partition, end in ends.items():
            if not is_transactional and broker.logs[partition].end > end:  # otherwise it was a duplicate
                for record in batches[partition]:
                    broker.note_write(holder.client, stamp_of(record.headers).term)
        return {
            TopicPartition(topic.name, found.index): found.error_code
            for topic in answer.responses
            for found in topic.partition_responses
        }
