"""Fetch sessions: requests name only changed partitions, and topics by id (KIP-227, KIP-516)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from penstock.clients.cluster.brokers import Leader, Leaders
from penstock.clients.errors import ErrorCode
from penstock.topology.records import TopicPartition
from tests.clients.fetch_stage import IN_0, IN_1, FetchStage, Request, log_of, shown, two_partitions
from tests.record_bytes import TOPIC_ID, GivenAnswer

SESSION = 7
SESSION_ID_NOT_FOUND, INVALID_SESSION_EPOCH, SESSION_TOPIC_ID_ERROR = 70, 71, 106
NEW_ID = UUID(int=99)
LEADERS = {IN_0: Leader(1, 5), IN_1: Leader(1, 6)}
EOF = None


@pytest.fixture
def stage() -> Iterator[FetchStage]:
    """Two partitions that broker 1 leads; it supports everything that the client supports."""
    for made in two_partitions():
        made.brokers.versions = {1: (4, 17)}
        made.brokers.answer = Leaders(LEADERS, ids={"in": TOPIC_ID.bytes})
        yield made


def begun(stage: FetchStage) -> Request:
    """Return the second request of a new session with both partitions."""
    stage.fetcher.assign({IN_0: 0, IN_1: 0})
    stage.run()
    request = stage.brokers.request()
    assert (request.version, request.session, request.offsets) == (17, (0, 0), {IN_0: 0, IN_1: 0})
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=0), GivenAnswer(1, high_watermark=0), session_id=SESSION)
    assert stage.run() == ({}, [("in", 0, 0, EOF), ("in", 1, 0, EOF)])
    return stage.brokers.request()


def test_a_request_names_only_changed_partitions(stage: FetchStage) -> None:
    request = begun(stage)
    assert (request.session, request.asked, request.forgotten) == ((SESSION, 1), {}, set())
    answer = GivenAnswer(1, high_watermark=2, records=log_of(2, epoch=6))
    stage.brokers.reply(request, answer, session_id=SESSION)
    assert stage.run() == ({IN_1: [0, 1]}, [("in", 1, 2, EOF)])
    request = stage.brokers.request()
    assert (request.session, request.offsets, request.asked[IN_1].last_fetched_epoch) == ((SESSION, 2), {IN_1: 2}, 6)
    stage.fetcher.pause([IN_0])
    stage.brokers.reply(request, session_id=SESSION)
    stage.run()
    request = stage.brokers.request()
    assert (request.session, request.asked, request.forgotten) == ((SESSION, 3), {}, {IN_0})
    stage.fetcher.resume([IN_0])
    stage.brokers.reply(request, session_id=SESSION)
    stage.run()
    request = stage.brokers.request()
    assert (request.session, request.offsets, request.forgotten) == ((SESSION, 4), {IN_0: 0}, set())


def test_a_broker_without_a_session_gets_all_partitions(stage: FetchStage) -> None:
    request = begun(stage)
    for _ in range(2):
        stage.brokers.reply(request, session_id=0)
        stage.run()
        request = stage.brokers.request()
        assert (request.session, request.offsets) == ((0, 0), {IN_0: 0, IN_1: 0})


def test_the_end_of_a_partition_is_reported_after_a_new_assignment(stage: FetchStage) -> None:
    """A broker with a session omits the partition from its responses while nothing changes there."""
    request = begun(stage)
    stage.fetcher.unassign([IN_0])
    stage.fetcher.assign({IN_0: 0})
    stage.brokers.reply(request, session_id=SESSION)
    stage.run()
    request = stage.brokers.request()
    assert (request.session, request.offsets) == ((SESSION, 0), {IN_0: 0, IN_1: 0})


@pytest.mark.parametrize("error", [SESSION_ID_NOT_FOUND, INVALID_SESSION_EPOCH, SESSION_TOPIC_ID_ERROR])
def test_a_lost_session_restarts_at_once(stage: FetchStage, error: int) -> None:
    stage.brokers.reply(begun(stage), error=error)
    stage.run()
    request = stage.brokers.request()
    assert (request.session, request.offsets) == ((SESSION, 0), {IN_0: 0, IN_1: 0})
    stage.brokers.reply(request, error=error)  # in response to a full request: an immediate retry would not help
    stage.run()
    assert not stage.brokers.has_request()
    stage.run(stage.settings.retry_backoff_ms)
    assert stage.brokers.request().offsets == {IN_0: 0, IN_1: 0}


def test_a_lost_connection_is_followed_by_a_full_request(stage: FetchStage) -> None:
    begun(stage)
    stage.brokers.ends[1].close()
    stage.run()
    stage.run(stage.settings.retry_backoff_ms)
    request = stage.brokers.request()
    assert (request.session, request.offsets) == ((SESSION, 0), {IN_0: 0, IN_1: 0})


@pytest.mark.parametrize(("versions", "ids"), [((4, 12), True), ((4, 17), False)])
def test_without_ids_topics_are_named(stage: FetchStage, versions: tuple[int, int], ids: bool) -> None:
    stage.brokers.versions = {1: versions}
    stage.brokers.answer = Leaders(LEADERS, ids={"in": TOPIC_ID.bytes} if ids else {})
    stage.fetcher.assign({IN_0: 0})
    stage.run()
    request = stage.brokers.request()
    assert (request.version, request.offsets) == (12, {IN_0: 0})
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=3, records=log_of(3)), session_id=SESSION)
    assert stage.fetch() == ({IN_0: [0, 1, 2]}, [("in", 0, 3, EOF)])
    assert stage.brokers.request().session == (SESSION, 1)


def test_a_session_by_name_ends_once_ids_are_known(stage: FetchStage) -> None:
    stage.brokers.answer = Leaders(LEADERS)
    stage.fetcher.assign({IN_0: 0})
    stage.run()
    request = stage.brokers.request()
    stage.brokers.answer = Leaders(LEADERS, ids={"in": TOPIC_ID.bytes})
    stage.brokers.reply(
        request, GivenAnswer(0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=(1, 6)), session_id=SESSION
    )
    stage.run()
    stage.run(stage.settings.retry_backoff_ms)  # it has sent a request when the response with ids arrives
    stage.brokers.reply(stage.brokers.request(), session_id=SESSION)
    stage.run()
    request = stage.brokers.request()
    assert (request.version, request.session, request.offsets) == (17, (SESSION, 0), {IN_0: 0})


# Topics that are deleted and created again


@pytest.mark.parametrize("versions", [(4, 17), (4, 12)])
def test_a_recreated_topic_is_reported_as_offset_out_of_range(stage: FetchStage, versions: tuple[int, int]) -> None:
    stage.brokers.versions = {1: versions}
    error = ErrorCode.UNKNOWN_TOPIC_ID if versions == (4, 17) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    stage.fetcher.assign({IN_0: 3})
    stage.run()
    stage.brokers.answer = Leaders({}, {"in": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    stage.brokers.reply(stage.brokers.request(), GivenAnswer(0, error=error))
    for _ in range(3):
        assert stage.run(stage.settings.retry_backoff_ms) == ({}, [])
    stage.brokers.answer = Leaders({IN_0: Leader(1, 0)}, ids={"in": NEW_ID.bytes})
    stage.clock.advance(stage.settings.retry_backoff_ms)
    events: list[Any] = []
    for _ in range(3):
        events += stage.fetcher.fetch(10, 0)[1]
    (event,) = events
    assert shown(event)[:2] == ("in", 0)
    assert shown(event)[3] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert str(event.error).endswith(f" and is {NEW_ID}")
    assert not stage.brokers.has_request()
    stage.brokers.names[NEW_ID] = "in"
    stage.fetcher.unassign([IN_0])
    stage.fetcher.assign({IN_0: 0})
    stage.run()
    request = stage.brokers.request()
    assert request.offsets == {IN_0: 0}
    assert request.asked[IN_0].current_leader_epoch == 0


def test_a_broker_that_does_not_know_a_topic_yet_is_retried(stage: FetchStage) -> None:
    stage.brokers.reply(begun(stage), GivenAnswer(0, error=ErrorCode.UNKNOWN_TOPIC_ID), session_id=SESSION)
    assert stage.run() == ({}, [])
    request = stage.brokers.request()
    assert (request.asked, request.forgotten) == ({}, {IN_0})
    stage.run(stage.settings.retry_backoff_ms)
    stage.brokers.reply(request, session_id=SESSION)
    assert stage.run(stage.settings.retry_backoff_ms) == ({}, [])
    assert stage.brokers.request().offsets == {IN_0: 0}


def test_a_new_topic_id_is_accepted_only_if_the_leader_rejects_the_old_one(stage: FetchStage) -> None:
    """A broker that is cut off may report an old id for a long time."""
    request = begun(stage)
    stage.brokers.answer = Leaders(LEADERS, ids={"in": NEW_ID.bytes})
    stage.brokers.reply(request, GivenAnswer(1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER), session_id=SESSION)
    stage.run()
    stage.run(stage.settings.retry_backoff_ms)
    assert len(stage.brokers.asked) == 2
    answer = GivenAnswer(0, high_watermark=1, records=log_of(1))
    stage.brokers.reply(stage.brokers.request(), answer, session_id=SESSION)
    assert stage.run() == ({IN_0: [0]}, [("in", 0, 1, EOF)])
    assert stage.brokers.request().offsets == {IN_0: 1, IN_1: 0}


# Many partitions


def test_request_sizes_with_many_partitions() -> None:
    """One of 256 partitions on a broker has a record each time: bytes per request, with and without a session."""
    partitions = [TopicPartition("in", number) for number in range(256)]
    sizes = {}
    for session_id in (0, SESSION):
        stage = FetchStage(dict.fromkeys(partitions, Leader(1, 5)), read_committed=False)
        stage.fetcher.assign(dict.fromkeys(partitions, 0))
        stage.run()
        request = stage.brokers.request()
        stage.brokers.reply(request, *(GivenAnswer(n, high_watermark=0) for n in range(256)), session_id=session_id)
        stage.run()
        total = 0
        for turn in range(100):
            request = stage.brokers.request()
            total += request.size
            stage.brokers.reply(request, GivenAnswer(turn, high_watermark=1, records=log_of(1)), session_id=session_id)
            assert stage.run()[0] == {partitions[turn]: [0]}
        stage.fetcher.close()
        sizes[session_id] = total / 100
    print(
        f"bytes of a Fetch request with 256 partitions: {sizes[0]:.0f} without a session, {sizes[SESSION]:.0f} with one"
    )
    assert sizes[0] > 8_000
    assert sizes[SESSION] < 120


class RememberingBroker:
    """Broker 1 of a stage with Kafka's FetchSession: growing logs, and a session that may get lost."""

    def __init__(self, stage: FetchStage, chance: random.Random) -> None:
        self.stage, self.chance = stage, chance
        self.ends = {IN_0: 0, IN_1: 0}
        self.session = (0, 0)
        self.remembered: dict[TopicPartition, int] = {}
        self.told: dict[TopicPartition, int] = {}  # the high watermark in the last response
        self.sessions = 0

    def answer(self) -> None:
        """Respond to the pending request; its interpretation must be correct."""
        request = self.stage.brokers.request()
        session_id, epoch = request.session
        if epoch == 0:
            self.sessions += 1
            self.session = (self.sessions, 1)
            self.remembered, self.told = dict(request.offsets), {}
        elif self.session != request.session:
            known = self.session[0] == session_id
            self.stage.brokers.reply(request, error=INVALID_SESSION_EPOCH if known else SESSION_ID_NOT_FOUND)
            return
        else:
            self.session = (session_id, epoch + 1)
            assert request.forgotten <= self.remembered.keys()
            for forgotten in request.forgotten:
                del self.remembered[forgotten]
                self.told.pop(forgotten, None)
            self.remembered |= request.offsets
        answers = []
        for partition, offset in self.remembered.items():
            count = min(self.chance.randrange(4), self.ends[partition] - offset)
            if count > 0 or self.told.get(partition) != self.ends[partition]:
                records = log_of(count, offset) if count > 0 else b""
                answers.append(GivenAnswer(partition.partition, high_watermark=self.ends[partition], records=records))
                self.told[partition] = self.ends[partition]
        self.stage.brokers.reply(request, *answers, session_id=self.session[0])


