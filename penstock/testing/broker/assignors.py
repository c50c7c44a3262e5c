"""The assignors of consumer groups, which compute the target assignment (KIP-848).

Both keep the members' partitions, as far as the balance permits. Kafka: UniformAssignor, RangeAssignor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

#: A topic's id and a partition number.
TopicPartition: TypeAlias = tuple[bytes, int]
Target: TypeAlias = dict[str, set[TopicPartition]]
#: (topics by member, the current target, numbers of partitions by topic): the new target.
Assignor: TypeAlias = Callable[
    [Mapping[str, Collection[bytes]], Mapping[str, set[TopicPartition]], Mapping[bytes, int]], Target
]


def uniform(
    topics: Mapping[str, Collection[bytes]], current: Mapping[str, set[TopicPartition]], counts: Mapping[bytes, int]
) -> Target:
    """Give all members as equal numbers of partitions as possible, regardless of their topics."""
    target = _retained(topics, current, counts)
    if len({frozenset(subscribed) for subscribed in topics.values()}) == 1:
        _trim(target, sum(counts[topic] for topic in next(iter(topics.values()))))
    for partition in _missing(topics, target, counts):
        target[_least(target, (member for member in target if partition[0] in topics[member]))].add(partition)
    while _move_one(topics, target):
        pass
    return target


def _trim(target: Target, total: int) -> None:
    """Remove partitions above each member's share; the first members share the remainder."""
    quota, extra = divmod(total, len(target))
    for number, partitions in enumerate(target.values()):
        for partition in sorted(partitions)[quota + (number < extra) :]:
            partitions.remove(partition)


def _move_one(topics: Mapping[str, Collection[bytes]], target: Target) -> bool:
    """Move a partition to a member that has at least two fewer; return False if there is no such member."""
    for giver in sorted(target, key=lambda member: -len(target[member])):
        for partition in sorted(target[giver]):
            taker = _least(target, (member for member in target if partition[0] in topics[member]))
            if len(target[giver]) - len(target[taker]) > 1:
                target[giver].remove(partition)
                target[taker].add(partition)
                return True
    return False


def _least(target: Target, members: Iterable[str]) -> str:
    return min(members, key=lambda member: len(target[member]))


def range_(
    topics: Mapping[str, Collection[bytes]], current: Mapping[str, set[TopicPartition]], counts: Mapping[bytes, int]
) -> Target:
    """Assign each topic separately, so that co-partitioned topics are assigned in the same way."""
    target: Target = {member: set() for member in topics}
    for topic in dict.fromkeys(topic for subscribed in topics.values() for topic in subscribed):
        members = [member for member, subscribed in topics.items() if topic in subscribed]
        _divide(topic, counts[topic], {member: current.get(member, set()) for member in members}, target)
    return target


def _divide(topic: bytes, count: int, current: Mapping[str, set[TopicPartition]], target: Target) -> None:
    quota, extra = divmod(count, len(current))
    missing: dict[str, int] = {}
    for member, had in current.items():
        kept = sorted(partition for partition in had if partition[0] == topic and partition[1] < count)
        size = quota
        if len(kept) > quota and extra:
            size, extra = quota + 1, extra - 1
        else:
            missing[member] = quota - len(kept)
        target[member].update(kept[:size])
    taken = {partition for member in current for partition in target[member]}
    free = [(topic, number) for number in range(count) if (topic, number) not in taken]
    for member, needed in missing.items():
        size = needed + (extra > 0)
        extra -= extra > 0
        target[member].update(free[: max(size, 0)])
        del free[: max(size, 0)]


def _retained(
    topics: Mapping[str, Collection[bytes]], current: Mapping[str, set[TopicPartition]], counts: Mapping[bytes, int]
) -> Target:
    """Return the partitions that each member has and is still subscribed to."""
    return {
        member: {
            (topic, number)
            for topic, number in current.get(member, set())
            if topic in subscribed and number < counts[topic]
        }
        for member, subscribed in topics.items()
    }


def _missing(
    topics: Mapping[str, Collection[bytes]], target: Target, counts: Mapping[bytes, int]
) -> list[TopicPartition]:
    taken = {partition for partitions in target.values() for partition in partitions}
    wanted = dict.fromkeys(topic for subscribed in topics.values() for topic in subscribed)
    return [(topic, number) for topic in wanted for number in range(counts[topic]) if (topic, number) not in taken]


#: By the names that members give them; the first is the default (group.consumer.assignors).
ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform, "range": range_}
