"""The bytes that members and leader exchange: what comes back, what is refused, what an older leader understands."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.assignment.subscription_info import (
    LATEST_SUPPORTED_VERSION,
    AssignmentInfo,
    AssignorError,
    SubscriptionInfo,
)
from penstock.workers.assignment.wire import MalformedInfoError, Writer

numbers = st.integers(0, 2**31 - 1)
offsets = st.integers(-(2**63), 2**63 - 1)
task_ids = st.builds(TaskId, numbers, numbers)
partition_sets = st.frozensets(st.builds(TopicPartition, st.text(max_size=8), numbers), max_size=6)
by_task = st.dictionaries(task_ids, partition_sets, max_size=6)
by_host = st.dictionaries(st.text(max_size=8), partition_sets, max_size=4)
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
    st.text(max_size=8),
    st.text(max_size=16),
    st.binary(max_size=40),
    st.dictionaries(task_ids, st.integers(0, 2**31 - 1), max_size=5),
)
assignments = st.builds(
    AssignmentInfo,
    st.just(LATEST_SUPPORTED_VERSION),
    numbers,
    st.sampled_from(AssignorError),
    by_task,
    by_task,
    by_host,
    by_host,
    st.none() | st.integers(0, 2**60),
)
SUBSCRIPTION = SubscriptionInfo(1, 1, UUID(int=1), frozenset({TaskId(0, 1)}), unique_field=5)
ASSIGNMENT = AssignmentInfo(1, 1, active={TaskId(0, 1): frozenset({TopicPartition("t", 1)})}, next_rebalance_ms=7)


@given(subscriptions)
def test_a_subscription_comes_back_as_it_was(info: SubscriptionInfo) -> None:
    assert SubscriptionInfo.decode(info.encode(), "m") == info


@given(assignments)
def test_an_assignment_comes_back_as_it_was(info: AssignmentInfo) -> None:
    assert AssignmentInfo.decode(info.encode()) == info


def harmless(data: bytes) -> None:
    with suppress(MalformedInfoError):
        SubscriptionInfo.decode(data, "m").encode()
    with suppress(MalformedInfoError):
        AssignmentInfo.decode(data).encode()


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=500)
def test_no_bytes_do_more_harm_than_a_malformed_info_error(data: bytes, ours: bool) -> None:
    harmless(b"PNSK\x01\x01" + data if ours else data)


@given(st.one_of(subscriptions, assignments), st.data())
@settings(max_examples=500)
def test_no_damage_to_real_bytes_does_more_harm(info: SubscriptionInfo | AssignmentInfo, data: st.DataObject) -> None:
    encoded = bytearray(info.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    harmless(bytes(encoded[: data.draw(st.integers(0, len(encoded)))]))
    harmless(bytes(encoded))


@pytest.mark.parametrize("cut", range(len(SUBSCRIPTION.encode())))
def test_a_truncated_subscription_is_refused_and_names_the_member(cut: int) -> None:
    with pytest.raises(MalformedInfoError, match="Malformed subscription of member m-1"):
        SubscriptionInfo.decode(SUBSCRIPTION.encode()[:cut], "m-1")


@pytest.mark.parametrize("cut", range(len(ASSIGNMENT.encode())))
def test_a_truncated_assignment_is_refused(cut: int) -> None:
    with pytest.raises(MalformedInfoError, match="Malformed assignment of the group's leader"):
        AssignmentInfo.decode(ASSIGNMENT.encode()[:cut])


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(MalformedInfoError, match="more than was expected"):
        SubscriptionInfo.decode(SUBSCRIPTION.encode() + b"\0", "m")
    with pytest.raises(MalformedInfoError, match="more than was expected"):
        AssignmentInfo.decode(ASSIGNMENT.encode() + b"\0")


def test_the_bytes_of_a_java_member_are_told_apart() -> None:
    java = (11).to_bytes(4, "big") + (11).to_bytes(4, "big") + UUID(int=1).bytes
    with pytest.raises(MalformedInfoError, match=r"If Kafka Streams \(Java\) runs with the same application.id"):
        SubscriptionInfo.decode(java, "m")


def test_a_list_that_claims_to_be_longer_than_the_bytes_allocates_nothing() -> None:
    writer = Writer()
    writer.raw(SUBSCRIPTION.encode()[:22])  # up to the process id
    writer.number(2**62)
    with pytest.raises(MalformedInfoError, match="a list of 4611686018427387904 items"):
        SubscriptionInfo.decode(writer.to_bytes(), "m")


def test_an_endless_number_is_refused() -> None:
    with pytest.raises(MalformedInfoError, match="an endless number"):
        SubscriptionInfo.decode(b"PNSK" + b"\xff" * 20, "m")


@given(subscriptions, st.binary(max_size=30))
def test_of_a_newer_member_an_old_leader_reads_what_it_owns(info: SubscriptionInfo, unknown: bytes) -> None:
    """KIP-268: the header and the active tasks never change."""
    writer = Writer()
    writer.raw(b"PNSK")
    writer.number(7)
    writer.number(9)
    writer.raw(info.process_id.bytes)
    writer.tasks(info.active_tasks)
    writer.raw(unknown)
    read = SubscriptionInfo.decode(writer.to_bytes(), "m")
    assert read == SubscriptionInfo(7, 9, info.process_id, info.active_tasks)


def test_the_bytes_of_version_1_are_fixed() -> None:
    """Another layout needs another version: members of two releases share a group during a rolling upgrade."""
    subscription = SubscriptionInfo(
        1,
        1,
        UUID(int=2),
        frozenset({TaskId(0, 1), TaskId(0, 200)}),
        frozenset({TaskId(1, 0)}),
        {TaskId(0, 1): -2, TaskId(1, 0): 300},
        "h:1",
        {"zone": "a"},
        9,
        AssignorError.SHUTDOWN_REQUESTED,
    )
    assert subscription.encode().hex() == (
        "504e534b0101" + "00000000000000000000000000000002" + "01000201c801" + "01010100" + "0200010101010003d804"
        "03683a31" + "02047a6f6e650161" + "09" + "04"
    )
    assert ASSIGNMENT.encode().hex() == "504e534b010100" + "010174" + "0100010101000101" + "00" + "00" + "00" + "0e"


def test_the_bytes_of_version_2_are_fixed() -> None:
    subscription = SubscriptionInfo(2, 2, UUID(int=2), unique_field=9, rack="red", topology="ab12")
    assert subscription.encode().hex() == (
        "504e534b0202" + "00000000000000000000000000000002" + "00" + "00" + "00" + "00" + "00" + "09" + "00"
        "03726564" + "0461623132"
    )


def test_the_bytes_of_version_3_are_fixed() -> None:
    info = SubscriptionInfo(3, 3, UUID(int=1), unique_field=5, rack="r1", topology="t", facts=b"\x78\x00")
    before = replace(info, version=2, latest_supported_version=2).encode()
    assert info.encode() == before.replace(b"PNSK\x02\x02", b"PNSK\x03\x03") + b"\x02\x78\x00"


def test_the_bytes_of_version_4_are_fixed() -> None:
    info = SubscriptionInfo(
        4, 4, UUID(int=1), unique_field=5, facts=b"\x78", loads={TaskId(0, 1): 300, TaskId(0, 0): 7}
    )
    before = replace(info, version=3, latest_supported_version=3).encode()
    assert info.encode() == before.replace(b"PNSK\x03\x03", b"PNSK\x04\x04") + b"\x01\x00\x02\x00\x01" + b"\x07\xac\x02"


def test_what_version_1_does_not_know_is_not_told_in_it() -> None:
    subscription = SubscriptionInfo(1, 2, UUID(int=2), rack="red", topology="ab12")
    read = SubscriptionInfo.decode(subscription.encode(), "m")
    assert (read.latest_supported_version, read.rack, read.topology) == (2, "", "")


def test_what_a_thousand_tasks_cost_in_the_group_metadata() -> None:
    """The broker keeps all of a group's bytes in one record, of 1 MB by default."""
    everything = {TaskId(0, number): frozenset({TopicPartition("topic", number)}) for number in range(1000)}
    hosts = {f"host-{n}:8080": frozenset(TopicPartition("topic", p) for p in range(n, 1000, 100)) for n in range(100)}
    mine = {task: everything[task] for task in list(everything)[:10]}
    assignment = AssignmentInfo(1, 1, active=mine, standby=mine, partitions_by_host=hosts)
    subscription = SubscriptionInfo(1, 1, UUID(int=1), frozenset(mine), offset_sums=dict.fromkeys(everything, 2**40))
    assert len(assignment.encode()) * 100 < 500_000
    assert len(subscription.encode()) < 10_000
