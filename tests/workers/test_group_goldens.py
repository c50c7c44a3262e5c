"""What our leader makes of a group with members on Java, against Kafka Streams' own leader (4.3.1), for seeded groups.

See group_goldens/README.md.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from penstock.clients.group.membership import MemberSubscription
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.assignment.client_state import AssignmentConfigs
from penstock.workers.assignment.group_assignment import GroupMembers, GroupSubscriptions
from penstock.workers.assignment.subscription_info import LATEST_SUPPORTED_VERSION, SubscriptionInfo
from penstock.workers.assignment.task_assignors import HighAvailabilityTaskAssignor, StickyTaskAssignor
from penstock.workers.assignment.thread_assignment import Role, assign_as_kafka_streams

GOLDENS = Path(__file__).parent / "group_goldens"
END_OFFSET_SUM = 1_000
ACCEPTABLE_LAG = 100

Group = dict[str, Any]
Placed = dict[str, tuple[set[TaskId], set[TaskId]]]


def ids(names: Collection[str]) -> set[TaskId]:
    return {TaskId.parse(name) for name in names}


def partition(task: TaskId) -> TopicPartition:
    return TopicPartition(f"in-{task.subtopology}", task.partition)


def subscriptions(group: Group) -> dict[str, MemberSubscription]:
    found = {}
    for process_id, client in group["clients"].items():
        for member, thread in client["threads"].items():
            info = SubscriptionInfo(
                LATEST_SUPPORTED_VERSION,
                LATEST_SUPPORTED_VERSION,
                UUID(process_id),
                offset_sums={TaskId.parse(task): offset for task, offset in thread["sums"].items()},
                client_tags={"zone": client["zone"]},
                is_penstock=False,
            )
            found[member] = MemberSubscription(info.encode(), owned=frozenset(map(partition, ids(thread["owned"]))))
    return found


def ours(group: Group, assignor: Any) -> tuple[bool, Placed]:
    """Return whether to look again, and each member's active and standby tasks."""
    tasks, stateful = ids(group["tasks"]), ids(group["stateful"])
    read = {task: frozenset({partition(task)}) for task in tasks}
    members = GroupMembers(GroupSubscriptions.decode(subscriptions(group), LATEST_SUPPORTED_VERSION), read)
    for client in members.clients.values():
        client.compute_task_lags(dict.fromkeys(stateful, END_OFFSET_SUM))
    configs = AssignmentConfigs(
        ACCEPTABLE_LAG,
        group["warmups"],
        group["standbys"],
        rack_aware_assignment_tags=tuple(group["tags"]),
        spread=members.all_penstock,
    )
    probing = assignor.assign(members.clients, tasks, stateful, configs)
    placed: Placed = {}
    for client in members.clients.values():
        load: dict[str, int] = {}
        active, standby = client.active_tasks, client.standby_tasks
        dealt = [
            assign_as_kafka_streams(given, client, load, role)
            for given, role in (
                (active & stateful, Role.STATEFUL),
                (standby, Role.STANDBY),
                (active - stateful, Role.STATELESS),
            )
        ]
        for member in client.consumers:
            placed[member] = ({*dealt[0][member], *dealt[2][member]}, set(dealt[1][member]))
    return probing, placed


def kafkas(group: Group) -> tuple[bool, Placed]:
    threads: Mapping[str, Any] = {
        name: t for client in group["clients"].values() for name, t in client["threads"].items()
    }
    return group["probing"], {name: (ids(t["active"]), ids(t["standby"])) for name, t in threads.items()}


@pytest.mark.parametrize(
    ("recorded", "assignor"), [("high_availability", HighAvailabilityTaskAssignor), ("sticky", StickyTaskAssignor)]
)
def test_our_leader_places_every_task_where_kafka_streams_would(
    recorded: str, assignor: type[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = gzip.decompress((GOLDENS / f"{recorded}.jsonl.gz").read_bytes()).splitlines()
    groups = [json.loads(line) for line in lines]
    different = [number for number, group in enumerate(groups) if ours(group, assignor()) != kafkas(group)]
    with capsys.disabled():
        print(f"\n{recorded}: {len(groups) - len(different)} of {len(groups)} groups as with Kafka Streams")
    assert len(groups) >= 2_000
    assert not different
