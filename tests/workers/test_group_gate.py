"""A thread whose topology differs from its group's does not join, and does not lead."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.group.assignment.group_gate import (
    OtherTopologyError,
    refuse_consumers,
    refuse_other_topology,
    unfit,
)
from tests.workers.test_assign_group import FOREIGN_TOPICS, TOPICS, assignor, rebalance, subscribed, topics_info


@pytest.mark.parametrize(
    ("read", "fits"),
    [({"a"}, True), ({"a", "b"}, True), ({"a", "x"}, False), ({"x"}, False)],
    ids=["what is read here", "all of it", "one topic more", "something else"],
)
def test_a_group_that_runs_other_tasks_is_not_joined(read: set[str], fits: bool) -> None:
    running_there = [{TaskId(0, 1): frozenset(TopicPartition(topic, 1) for topic in read)}]
    with (
        nullcontext() if fits else pytest.raises(OtherTopologyError, match="Group app runs another topology: task 0_1")
    ):
        refuse_other_topology("app", running_there, TOPICS)


@pytest.mark.parametrize("matched", [{"a", "new"}, {"new"}])
def test_a_source_topic_that_only_other_members_have_matched_is_no_difference(matched: set[str]) -> None:
    by_pattern = {0: replace(TOPICS[0], has_patterns=True)}
    tasks = {TaskId(0, 1): frozenset(TopicPartition(topic, 1) for topic in matched)}
    assert (unfit(tasks, by_pattern) is None) == ("a" in matched)


def test_a_member_does_not_lead_a_group_with_another_topology() -> None:
    """All members would receive its error. So it leaves, and the others continue."""
    stranger, member = assignor(1, topics=FOREIGN_TOPICS), assignor(2)
    joined = subscribed(member, [TaskId(1, 0)], (), {})
    other = joined._replace(owned=frozenset({TopicPartition("z", 0)}))
    with pytest.raises(OtherTopologyError, match="Member m-2 reads z; the topology of this member"):
        rebalance(stranger, {"m-1": subscribed(stranger, (), (), {}), "m-2": other})
    foreign = subscribed(assignor(3, topics={7: topics_info(7, "a", "b", "c")}), [TaskId(7, 0)], (), {})
    with pytest.raises(OtherTopologyError, match="Member m-2 runs tasks 7_0; the topology of this member"):
        rebalance(stranger, {"m-1": subscribed(stranger, (), (), {}), "m-2": foreign})


def test_a_consumer_group_is_not_joined_unless_it_is_empty() -> None:
    refuse_consumers("app", [])
    with pytest.raises(OtherTopologyError, match=r"Group app is a consumer group of programs .*: one, two. Stop them"):
        refuse_consumers("app", ["two", "one", "two"])
