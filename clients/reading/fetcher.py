"""Reads assigned partitions from their leaders by Fetch requests, in the stream thread itself (Kafka: Fetcher).

Only fetch() and read_ahead() block, and no other thread reads: a response arrives in the socket buffer while records of
the previous one are processed. docs/clients.md describes when requests are sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from typing_extensions import override

from penstock.kernel.record_batches import (
    CorruptRecordsError,
    FetchResponse,
    PartitionData,
    RecordBatches,
    UnknownFormatError,
)
from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition

from ..clock import Clock
from ..cluster.brokers import Brokers, Leader
from ..cluster.leader_table import MOVED, UNKNOWN_THERE
from ..cluster.network_client import NetworkClient
from ..connection.broker_link import BrokerLink, LinkApi
from ..connection.connection import ConnectionState
from ..errors import BrokerError, ErrorCode, UnreachableError
from ..log_context import PrefixedLogger
from ..protocol.fetch_request import API_KEY, API_VERSIONS, NAMES_VERSION, Part, PartitionRequest, fetch_request
from ..served_clock import ServedClock
from ..throttle import Health
from .fetch_session import Asked, FetchSession, PartitionAsked
from .fetch_settings import FetchSettings
from .partition_fetch import Buffered, FetchBuffer, PartitionFetch, unreadable
from .reader import Reader, ReaderEvent, Records

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: A partition with this many responses in the buffer is not requested: one is being processed, the next is ready.
ANSWERS_AHEAD = 2
#: … unless they are small: together less than this fraction of max_partition_bytes.
SMALL_PART = 16
#: The longest duration of read_ahead(), in ms.
READ_AHEAD_MS = 10_000

#: Errors of a whole response: the broker's session differs from ours.
_SESSION_ERRORS = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)
#: Errors after which the request is repeated at the same broker.
_AGAIN = frozenset((ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT))


class Fetcher(Reader):
    """A Reader; see there. Not thread-safe, except wake(). Owns brokers."""

    def __init__(self, brokers: Brokers, settings: FetchSettings, clock: Clock, log: PrefixedLogger) -> None:
        self._brokers = brokers
        self._settings = settings
        self._clock = ServedClock(clock, self._note_pause)
        self._log = log
        api = LinkApi("Fetch", API_KEY, *API_VERSIONS, FetchResponse, "2.7", "read from", "penstock.fetcher")
        self._network = NetworkClient(brokers, settings, api, self._note, log)
        self._leaders = self._network.leaders
        self._sessions: defaultdict[int, FetchSession] = defaultdict(FetchSession)  # by broker
        self._fetches: dict[TopicPartition, PartitionFetch] = {}
        self._buffer = FetchBuffer()
        self._events: list[ReaderEvent] = []  # of the client
        self._ask_at = 0  # in ms: when to check for requests to send, even if nothing happens before
        self._woken = False
        self._serve: Callable[[], bool] = lambda: False  # see watch()

    @override
    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        for partition, offset in offsets.items():
            self._fetches[partition] = PartitionFetch(partition, offset)
        self._leaders.hear_of(offsets)
        self._ask_at = 0

    @override
    def set_epochs(self, epochs: Mapping[TopicPartition, int]) -> None:
        for partition, epoch in epochs.items():
            self._fetches[partition].last_epoch = epoch
            self._fetches[partition].epochs.extend([(-1, epoch)])

    @override
    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        return self._fetches[partition].epochs.before(offset)

    @override
    def topic_id(self, partition: TopicPartition) -> bytes | None:
        return self._fetches[partition].topic_id

    @override
    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._fetches.pop(partition).is_assigned = False
            self._network.retries.drop(_fetching(partition))

    @override
    def pause(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._fetches[partition].paused = True

    @override
    def resume(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._fetches[partition].paused = False
            self._buffer.resume(self._fetches[partition])
        self._ask_at = 0

    @override
    def high_watermark(self, partition: TopicPartition) -> int | None:
        return self._fetches[partition].high_watermark

    @override
    def fetch(self, max_records: int, timeout_seconds: float) -> tuple[Records, list[ReaderEvent]]:
        now = self._clock.monotonic_ms()
        deadline = now + int(timeout_seconds * 1000)
        while True:
            self._advance(now)
            found = self._take(max_records)
            self._maybe_ask(now)
            if any(found) or now >= deadline or self._woken:
                self._woken = False  # before the caller checks why it was woken
                return found
            if not self._wait(now, deadline):
                return found
            now = self._clock.monotonic_ms()

    @override
    def watch(self, descriptor: int, serve: Callable[[], bool]) -> None:
        self._serve = serve
        self._network.watch(descriptor)

    @override
    def wake(self) -> None:
        if not self._woken:  # once is enough until fetch() returns
            self._woken = True
            self._network.wake()

    def read_ahead(self, until: Future[Any]) -> None:
        """Buffer responses and send further requests until a future is done."""
        self._network.wake_when(until)
        now = self._clock.monotonic_ms()
        deadline = now + READ_AHEAD_MS
        with suppress(StreamsError), self._network.unwatched():  # the next fetch() raises it too
            while not until.done() and now < deadline:
                self._advance(now)
                self._maybe_ask(now)
                self._wait(now, deadline)
                now = self._clock.monotonic_ms()

    def _maybe_ask(self, now: int) -> None:
        if now >= self._ask_at:
            self._ask(now)
            self._ask_at = now + self._settings.queue_backoff_ms

    def _take(self, max_records: int) -> tuple[Records, list[ReaderEvent]]:
        records, events = self._buffer.take(max_records)
        if self._buffer.freed:
            self._ask_at = 0
        if self._events:
            events += self._events
            self._events.clear()
        return records, events

    def _wait(self, now: int, deadline: int) -> bool:
        """Wait for responses, or until something is due. Returns False if what serves a descriptor ends the wait."""
        until = min((deadline, *self._retries(now)))
        while now < until:
            self._clock.begin_wait(until - now)
            self._network.wait(now, until)
            if self._network.is_called and not self._serve():
                return False
            if self._network.has_changed:
                break
            now = self._clock.monotonic_ms()
        return True

    def _note_pause(self, ms: int) -> None:
        self._network.note_pause(ms)

    def _retries(self, now: int) -> Iterable[int]:
        return (fetch.retry_at_ms for fetch in self._fetches.values() if fetch.retry_at_ms > now)

    def _advance(self, now: int) -> None:
        """Handle the responses that have arrived."""
        network = self._network
        for each in network.advance(self._fetches, now):
            if each.response is None:
                self._sessions[each.node].lost()
            else:
                self._take_response(each.node, each.asked, each.response, now)
        if network.has_changed:
            network.has_changed = False
            self._settle_doubts(now)
            self._give_up_unreadable(now)
            self._leave_lost_replicas()
            self._ask_at = 0

    def _leave_lost_replicas(self) -> None:
        for fetch in self._fetches.values() if self._network.lost_nodes else ():
            if fetch.replica in self._network.lost_nodes:
                fetch.replica = None
        self._network.lost_nodes.clear()

    def _note(self, what: str, failure: str) -> None:
        text = f"{what}: {failure}; trying again"
        self._events.append(ReaderEvent(None, -1, UnreachableError(text)))

    def _give_up_unreadable(self, now: int) -> None:
        for fetch in self._fetches.values():
            code = None if fetch.has_failed else self._leaders.error_of(fetch.partition, now)
            if code is not None:
                self._fail(fetch, BrokerError(code))

    def _settle_doubts(self, now: int) -> None:
        """Detect by newer metadata whether topics unknown to a broker were recreated under the same name."""
        for fetch in self._fetches.values():
            if fetch.doubted_at is None or fetch.doubted_at >= self._leaders.responses or fetch.has_failed:
                continue
            if self._leaders.of(fetch.partition) is None:
                self._leaders.refresh(now)
                continue
            fetch.doubted_at = None
            topic_id = self._leaders.id_of(fetch.partition.topic)
            if fetch.topic_id is not None and topic_id is not None and topic_id != fetch.topic_id:
                self._fail(fetch, _recreated(fetch, topic_id))

    def _fail(self, fetch: PartitionFetch, error: BrokerError) -> None:
        """Stop fetching a partition until it is reassigned; report the error after the records fetched before."""
        self._network.retries.drop(_fetching(fetch.partition))
        fetch.has_failed = True
        self._buffer.put(Buffered(fetch, None, ReaderEvent(fetch.partition, fetch.next_offset, error)))

    # Asking

    def _ask(self, now: int) -> None:
        """Send a request to each broker that is ready and has partitions to fetch."""
        for node, fetches in self._by_node(now).items():
            link = self._network.link(node)
            if link.state is ConnectionState.ACTIVE:
                continue
            wanted = [fetch for fetch in fetches if not self._has_enough(fetch)]
            if wanted and link.is_ready(now):
                self._send(link, wanted, now, waits=len(wanted) == len(fetches))

    def _has_enough(self, fetch: PartitionFetch) -> bool:
        small = self._settings.max_partition_bytes // SMALL_PART
        return fetch.waiting >= ANSWERS_AHEAD and fetch.waiting_bytes >= small

    def _by_node(self, now: int) -> dict[int, list[PartitionFetch]]:
        """Return the partitions that may be fetched now, by broker."""
        found = defaultdict(list)
        for fetch in self._fetches.values():
            if not (fetch.has_failed or fetch.paused) and now >= fetch.retry_at_ms and fetch.doubted_at is None:
                node = self._node_of(fetch, now)
                if node is not None:
                    found[node].append(fetch)
        return found

    def _node_of(self, fetch: PartitionFetch, now: int) -> int | None:
        leader = self._leaders.of(fetch.partition)
        if leader is None:
            self._leaders.refresh(now)
            self._network.retries.failed(_fetching(fetch.partition), "it has no leader", now)
            return None
        if fetch.replica is not None and now >= fetch.replica_until_ms:
            fetch.replica = None
        return leader.node if fetch.replica is None else fetch.replica

    def _send(self, link: BrokerLink[FetchResponse], wanted: list[PartitionFetch], now: int, waits: bool) -> None:
        """Request partitions. waits: whether they are all of the broker's fetchable partitions."""
        for fetch in wanted:
            fetch.topic_id = fetch.topic_id or self._leaders.id_of(fetch.partition.topic)
        by_id = link.version > NAMES_VERSION and all(fetch.topic_id for fetch in wanted)
        version = link.version if by_id else NAMES_VERSION
        asked: Asked = dict(self._asked(fetch, by_id) for fetch in wanted)
        session = self._sessions[link.node].next(asked, by_id)
        max_wait = self._settings.max_wait_ms
        if not waits:
            max_wait = min(self._settings.queue_backoff_ms, max_wait)
        link.send(
            lambda number: fetch_request(self._settings, version, number, max_wait, session),
            asked,
            max_wait,
            now,
            version,
        )

    def _asked(self, fetch: PartitionFetch, by_id: bool) -> tuple[Part, PartitionAsked]:
        leader = self._leaders.of(fetch.partition)
        epoch = -1 if leader is None else leader.epoch
        request = PartitionRequest(fetch.next_offset, epoch, fetch.last_epoch)
        topic = fetch.topic_id if by_id and fetch.topic_id is not None else fetch.partition.topic
        return (topic, fetch.partition.partition), PartitionAsked(fetch, request, fetch.replica is not None)

    # Responses

    def _take_response(self, node: int, asked: Asked, response: FetchResponse, now: int) -> None:
        session = self._sessions[node]
        if response.error:
            if session.lost() and response.error in _SESSION_ERRORS:
                return  # the next request is full, and sent immediately
            for each in asked.values():
                self._retry(node, each.fetch, response.error, now)
            return
        session.took(response.session_id)
        retries = self._network.retries
        for found in response.partitions:
            of = asked.get((found.topic, found.partition))
            if of is None or of.is_stale:
                continue
            if retries and not found.error:
                retries.succeeded(_fetching(of.fetch.partition), now)
            if found.error:
                self._take_error(node, of, found, now)
            elif found.diverging_offset >= 0:
                self._take_diverging(node, of, found, now)
            else:
                self._take_records(of.fetch, found, response.data, now)

    def _take_records(self, fetch: PartitionFetch, found: PartitionData, data: Buffer, now: int) -> None:
        settings = self._settings
        fetch.high_watermark = found.high_watermark
        if found.preferred_replica >= 0:
            fetch.replica, fetch.replica_until_ms = found.preferred_replica, now + settings.metadata_max_age_ms
        batches = None
        if found.size:
            batches = self._batches(fetch, found, data)
            if batches is None:
                return
            fetch.next_offset = batches.next_offset
            if batches.leader_epoch >= 0:
                fetch.last_epoch = batches.leader_epoch
                fetch.epochs.extend(batches.epochs)
            # Put the other partitions first in the next request: its response may be full before the last ones.
            self._fetches[fetch.partition] = self._fetches.pop(fetch.partition)
        end = found.last_stable_offset if settings.read_committed else found.high_watermark
        event = None
        if fetch.next_offset >= end and fetch.told_end != fetch.next_offset:
            fetch.told_end = fetch.next_offset
            event = ReaderEvent(fetch.partition, fetch.next_offset, None)
        if batches is not None or event is not None:
            self._buffer.put(Buffered(fetch, batches, event, found.size))

    def _batches(self, fetch: PartitionFetch, found: PartitionData, data: Buffer) -> RecordBatches | None:
        aborted = (found.aborted or []) if self._settings.read_committed else None
        place = data, found.start, found.size
        limits = self._settings.check_crcs, self._settings.max_record_bytes
        try:
            return RecordBatches(fetch.origin, *place, fetch.next_offset, aborted, *limits)
        except CorruptRecordsError as error:
            self._fail(fetch, BrokerError(ErrorCode.CORRUPT_MESSAGE, str(error)))
        except UnknownFormatError as error:
            raise unreadable(fetch.partition, error) from error
        return None

    def _take_diverging(self, node: int, of: PartitionAsked, found: PartitionData, now: int) -> None:
        """Handle a broker whose log diverges from the last epoch that was read (KIP-320)."""
        fetch = of.fetch
        if found.diverging_offset >= fetch.next_offset:  # no record of the epoch is left: a compacted topic
            fetch.last_epoch = -1
        elif of.at_replica:  # a follower may be behind: only the leader is reliable
            self._retry(node, fetch, ErrorCode.OFFSET_OUT_OF_RANGE, now)
        else:
            self._fail(fetch, _truncated(fetch, found))

    def _take_error(self, node: int, of: PartitionAsked, found: PartitionData, now: int) -> None:
        fetch = of.fetch
        if found.error == ErrorCode.OFFSET_OUT_OF_RANGE and not of.at_replica:
            self._fail(fetch, BrokerError(found.error, f"offset {fetch.next_offset} does not exist on broker {node}"))
        elif found.error in MOVED or found.error in _AGAIN or of.at_replica:
            if found.error in UNKNOWN_THERE:
                fetch.doubted_at = self._leaders.responses
            if found.leader >= 0:
                self._leaders.learn(fetch.partition, Leader(found.leader, found.leader_epoch))
            self._retry(node, fetch, found.error, now)
        else:
            self._fail(fetch, BrokerError(found.error))

    def _retry(self, node: int, fetch: PartitionFetch, code: int, now: int) -> None:
        self._network.retries.failed(_fetching(fetch.partition), f"{ErrorCode(code).name} from broker {node}", now)
        fetch.replica = None
        fetch.retry_at_ms = now + self._settings.retry_backoff_ms
        if code not in _AGAIN:
            self._leaders.refresh(now)

    @override
    def health(self) -> Health:
        return self._network.health(self._clock.monotonic_ms())

    @override
    def throttled_ago_ms(self, partition: TopicPartition) -> float | None:
        fetch, leader = self._fetches[partition], self._leaders.of(partition)
        node = leader.node if fetch.replica is None and leader is not None else fetch.replica
        return self._network.throttle.ago_ms(node, self._clock.monotonic_ms())

    def close(self) -> None:
        """Close all connections."""
        self._network.close()


def _fetching(partition: TopicPartition) -> str:
    """Return the name of a partition's retries."""
    return f"Fetch of {partition}"


def _truncated(fetch: PartitionFetch, found: PartitionData) -> BrokerError:
    """Return the error of a log truncated below the position read (KIP-320, Kafka: LogTruncationException)."""
    return BrokerError(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"the log was truncated to {found.diverging_offset} after records up to {fetch.next_offset} had been read "
        f"(an unclean leader election, epoch {fetch.last_epoch + 1} or later)",
    )


def _recreated(fetch: PartitionFetch, topic_id: bytes) -> BrokerError:
    """Return the error of a recreated topic: it has a new id, and its offsets are unrelated to those read."""
    before, now = (UUID(bytes=found) for found in (fetch.topic_id or b"", topic_id))
    return BrokerError(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"topic {fetch.partition.topic} was deleted and created again: its id was {before} and is {now}",
    )
