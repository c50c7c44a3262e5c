"""A member whose broker is unreachable, whose IO thread dies, or whose libraries have changed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import metadata as kafka_python

from penstock.clients import retry_log
from penstock.clients.clock import SystemClock
from penstock.clients.cluster.cluster import Address
from penstock.clients.cluster.coordinators import CoordinatorKind
from penstock.clients.errors import BrokerError, ErrorCode, UnreachableError
from penstock.clients.group import group_coordinator, requests
from penstock.clients.group.classic_protocol import ClassicProtocol
from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.member_state import MEMBER_TRANSITIONS, MemberState, member_states
from penstock.clients.group.membership import (
    Assigned,
    Event,
    Fatal,
    MemberAssignment,
    MemberSubscription,
    RetriableCommitError,
)
from penstock.clients.group.offsets import GroupOffsets
from penstock.clients.group.offsets_reader import GroupOffsetsReader
from penstock.clients.group.requests import GroupMemberConfig, Identity
from penstock.clients.librdkafka import group_metadata
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.network_settings import NetworkSettings, network_settings
from penstock.clients.protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from penstock.dev.dev_broker import DevBroker
from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.records import TopicPartition
from tests.clients.joining import joining
from tests.manual_clock import ManualClock
from tests.topics import create_topics
from tests.waiting import PATIENCE_FACTOR, PATIENCE_SECONDS

PAUSE_SECONDS = 0.01

Start = Callable[..., GroupMember]


@pytest.fixture
def start() -> Iterator[Start]:
    """Make members of the group ``g`` that assign no partitions."""
    made: list[GroupMember] = []

    def start_member(bootstrap_servers: str, **settings: int) -> GroupMember:
        config = GroupMemberConfig("g", heartbeat_interval_ms=100, **settings)  # type: ignore[arg-type]
        member = GroupMember(
            config,
            network_settings({"bootstrap.servers": bootstrap_servers}),
            SystemClock(),
            partial(ClassicProtocol, assign=lambda members: {m: MemberAssignment((), b"part") for m in members}),
        )
        made.append(member)
        member.join(joining(MemberSubscription(b"", frozenset({"t"}))))
        return member

    yield start_member
    for member in made:
        member.close(leave=False)


def next_event(member: GroupMember, seconds: float = PATIENCE_SECONDS) -> Event:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        events = member.poll()
        if events:
            return events[0]
        time.sleep(PAUSE_SECONDS)
    raise AssertionError("no event")


def test_an_unreachable_broker_is_retried_until_the_timeout_and_reported_meanwhile(
    start: Start, closed_port: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_log, "TELL_AFTER_MS", 200)
    started = time.monotonic()
    event = next_event(start(closed_port, unavailable_timeout_ms=1_000))
    assert 0.9 < time.monotonic() - started < 10 * PATIENCE_FACTOR
    assert isinstance(event, Fatal)
    assert isinstance(event.error, BrokerUnavailableError)
    assert "The coordinator of group g could not be reached" in str(event.error)
    assert "Connection refused" in str(event.error)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1, "it is said once"
    assert all(record.name.startswith("penstock") for record in caplog.records if record.levelno >= logging.WARNING)


def test_offsets_that_cannot_be_read_in_time_are_a_broker_error(start: Start, closed_port: str) -> None:
    member = start(closed_port, api_timeout_ms=300)
    with pytest.raises(BrokerUnavailableError, match="could not be read within 300 ms"):
        member.committed([TopicPartition("t", 0)])


def test_missing_offsets_are_waited_for_once(start: Start, closed_port: str) -> None:
    member = start(closed_port, api_timeout_ms=5_000, committed_wait_ms=500)
    partitions = [TopicPartition("t", number) for number in range(20)]
    started = time.monotonic()
    for partition in partitions:
        with pytest.raises(BrokerUnavailableError, match="are not available yet"):
            member.committed([partition])
    assert 0.5 <= time.monotonic() - started < 5.0  # one wait, not twenty
    found = ""
    while "could not be read within 5000 ms" not in found:  # the request itself has ended
        assert time.monotonic() < started + PATIENCE_SECONDS, found
        with pytest.raises(BrokerUnavailableError) as raised:
            member.committed([partitions[0]])
        found = str(raised.value)
        time.sleep(PAUSE_SECONDS)


def committed_soon(member: GroupMember, partitions: Collection[TopicPartition]) -> Any:
    """Return the result of committed() once there is one; while others are missing it does not wait for it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return member.committed(partitions)
        except BrokerUnavailableError:
            assert time.monotonic() < deadline
            time.sleep(PAUSE_SECONDS)


