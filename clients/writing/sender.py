"""Writes closed batches to the leaders of their partitions (Kafka: Sender).

A batch is sent as soon as the previous one of its partition is acknowledged. With one batch per partition in flight,
order needs no bookkeeping. A request contains at most one batch per partition. Only wait() blocks.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from functools import partial

from penstock.kernel.record_accumulator import ProducerBatch
from penstock.kernel.record_batches import RecordBatches, origin_of
from penstock.topology.errors import StreamsError
from penstock.topology.records import Message, TopicPartition

from ..cluster.brokers import Brokers, ProducerId
from ..cluster.leader_table import MOVED
from ..cluster.network_client import Completed, NetworkClient
from ..connection.broker_link import LinkApi
from ..errors import ClientError, DeliveryTimeoutError, ErrorCode, Kind, MissingPartitionError, broker_error
from ..log_context import PrefixedLogger
from ..protocol.produce_messages import API_KEY, API_VERSION, PartitionResponse, ProduceResponse, produce_request
from ..retry_log import RetryLog
from .partition_queue import PartitionQueue
from .produce_settings import ProduceSettings
from .producer_identity import Identity
from .writer import Lost, Source

#: The maximum number of requests in flight per broker; they have no partition in common.
REQUESTS_IN_FLIGHT = 5
#: How long to wait before resending a batch while the previous transaction is still being completed, in ms.
CONCURRENT_BACKOFF_MS = 20
#: How long to wait, in ms, while batches are queued behind one in flight, and while none is in flight because there is
#: no leader or connection.
BEHIND_WAIT_MS, AWAY_WAIT_MS = 1, 10
#: The longest single wait, in ms. If the process is suspended during a wait, at most this much counts towards
#: deadlines.
WAIT_MAX_MS = 1_000
PRODUCE = LinkApi(
    "Produce",
    API_KEY,
    API_VERSION,
    API_VERSION,
    ProduceResponse,
    "2.4",
    "written to",
    "penstock.sender",
    REQUESTS_IN_FLIGHT,
)

#: Errors after which it is unknown whether a batch was written: the cause is unknown, or earlier acknowledged batches
#: are lost.
_UNCERTAIN = (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

#: A record with the methods of a consumed Message, and its source.
_Sourced = tuple[Message, Source | None]
#: Creates an identity. Its arguments are a callback that the identity calls on another thread when a response has
#: arrived, and the client's retries.
MakeIdentity = Callable[[Callable[[], None], RetryLog], Identity]


class Sender:
    """Sends the batches of all partitions. Not thread-safe; owns brokers."""

    def __init__(
        self, brokers: Brokers, settings: ProduceSettings, log: PrefixedLogger, make_identity: MakeIdentity
    ) -> None:
        self._settings = settings
        self._log = log
        self._network: NetworkClient[ProduceResponse] = NetworkClient(brokers, settings, PRODUCE, self._note, log)
        self._identity = make_identity(self._network.wake, self._network.retries)
        self._retries = self._network.retries
        self.health = self._network.health
        self._partitions: set[TopicPartition] = set()  # to look up leaders of
        self._queues: dict[TopicPartition, PartitionQueue] = {}  # non-empty ones, in the order of their turns
        self._send_at: float = 0  # in ms: when to check for batches to send, even if nothing happens before
        #: Leaders and partition counts.
        self.leaders = self._network.leaders
        #: Bytes of all unacknowledged batches, before compression.
        self.buffered_bytes = 0
        #: Dropped records; the caller clears it.
        self.lost: list[Lost] = []

    def _note(self, what: str, failure: str) -> None:
        self._log.warning("%s: %s; trying again", what, failure)

    @property
    def is_idle(self) -> bool:
        """Whether all batches are acknowledged."""
        return not self._queues

    @property
    def wait_ms(self) -> int | None:
        """Milliseconds an idle caller may block before calling advance(); None means no limit."""
        if not any(not queue.in_flight or len(queue.batches) > 1 for queue in self._queues.values()):
            return None  # all batches are in flight
        return BEHIND_WAIT_MS if any(queue.in_flight for queue in self._queues.values()) else AWAY_WAIT_MS

    def hear_of(self, partition: TopicPartition) -> None:
        """Look up a partition's leader from now on."""
        self._partitions.add(partition)
        self.leaders.hear_of((partition,))

    def enqueue(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Append a batch to its queue."""
        queue.batches.append(batch)
        self.buffered_bytes += batch.size
        if queue.partition not in self._queues:
            self._queues[queue.partition] = queue
            if queue.partition not in self._partitions:
                self.hear_of(queue.partition)
        self._send_at = 0

    def advance(self, now_ms: int) -> None:
        """Handle arrived responses and send batches that are ready. Raises StreamsError for a permanent failure."""
        network = self._network
        for over in network.advance(self._partitions, now_ms):
            self._take(over, now_ms)
        if network.has_changed or self._identity.has_response:
            network.has_changed = False
            self._send_at = 0
        if now_ms >= min(self._send_at, self._identity.next_at):
            self._send(now_ms)

    def wait_ends(self, now_ms: int, until_ms: float) -> int:
        """Return the latest end of the next wait, at most until_ms."""
        return int(min(until_ms, self._send_at, self._identity.next_at, now_ms + WAIT_MAX_MS))

    def wait(self, now_ms: int, until_ms: int) -> None:
        """Wait until advance() is due, or until_ms."""
        self._network.wait(now_ms, until_ms)

    def note_pause(self, ms: int) -> None:
        """Count a pause of the caller, which the times passed to other methods exclude."""
        self._network.note_pause(ms)
        self._identity.note_pause(ms)

    # Sending

    def _send(self, now: int) -> None:
        self._identity.advance(now)  # may set refusal
        by_node: dict[int, deque[PartitionQueue]] = defaultdict(deque)
        again: float = math.inf  # when to try the waiting batches
        for queue in tuple(self._queues.values()):
            if queue.in_flight or self._give_up(queue, now):
                continue
            leader = self.leaders.of(queue.partition)
            if leader is None:
                self.leaders.refresh(now)
                self._retries.failed(_producing(queue.partition), "it has no leader", now)
            is_known = leader is not None and self.leaders.responses > queue.moved_after
            if now < queue.retry_at_ms:
                again = min(again, queue.retry_at_ms)
            elif leader is None or not is_known or not self._identity.may_write(queue.partition):
                again = min(again, now + self._settings.retry_backoff_ms)
            else:
                by_node[leader.node].append(queue)
        self._identity.advance(now)  # after dropped batches, which may require a new epoch
        producer = self._identity.producer
        for node, queues in by_node.items():
            if producer is None or self._send_to(node, queues, producer, now):
                again = min(again, now + self._settings.retry_backoff_ms)
        self._send_at = again

    def _send_to(self, node: int, queues: deque[PartitionQueue], producer: ProducerId, now: int) -> bool:
        """Send a broker as many requests as allowed; return whether batches are left."""
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
                self._queues[queue.partition] = self._queues.pop(queue.partition)  # serve other partitions first
            version = identity.produce_version
            request = partial(produce_request, self._settings, version, identity.transactional_id, batches)
            link.send(request, sent, 0, now, version)
        return bool(queues)

    # Responses

    def _take(self, over: Completed[ProduceResponse], now: int) -> None:
        lost: dict[TopicPartition, PartitionResponse] = {}
        responses = lost if over.response is None else over.response.partitions
        for partition, queue in over.asked.items():
            queue.in_flight = False
            is_last_try, queue.is_last_try = queue.is_last_try, False
            response = responses.get(partition)
            if is_last_try and (response is None or ErrorCode(response.error).kind is not Kind.SUCCESS):
                self._discard(queue, queue.batches.popleft())
            elif response is not None:
                self._settle(over.node, queue, response, now)

    def _settle(self, node: int, queue: PartitionQueue, response: PartitionResponse, now: int) -> None:
        """Handle a broker's response for the first batch."""
        code, batch = ErrorCode(response.error), queue.batches[0]
        if code.kind is Kind.SUCCESS:  # written now, or by an earlier request
            if self._retries:
                self._retries.succeeded(_producing(queue.partition), now)
            self._remove(queue, queue.acknowledge())
            return
        if code in MOVED or code.retriable:  # it may have been written nevertheless
            self._retries.failed(_producing(queue.partition), f"{code.name} from broker {node}", now)
            is_short = code == ErrorCode.CONCURRENT_TRANSACTIONS  # the previous one is still being completed
            queue.retry_at_ms = now + (CONCURRENT_BACKOFF_MS if is_short else self._settings.retry_backoff_ms)
            if code in MOVED:
                queue.moved_after = self.leaders.responses
                self.leaders.refresh(now)
            return
        if code == ErrorCode.UNKNOWN_PRODUCER_ID:  # the broker lost the producer's state; it accepts a new epoch from 0
            batch.is_uncertain = False
            self._identity.bump()
            return
        # A batch that is rejected now may have been written by an earlier request.
        batch.is_uncertain = queue.was_uncertain or code in _UNCERTAIN
        if code == ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1:
            self._split(queue)
        elif response.refused and max(response.refused) < batch.count:
            self._leave_out(queue, code, response.refused)
        else:
            self._fail(queue, broker_error(code, response.message))

    def _split(self, queue: PartitionQueue) -> None:
        """Split the first batch in two, because it exceeds its topic's max.message.bytes."""
        records = _records_of(queue.partition, queue.batches[0])
        self._replace_first(queue, records[: len(records) // 2], records[len(records) // 2 :])
        self._log.debug("A batch for %s is too large for its topic and was split", queue.partition)

    def _leave_out(self, queue: PartitionQueue, code: ErrorCode, refused: Mapping[int, str]) -> None:
        """Drop the records because of which the first batch was refused, and send the others again.

        Kafka's producer drops the whole batch.
        """
        batch = queue.batches[0]
        records = _records_of(queue.partition, batch)
        for position, message in sorted(refused.items()):
            record, source = records[position]
            self.lost.append(Lost(broker_error(code, message), record, source, not batch.is_uncertain))
        self._replace_first(queue, [each for position, each in enumerate(records) if position not in refused])

    def _replace_first(self, queue: PartitionQueue, *parts: list[_Sourced]) -> None:
        """Replace the first batch, which was not written, by one for each of these lists of its records."""
        batch = queue.batches.popleft()
        self.buffered_bytes -= batch.size
        self._not_to_be_taken_for(batch)
        for records in reversed(tuple(filter(None, parts))):
            part = ProducerBatch()
            part.created_ms = batch.created_ms
            for record, source in records:
                part.add(record.key(), record.value(), record.timestamp()[1], record.headers(), source)
            queue.batches.appendleft(part)
            self.buffered_bytes += part.size
        if not queue.batches:
            del self._queues[queue.partition]

    # Dropping

    def _give_up(self, queue: PartitionQueue, now: int) -> bool:
        """Drop batches that can no longer be written; return whether the queue is empty."""
        error = self._identity.refusal
        if error is None and self.leaders.of(queue.partition) is None:
            error = self.missing(queue.partition, now)
        while queue.batches and (error is not None or self._is_late(queue.batches[0], now)):
            self._fail(queue, error or self.too_late())
        return not queue.batches

    def missing(self, partition: TopicPartition, now: int) -> ClientError | None:
        """Return why a partition cannot be written, None if it can or may be soon.

        A recreated topic may have fewer partitions (MissingPartitionError). Leaders are then looked up again, because
        the partition may exist by the next attempt.
        """
        code = self.leaders.error_of(partition, now)
        if code is None:
            return None
        self.leaders.refresh(now)
        count = self.leaders.partition_counts.get(partition.topic)
        if count is None:
            return broker_error(code)
        reason = f"topic {partition.topic} now has {count} partition(s), and no partition {partition.partition}"
        return MissingPartitionError(reason)

    def too_late(self) -> DeliveryTimeoutError:
        """Return the error of a record that was not acknowledged in time."""
        return DeliveryTimeoutError(f"not acknowledged within {self._settings.delivery_timeout_ms} ms")

    def _is_late(self, batch: ProducerBatch, now: int) -> bool:
        return now - batch.created_ms >= self._settings.delivery_timeout_ms

    def _fail(self, queue: PartitionQueue, error: ClientError) -> None:
        batch = queue.batches.popleft()
        batch.pack(self._settings.compression_type)
        self.lost += [Lost(error, record, source) for record, source in _records_of(queue.partition, batch)]
        self._identity.note_failed(error)
        self._discard(queue, batch)

    def _not_to_be_taken_for(self, batch: ProducerBatch) -> None:
        """Begin a new epoch if a dropped batch may have been written; later batches would reuse its sequences."""
        if batch.is_uncertain:
            self._identity.bump()

    def _remove(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        self.buffered_bytes -= batch.size
        if not queue.batches:
            del self._queues[queue.partition]
            if self._retries:
                self._retries.drop(_producing(queue.partition))

    def drop(self) -> bool:
        """Drop batches that are not in flight, and those in flight if they fail. Returns whether any is in flight.

        Another member may own the tasks by now: a repeated request would put older values behind its records.
        """
        for queue in tuple(self._queues.values()):
            queue.is_last_try = queue.in_flight
            while len(queue.batches) > int(queue.in_flight):
                self._discard(queue, queue.batches.pop())
        return bool(self._queues)

    def abort(self, now_ms: int) -> None:
        """Close the connections with requests in flight: bytes that the kernel has not sent yet must not arrive
        later.
        """
        self._network.abort(now_ms)

    def _discard(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        self._not_to_be_taken_for(batch)
        self._remove(queue, batch)

    def close(self) -> None:
        """Close all connections; unacknowledged batches are dropped silently."""
        self._queues.clear()
        self._network.close()


def _producing(partition: TopicPartition) -> str:
    """Return the name of a partition's retries."""
    return f"Produce to {partition}"


def _records_of(partition: TopicPartition, batch: ProducerBatch) -> list[_Sourced]:
    """Return a packed batch's records as a consumer would, and the source of each."""
    data = batch.sealed(-1, -1, -1, False)
    found: list[Message] = []
    origin = origin_of(partition.topic, partition.partition)
    RecordBatches(origin, data, 0, len(data), 0, None, False).take(found, batch.count)
    if len(found) != batch.count:
        raise StreamsError(
            f"{batch.count} records for {partition} were not written, but only {len(found)} of them can be reported"
        )
    return list(zip(found, batch.sources or [None] * batch.count, strict=True))
