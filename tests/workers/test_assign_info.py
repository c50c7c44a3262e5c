"""The encoding of subscriptions and assignments: round trips, Kafka Streams' own bytes, and refused bytes."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.group.assignment.assignment_info import AssignmentInfo
from penstock.workers.group.assignment.subscription_info import (
    FUTURE_PROCESS_ID,
    LATEST_OFFSET,
    LATEST_SUPPORTED_VERSION,
    UNKNOWN_OFFSET_SUM,
    AssignorError,
    SubscriptionInfo,
)
from penstock.workers.group.assignment.wire import MalformedInfoError
from tests.examples import examples

numbers = st.integers(0, 2**31 - 1)
offsets = st.integers(-(2**63), 2**63 - 1)
task_ids = st.builds(TaskId, numbers, numbers)
topics = st.text("abcdef.-_0123", min_size=1, max_size=8)
partition_sets = st.frozensets(st.builds(TopicPartition, topics, numbers), max_size=6)
hosts = st.builds("{}:{}".format, st.text("abc.-%_", min_size=1, max_size=8), st.integers(0, 65535))
by_host = st.dictionaries(hosts, partition_sets, max_size=4)


@st.composite
def by_task(draw: st.DrawFn) -> dict[TaskId, frozenset[TopicPartition]]:
    """Disjoint sets of partitions by task, with at least one partition each."""
    tasks = draw(st.lists(task_ids, unique=True, max_size=6))
    return {
        task: frozenset(TopicPartition(f"{name}-{index}", task.partition) for name in draw(st.sets(topics, min_size=1)))
        for index, task in enumerate(tasks)
    }


subscriptions = st.builds(
    SubscriptionInfo,
    st.just(LATEST_SUPPORTED_VERSION),
    numbers,
    st.uuids(),
    st.frozensets(task_ids, max_size=8),
    st.frozensets(task_ids, max_size=8),
    st.dictionaries(task_ids, offsets, max_size=8),
    st.text(max_size=12),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    numbers,
    st.sampled_from(AssignorError),
    st.text(max_size=16),
    st.binary(max_size=40),
    st.dictionaries(task_ids, st.integers(0, 2**31 - 1), max_size=5),
)
assignments = st.builds(
    AssignmentInfo,
    st.just(LATEST_SUPPORTED_VERSION),
    numbers,
    st.sampled_from(AssignorError),
    by_task(),
    by_task(),
    by_host,
    by_host,
    st.none() | st.integers(0, 2**60),
)
A, B = TaskId(0, 1), TaskId(1, 0)
SUBSCRIPTION = SubscriptionInfo(11, 11, UUID(int=1), frozenset({A}), unique_field=5)
ASSIGNMENT = AssignmentInfo(11, 11, active={A: frozenset({TopicPartition("t", 1)})}, next_rebalance_ms=7)
RECORDED = json.loads((Path(__file__).parent / "info_goldens" / "infos.json").read_text())
VERSIONS = range(1, LATEST_SUPPORTED_VERSION + 1)


@settings(deadline=None)
@given(subscriptions)
def test_a_subscription_survives_a_round_trip(info: SubscriptionInfo) -> None:
    assert SubscriptionInfo.decode(info.encode(), "m") == info


@settings(deadline=None)
@given(assignments)
def test_an_assignment_survives_a_round_trip(info: AssignmentInfo) -> None:
    assert AssignmentInfo.decode(info.encode(), info.active_partitions) == info


# Kafka Streams' own bytes; see info_goldens/README.md


def in_java(version: int, tasks: dict[TaskId, int], tags: dict[str, str]) -> SubscriptionInfo:
    """Return the recorder's object, reduced to the fields that a version can encode."""
    known = tasks
    if version < 7:
        known = {task: LATEST_OFFSET if sum_ == LATEST_OFFSET else UNKNOWN_OFFSET_SUM for task, sum_ in tasks.items()}
    running = frozenset(task for task, offset in known.items() if offset == LATEST_OFFSET)
    return SubscriptionInfo(
        version,
        11 if version >= 3 else -1,
        UUID(int=(1 << 64) + 2),
        running,
        frozenset(known.keys() - running),
        known,
        "localhost:80" if version >= 2 else "",
        tags if version >= 11 else {},
        -3 if version >= 8 else 0,
        AssignorError.SHUTDOWN_REQUESTED if version >= 9 else AssignorError.NONE,
        is_penstock=False,
    )


def answer_in_java(version: int, active: dict[TaskId, list[str]], standby: dict[TaskId, list[str]]) -> AssignmentInfo:
    def partitions(tasks: dict[TaskId, list[str]]) -> dict[TaskId, frozenset[TopicPartition]]:
        return {task: frozenset(TopicPartition(t, task.partition) for t in read) for task, read in tasks.items()}

    everything = frozenset(p for found in partitions(active).values() for p in found)
    return AssignmentInfo(
        version,
        11 if version >= 3 else -1,
        AssignorError.ASSIGNMENT_ERROR if version >= 4 else AssignorError.NONE,
        partitions(active),
        partitions(standby),
        {"localhost:80": everything} if version >= 2 else {},
        {"localhost:80": frozenset(p for found in partitions(standby).values() for p in found)} if version >= 6 else {},
        1234 if version >= 7 else None,
    )


