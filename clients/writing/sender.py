"""Writes closed batches to the leaders of their partitions (Kafka: Sender).

A batch is sent as soon as the one before it is acknowledged: one of a partition is in flight, so that the order needs
no bookkeeping, and each request has one of each partition that a broker leads. Nothing waits here but wait().
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.kernel import record_accumulator, record_batches
from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition

from ..cluster.brokers import Brokers, ProducerId
from ..cluster.leader_table import MOVED
from ..cluster.network_client import Answered, NetworkClient
from ..connection.broker_link import Api
from ..errors import ClientError, DeliveryTimeoutError, ErrorCode, Kind, MissingPartitionError, broker_error
from ..log_context import PrefixedLogger
from ..protocol.produce_messages import API_KEY, API_VERSION, PartitionResponse, ProduceAnswer, produce_request
from .partition_queue import PartitionQueue
from .produce_settings import ProduceSettings
from .producer_identity import Identity
from .writer import Lost

#: How many requests a broker may have at a time; none of them has a partition that another one has.
REQUESTS_IN_FLIGHT = 5
#: How long a batch waits for its transaction to begin where the one before is still being ended, in ms.
CONCURRENT_BACKOFF_MS = 20
#: How long to wait before a look at what is behind a batch that is in flight, and while none is, without a leader or
#: a connection; in ms.
BEHIND_WAIT_MS, AWAY_WAIT_MS = 1, 10
#: The longest wait, in ms, for whatever comes. A process that is suspended in it has waited for so long at most, as far
#: as deadlines go.
WAIT_MAX_MS = 1_000
PRODUCE = Api(
    API_KEY, (API_VERSION, API_VERSION), "2.4", "written to", "penstock.sender", ProduceAnswer, REQUESTS_IN_FLIGHT
)

#: Errors that leave it unknown whether a batch was written: the cause is not named, or acknowledged batches before it
#: are gone.
_UNCERTAIN = (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

#: Makes an identity; called with what it calls, on another thread, when there is an answer for it to take.
MakeIdentity = Callable[[Callable[[], None]], Identity]


class Sender:
    """Sends the batches of all partitions. One thread may use it; it owns brokers."""

    def __init__(
        self, brokers: Brokers, settings: ProduceSettings, log: PrefixedLogger, make_identity: MakeIdentity
    ) -> None:
        self._settings = settings
        self._log = log
        self._network: NetworkClient[ProduceAnswer] = NetworkClient(brokers, settings, PRODUCE, self._note, log)
        self._identity = make_identity(self._network.wake)
        self._partitions: set[TopicPartition] = set()  # whose leaders are wanted
        self._queues: dict[TopicPartition, PartitionQueue] = {}  # those that have batches; the next turn comes first
        self._send_at: float = 0  # in ms: when there may be something to send, though nothing happens before
        #: Who leads what, and how many partitions topics have.
        self.leaders = self._network.leaders
        #: Of all batches that are not acknowledged, before compression.
        self.buffered_bytes = 0
        #: Dropped records; the reader empties it.
        self.lost: list[Lost] = []

    def _note(self, what: str, failure: str) -> None:
        self._log.warning("%s: %s; trying again", what, failure)

    @property
    def is_idle(self) -> bool:
        """Whether there is no batch that is not acknowledged."""
        return not self._queues

    @property
    def wait_ms(self) -> int | None:
        """Milliseconds an idle caller may block before calling advance(); None means no limit."""
        if not any(not queue.in_flight or len(queue.batches) > 1 for queue in self._queues.values()):
            return None  # all is in flight
        return BEHIND_WAIT_MS if any(queue.in_flight for queue in self._queues.values()) else AWAY_WAIT_MS

    def hear_of(self, partition: TopicPartition) -> None:
        """Ask for a partition's leader from now on."""
        self._partitions.add(partition)
        self.leaders.hear_of((partition,))

    def enqueue(self, queue: PartitionQueue, batch: Any) -> None:
        """Send a batch behind those that the queue has."""
        queue.batches.append(batch)
        self.buffered_bytes += batch.size
        if queue.partition not in self._queues:
            self._queues[queue.partition] = queue
            if queue.partition not in self._partitions:
                self.hear_of(queue.partition)
        self._send_at = 0

    def advance(self, now_ms: int) -> None:
        """Take what has come and send what may be sent. Raises StreamsError if all is over."""
        network = self._network
        for over in network.advance(self._partitions, now_ms):
            self._take(over, now_ms)
        if network.has_changed or self._identity.has_answer:
            network.has_changed = False
            self._send_at = 0
        if now_ms >= min(self._send_at, self._identity.next_at):
            self._send(now_ms)

    def wait_ends(self, now_ms: int, until_ms: float) -> int:
        """Return until when a wait for something to do may last, until_ms at most."""
        return int(min(until_ms, self._send_at, self._identity.next_at, now_ms + WAIT_MAX_MS))

    def wait(self, now_ms: int, until_ms: int) -> None:
        """Wait until advance() has something to do, or until_ms."""
        self._network.wait(now_ms, until_ms)

    def note_pause(self, ms: int) -> None:
        """Take in that nothing was served for so long, which the times that this is called with do not count."""
        self._network.note_pause(ms)

    # Sending

    def _send(self, now: int) -> None:
        self._identity.advance(now)  # which may be refused
        by_node: dict[int, deque[PartitionQueue]] = defaultdict(deque)
        again: float = math.inf  # when something that has to wait may be sent
        for queue in tuple(self._queues.values()):
            if queue.in_flight or self._give_up(queue, now):
                continue
            leader = self.leaders.of(queue.partition)
            if leader is None:
                self.leaders.refresh(now)
            is_known = leader is not None and self.leaders.answers > queue.moved_after
            if now < queue.retry_at_ms:
                again = min(again, queue.retry_at_ms)
            elif leader is None or not is_known or not self._identity.may_write(queue.partition):
                again = min(again, now + self._settings.retry_backoff_ms)
            else:
                by_node[leader.node].append(queue)
        self._identity.advance(now)  # behind dropped batches, which may have begun a new epoch
        producer = self._identity.producer
        for node, queues in by_node.items():
            if producer is None or self._send_to(node, queues, producer, now):
                again = min(again, now + self._settings.retry_backoff_ms)
        self._send_at = again

    def _send_to(self, node: int, queues: deque[PartitionQueue], producer: ProducerId, now: int) -> bool:
        """Send a broker as many requests as it may have; return whether something is left."""
        link, identity = self._network.link(node), self._identity
        in_transaction = identity.transactional_id is not None
        while queues and link.is_ready(now):
            sent: dict[TopicPartition, PartitionQueue] = {}
            batches: dict[TopicPartition, bytes] = {}
            left = self._settings.max_request_bytes
            while queues:
                batch = queues[0].batches[0]
                batch.pack(self._settings.compression_type)
                if batches and batch.packed_size > left:
                    break
                queue = queues.popleft()
                stamp = queue.stamp(producer)
                batches[queue.partition] = batch.sealed(
                    stamp.producer.id, stamp.producer.epoch, stamp.sequence, in_transaction
                )
                queue.was_uncertain = batch.is_uncertain
                batch.is_uncertain = queue.in_flight = True
                sent[queue.partition] = queue
                left -= batch.packed_size
                self._queues[queue.partition] = self._queues.pop(queue.partition)  # others have their turn first
            version = identity.produce_version
            request = partial(produce_request, self._settings, version, identity.transactional_id, batches)
            link.send(request, sent, 0, now, version)
        return bool(queues)

    # Answers

    def _take(self, over: Answered[ProduceAnswer], now: int) -> None:
        lost: dict[TopicPartition, PartitionResponse] = {}
        responses = lost if over.answer is None else over.answer.partitions
        for partition, queue in over.asked.items():
            queue.in_flight = False
            response = responses.get(partition)
            if response is not None:
                self._settle(queue, response, now)

    def _settle(self, queue: PartitionQueue, response: PartitionResponse, now: int) -> None:
        """Do what a broker's answer about the first batch asks for."""
        code, batch = ErrorCode(response.error), queue.batches[0]
        if code.kind is Kind.SUCCESS:  # now, or since it was sent before
            self._remove(queue, queue.acknowledge())
            return
        if code in MOVED or code.retriable:  # it may have been written even so
            self._log.debug("Sending to %s again after %s", queue.partition, code.name)
            is_short = code == ErrorCode.CONCURRENT_TRANSACTIONS  # the one before is still being ended
            queue.retry_at_ms = now + (CONCURRENT_BACKOFF_MS if is_short else self._settings.retry_backoff_ms)
            if code in MOVED:
                queue.moved_after = self.leaders.answers
                self.leaders.refresh(now)
            return
        if code == ErrorCode.UNKNOWN_PRODUCER_ID:  # the broker forgot us; it takes a new epoch from its beginning
            batch.is_uncertain = False
            self._identity.bump()
            return
        # What is refused now may have been written by the request before.
        batch.is_uncertain = queue.was_uncertain or code in _UNCERTAIN
        if code == ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1:
            self._split(queue)
        else:
            self._fail(queue, broker_error(code, response.message))

    def _split(self, queue: PartitionQueue) -> None:
        """Send the first batch in two parts: its topic takes none that large, whatever one record may have."""
        batch = queue.batches.popleft()
        self.buffered_bytes -= batch.size
        self._not_to_be_taken_for(batch)
        records = _records_of(queue.partition, batch)
        for part in (records[len(records) // 2 :], records[: len(records) // 2]):
            half = record_accumulator.ProducerBatch()
            half.created_ms = batch.created_ms
            for record in part:
                half.add(record.key(), record.value(), record.timestamp()[1], record.headers())
            queue.batches.appendleft(half)
            self.buffered_bytes += half.size
        self._log.debug("A batch for %s is too large for its topic and was split", queue.partition)

    # Dropping

    def _give_up(self, queue: PartitionQueue, now: int) -> bool:
        """Drop batches that cannot be written any more; return whether none is left."""
        error = self._identity.refusal
        if error is None and self.leaders.of(queue.partition) is None:
            error = self.missing(queue.partition, now)
        while queue.batches and (error is not None or self._is_late(queue.batches[0], now)):
            self._fail(queue, error or self.too_late())
        return not queue.batches

    def missing(self, partition: TopicPartition, now: int) -> ClientError | None:
        """Return why a partition cannot be written, None if it can or may be soon.

        A topic that was recreated may have fewer partitions (MissingPartitionError). Then the leaders are asked for
        again: the partition may be there by the next time.
        """
        code = self.leaders.error_of(partition, now)
        if code is None:
            return None
        self.leaders.refresh(now)
        count = self.leaders.partition_counts.get(partition.topic)
        if count is None:
            return broker_error(code)
        reason = f"topic {partition.topic} has {count} partition(s) now, and no partition {partition.partition}"
        return MissingPartitionError(reason)

    def too_late(self) -> DeliveryTimeoutError:
        """Return the error of a record that was not acknowledged in time."""
        return DeliveryTimeoutError(f"not acknowledged within {self._settings.delivery_timeout_ms} ms")

    def _is_late(self, batch: Any, now: int) -> bool:
        return bool(now - batch.created_ms >= self._settings.delivery_timeout_ms)

    def _fail(self, queue: PartitionQueue, error: ClientError) -> None:
        batch = queue.batches.popleft()
        batch.pack(self._settings.compression_type)
        self.lost += [Lost(error, record) for record in _records_of(queue.partition, batch)]
        self._identity.note_failed(error)
        self._not_to_be_taken_for(batch)
        self._remove(queue, batch)

    def _not_to_be_taken_for(self, batch: Any) -> None:
        """Begin a new epoch if a broker may have a batch's numbers, which would be those of what follows."""
        if batch.is_uncertain:
            self._identity.bump()

    def _remove(self, queue: PartitionQueue, batch: Any) -> None:
        self.buffered_bytes -= batch.size
        if not queue.batches:
            del self._queues[queue.partition]

    def drop(self) -> bool:
        """Forget the batches that are not in flight. Returns whether any is."""
        for queue in tuple(self._queues.values()):
            while len(queue.batches) > int(queue.in_flight):
                batch = queue.batches.pop()
                self._not_to_be_taken_for(batch)
                self._remove(queue, batch)
        return bool(self._queues)

    def close(self) -> None:
        """Close all connections; unacknowledged batches are dropped silently."""
        self._queues.clear()
        self._network.close()


def _records_of(partition: TopicPartition, batch: Any) -> list[Any]:
    """Return a packed batch's records, as they would be consumed."""
    data = batch.sealed(-1, -1, -1, False)
    found: list[Any] = []
    origin = record_batches.origin_of(partition.topic, partition.partition)
    record_batches.RecordBatches(origin, data, 0, len(data), 0, None, False).take(found, batch.count)
    if len(found) != batch.count:
        raise StreamsError(f"{batch.count} records for {partition} were not written, but only {len(found)} can be read")
    return found