@pytest.mark.parametrize("seed", range(30))
def test_all_records_are_read_once_and_in_order_after_any_loss(stage: FetchStage, seed: int) -> None:
    chance = random.Random(seed)
    broker = RememberingBroker(stage, chance)
    read: dict[TopicPartition, list[int]] = {IN_0: [], IN_1: []}
    ends: dict[TopicPartition, int] = {}  # of each partition that has been read to its end since its assignment
    paused: set[TopicPartition] = set()
    stage.fetcher.assign({IN_0: 0, IN_1: 0})
    stage.run()

    def turn() -> None:
        stage.clock.advance(stage.settings.retry_backoff_ms)
        records, events = stage.run()
        for partition, offsets in records.items():
            assert partition not in paused
            read[partition] += offsets
        ends.update({TopicPartition(topic, number): end for topic, number, end, code in events if code == EOF})
        if stage.brokers.ends[1].fileno() >= 0 and stage.brokers.has_request():
            broker.answer()

    for _ in range(150):
        partition = chance.choice((IN_0, IN_1))
        match chance.randrange(12):
            case 0:
                broker.session = (0, 0)  # it has restarted, or has evicted the session
            case 1:
                broker.session = (broker.session[0], broker.session[1] + 1)
            case 2 if partition not in paused:
                stage.fetcher.pause([partition])
                paused.add(partition)
            case 3 if partition in paused:
                stage.fetcher.resume([partition])
                paused.remove(partition)
            case 4:
                stage.brokers.ends[1].close()
            case 5:  # as in a rebalance or a seek
                stage.fetcher.unassign([partition])
                stage.fetcher.assign({partition: len(read[partition])})
                paused.discard(partition)
                ends.pop(partition, None)
            case _:
                broker.ends[partition] += chance.randrange(3)
        turn()
    if paused:
        stage.fetcher.resume(sorted(paused))
        paused.clear()
    for _ in range(200):
        turn()
    assert read == {partition: list(range(end)) for partition, end in broker.ends.items()}
    assert ends == broker.ends
    assert broker.sessions > 3