MANY = {A: LATEST_OFFSET, TaskId(0, 2): 77, B: 300, TaskId(12, 7): 2**40}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_bytes_of_kafka_streams_are_decoded(version: int) -> None:
    recorded = RECORDED[str(version)]
    many = bytes.fromhex(recorded["subscription_many"])
    assert SubscriptionInfo.decode(many, "m") == in_java(version, MANY, {"zone": "a", "cluster": "b"})
    expected = answer_in_java(version, {A: ["a", "b"], B: ["c"]}, {TaskId(0, 2): ["a", "b"], TaskId(2, 3): ["d"]})
    many = bytes.fromhex(recorded["assignment_many"])
    assert AssignmentInfo.decode(many, expected.active_partitions) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_the_encoded_bytes_equal_those_of_kafka_streams(version: int) -> None:
    """One element per collection, because Kafka Streams writes several in the order of a hash table."""
    recorded = RECORDED[str(version)]
    assert in_java(version, {A: LATEST_OFFSET}, {"zone": "a"}).encode().hex() == recorded["subscription"]
    assert answer_in_java(version, {A: ["a"]}, {B: ["c"]}).encode().hex() == recorded["assignment"]
    many = in_java(version, MANY, {"zone": "a", "cluster": "b"})
    assert len(many.encode().hex()) == len(recorded["subscription_many"])


@pytest.mark.parametrize("version", VERSIONS)
def test_penstocks_own_fields_follow_those_that_kafka_streams_reads(version: int) -> None:
    info = in_java(version, MANY, {"zone": "a"})
    ours = replace(info, unique_field=1000, topology="ab12", facts=b"x", loads={A: 3}, is_penstock=True)
    assert ours.encode().startswith(replace(info, unique_field=1000).encode())
    assert SubscriptionInfo.decode(ours.encode(), "m") == ours


# Damage


def harmless(data: bytes) -> None:
    with suppress(MalformedInfoError):
        SubscriptionInfo.decode(data, "m").encode()
    with suppress(MalformedInfoError):
        AssignmentInfo.decode(data, []).encode()


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=examples(500), deadline=None)
def test_random_bytes_raise_nothing_but_a_malformed_info_error(data: bytes, current: bool) -> None:
    harmless(b"\0\0\0\x0b\0\0\0\x0b" + data if current else data)


@given(st.one_of(subscriptions, assignments), st.data())
@settings(max_examples=examples(500), deadline=None)
def test_damaged_bytes_raise_nothing_but_a_malformed_info_error(
    info: SubscriptionInfo | AssignmentInfo, data: st.DataObject
) -> None:
    encoded = bytearray(info.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    harmless(bytes(encoded[: data.draw(st.integers(0, len(encoded)))]))
    harmless(bytes(encoded))


#: Length of the part that Kafka Streams reads.
READ_BY_ALL = len(replace(SUBSCRIPTION, is_penstock=False).encode())


@pytest.mark.parametrize("cut", range(READ_BY_ALL))
def test_a_truncated_subscription_is_refused_and_names_the_member(cut: int) -> None:
    with pytest.raises(MalformedInfoError, match="Malformed subscription of member m-1"):
        SubscriptionInfo.decode(SUBSCRIPTION.encode()[:cut], "m-1")


@pytest.mark.parametrize("cut", range(len(ASSIGNMENT.encode())))
def test_a_truncated_assignment_is_refused(cut: int) -> None:
    with pytest.raises(MalformedInfoError, match="Malformed assignment of the group's leader"):
        AssignmentInfo.decode(ASSIGNMENT.encode()[:cut], ASSIGNMENT.active_partitions)


def test_an_assignment_that_does_not_fit_its_envelope_is_refused() -> None:
    with pytest.raises(MalformedInfoError, match="1 active tasks for 0 partitions"):
        AssignmentInfo.decode(ASSIGNMENT.encode(), [])


def test_a_list_length_beyond_the_bytes_allocates_nothing() -> None:
    head = SUBSCRIPTION.encode()[:28]  # up to the empty user endpoint
    with pytest.raises(MalformedInfoError, match="a list of 2147483647 items"):
        SubscriptionInfo.decode(head + b"\x7f\xff\xff\xff", "m")


@settings(deadline=None)
@given(st.binary(max_size=30))
def test_only_the_versions_of_a_newer_member_are_read(unknown: bytes) -> None:
    """KIP-268. The member's owned tasks are in the envelope."""
    data = (12).to_bytes(4) + (13).to_bytes(4) + unknown
    assert SubscriptionInfo.decode(data, "m") == SubscriptionInfo(12, 13, FUTURE_PROCESS_ID, is_penstock=False)


def test_the_size_of_a_thousand_tasks_in_the_group_metadata() -> None:
    """The broker writes the metadata of a group into one record, of at most 1 MB by default."""
    everything = {TaskId(0, number): frozenset({TopicPartition("topic", number)}) for number in range(1000)}
    hosts = {f"host-{n}:8080": frozenset(TopicPartition("topic", p) for p in range(n, 1000, 100)) for n in range(100)}
    mine = {task: everything[task] for task in list(everything)[:10]}
    assignment = AssignmentInfo(11, 11, active=mine, standby=mine, partitions_by_host=hosts)
    subscription = SubscriptionInfo(11, 11, UUID(int=1), frozenset(mine), offset_sums=dict.fromkeys(everything, 2**40))
    assert len(assignment.encode()) < 12_000
    assert len(subscription.encode()) < 19_000