def test_cached_offsets_from_joint_and_single_requests_are_dropped_together(
    start: Start, closed_port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (TopicPartition("t", number) for number in range(3))
    answers: dict[TopicPartition, OffsetAndMetadata | None] = {}
    asked: list[set[TopicPartition]] = []

    async def fetch(self: GroupOffsets, partitions: Collection[TopicPartition]) -> Any:
        asked.append(set(partitions))
        while not answers:
            await self._coordinator.pause()
        return {partition: answers[partition] for partition in partitions}

    monkeypatch.setattr(GroupOffsets, "fetch", fetch)
    member = start(closed_port, committed_wait_ms=50)
    for partitions in ([first, second], [first], [third]):
        with pytest.raises(BrokerUnavailableError, match="are not available yet"):
            member.committed(partitions)
    answers.update(dict.fromkeys((first, second, third), OffsetAndMetadata(1)))
    assert committed_soon(member, [first, second])[first] == OffsetAndMetadata(1)
    answers.update(
        dict.fromkeys((first, second, third), OffsetAndMetadata(2))
    )  # the offsets that the tasks have committed since
    assert committed_soon(member, [first]) == {first: OffsetAndMetadata(2)}
    assert asked == [{first, second}, {first}, {third}, {first}]


def test_reading_offsets_has_a_time_limit(closed_port: str) -> None:
    with GroupOffsetsReader("group", network_settings({"bootstrap.servers": closed_port}), timeout_ms=300) as reader:
        started = time.monotonic()
        with pytest.raises(BrokerUnavailableError, match=r"group group could not be (read|reached)"):
            reader.committed([TopicPartition("t", 0)])
        assert time.monotonic() - started < 60, "the default of default.api.timeout.ms"


def test_closing_does_not_wait_for_an_unreachable_broker(start: Start, closed_port: str) -> None:
    member = start(closed_port)
    started = time.monotonic()
    member.close(leave=True)
    assert time.monotonic() - started < 10.0 * PATIENCE_FACTOR


def test_a_dead_io_thread_is_fatal_and_reported_once(start: Start, closed_port: str) -> None:
    member = start(closed_port)

    async def die() -> None:
        raise SystemExit("killed by the test")

    member._connection.submit(die)
    event = next_event(member)
    assert isinstance(event, Fatal)
    assert "killed by the test" in str(event.error)
    assert member.poll() == []


@pytest.mark.broker
@pytest.mark.slow
def test_the_membership_survives_a_restart_of_the_broker(
    start: Start, stoppable_broker: DevBroker, unique_name: Callable[[str], str]
) -> None:
    servers, topic = stoppable_broker.bootstrap_servers, unique_name("t")
    admin = AdminClient({"bootstrap.servers": servers})
    create_topics(admin, NewTopic(topic, 1, 1))
    member = start(servers, api_timeout_ms=500, session_timeout_ms=1_800_000)
    assert isinstance(next_event(member), Assigned)
    member_id, partition = member.member_id, TopicPartition(topic, 0)
    member.commit({partition: OffsetAndMetadata(3, "x")})
    stoppable_broker.stop()
    with pytest.raises(RetriableCommitError, match="not accepted within 500 ms"):
        member.commit({partition: OffsetAndMetadata(3, "x")})
    stoppable_broker.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            member.commit({partition: OffsetAndMetadata(4, "y")})
            break
        except RetriableCommitError:
            assert time.monotonic() < deadline
    assert member.poll() == []
    assert member.member_id == member_id
    assert member.committed([partition]) == {partition: OffsetAndMetadata(4, "y")}


class Gone:
    """A connection to a coordinator that has just become unreachable."""

    async def find_coordinator(self, kind: CoordinatorKind, key: str) -> Address:
        raise UnreachableError(f"the coordinator of {key} is gone")


def test_a_static_member_fenced_after_an_outage_rejoins_but_otherwise_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A restarted broker may know only an earlier member of the slot, although no other one has joined."""
    config, fenced = GroupMemberConfig("g", instance_id="slot-0"), ErrorCode.FENCED_INSTANCE_ID
    clock = ManualClock()
    coordinator = group_coordinator.GroupCoordinator(
        config,
        NetworkSettings(),
        Gone(),  # type: ignore[arg-type]
        clock,
        PrefixedLogger("penstock.test", ""),
    )
    with pytest.raises(BrokerError, match="FENCED_INSTANCE_ID"):
        coordinator.check(fenced)
    with pytest.raises(UnreachableError):
        asyncio.run(coordinator.membership(requests.heartbeat(config, Identity()), 100))
    with pytest.raises(BrokerError, match="UNKNOWN_MEMBER_ID"):
        coordinator.check(fenced)
    assert "another member id for group.instance.id=slot-0; joining again" in caplog.text
    coordinator.check(0)
    clock.advance(config.session_timeout_ms - 1)
    with pytest.raises(BrokerError, match="UNKNOWN_MEMBER_ID"):
        coordinator.check(fenced)
    clock.advance(1)
    with pytest.raises(BrokerError, match="FENCED_INSTANCE_ID"):
        coordinator.check(fenced)


def test_the_states_and_the_diagram_agree() -> None:
    diagram = (MemberState.__doc__ or "").split("::")[1].split("- ")[0]
    drawn = {line.split("->")[0].strip(" -"): line.split("->")[1] for line in diagram.splitlines() if "->" in line}
    table = {old.name: {new.name for new in following} for old, following in MEMBER_TRANSITIONS.items()}
    assert {old: set(new.replace(",", " ").split()) for old, new in drawn.items()} == table


def test_a_transition_outside_the_table_is_refused() -> None:
    machine = member_states(PrefixedLogger("test", ""))
    with pytest.raises(StreamsError, match="from UNJOINED to STABLE"):
        machine.transition_to(MemberState.STABLE)


def test_group_metadata_matches_the_layout_of_the_installed_librdkafka(monkeypatch: pytest.MonkeyPatch) -> None:
    group_metadata.verify_layout()
    monkeypatch.setattr(group_metadata, "_MAGIC", b"CGMDv1:")
    with pytest.raises(StreamsError, match="Transactions would not be fenced"):
        group_metadata.verify_layout()


def test_the_encoded_bytes_of_group_metadata() -> None:
    encoded = group_metadata.encode_group_metadata(GroupMetadata("app", 7, "member", "slot"))
    assert encoded == b"CGMDv2:\x07\x00\x00\x00app\x00member\x00\x00slot\x00"


@given(st.binary(max_size=60))
def test_a_random_envelope_raises_nothing_but_a_streams_error(raw: bytes) -> None:
    with suppress(StreamsError):
        decoded = requests.decode_assignment(1, raw)
        again = requests.encode_assignment(MemberAssignment(decoded.active, decoded.user_data))
        assert requests.decode_assignment(1, again) == decoded


def test_a_malformed_envelope_is_a_clear_error() -> None:
    with pytest.raises(StreamsError, match="Malformed ConsumerProtocolAssignment of 3 bytes from the group's leader"):
        requests.decode_assignment(1, b"abc")


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_a_subscription_of_any_version_is_read(version: int) -> None:
    """Members of other versions of Kafka Streams send other versions; versions after 3 may add fields at the end."""
    written = kafka_python.ConsumerProtocolSubscription(
        version=min(version, 3),
        topics=["b", "a"],
        user_data=b"data",
        owned_partitions=[("a", [0, 2])],
        generation_id=7,
        rack_id="r1",
    )
    raw = version.to_bytes(2) + bytes(written.encode())[2:] + (b"more" if version > 3 else b"")
    owned = frozenset({TopicPartition("a", 0), TopicPartition("a", 2)}) if version else frozenset()
    expected = MemberSubscription(b"data", frozenset("ab"), owned, "r1" if version >= 3 else "", "instance")
    assert requests.decode_subscription(raw, "member", "instance") == expected


def test_a_subscription_has_the_bytes_of_other_clients() -> None:
    subscription = MemberSubscription(b"data", frozenset("ba"), frozenset({TopicPartition("a", 2)}), "r1")
    written = kafka_python.ConsumerProtocolSubscription(
        version=3,
        topics=["a", "b"],
        user_data=b"data",
        owned_partitions=[("a", [2])],
        generation_id=7,
        rack_id="r1",
    )
    assert requests.encode_subscription(subscription, 7) == bytes(written.encode())


@pytest.mark.parametrize("raw", [b"", b"\xff\xff", b"\0\3\0\0\0\1"])
def test_the_error_for_a_malformed_subscription_names_its_sender(raw: bytes) -> None:
    with pytest.raises(StreamsError, match=r"Malformed ConsumerProtocolSubscription .* from member-7"):
        requests.decode_subscription(raw, "member-7")


@given(st.binary(max_size=60), st.sets(st.tuples(st.text(min_size=1, max_size=5), st.integers(0, 2**31 - 1))))
def test_an_envelope_survives_a_round_trip(user_data: bytes, active: set[tuple[str, int]]) -> None:
    partitions = frozenset(TopicPartition(*partition) for partition in active)
    envelope = requests.encode_assignment(MemberAssignment(partitions, user_data))
    assert requests.decode_assignment(3, envelope) == Assigned(3, user_data, partitions)
