"""Partition counts of repartition topics (Kafka Streams: RepartitionTopics, CopartitionedTopicsEnforcer)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.topology.errors import TaskAssignmentError, TopologyError

from .topics_info import TopicsInfo


def repartition_topic_counts(topics: Mapping[int, TopicsInfo], user_counts: Mapping[str, int]) -> dict[str, int]:
    """Return the partition count of each repartition topic.

    user_counts: the counts of all user source topics. A declared count is kept. Otherwise a topic gets the largest
    count among the sources of the sub-topology that writes it, resolved through several sub-topologies if necessary.
    Then co-partitioning is enforced. Raises TopologyError for topics that are joined but not co-partitioned,
    TaskAssignmentError if a count cannot be derived.
    """
    declared = {name: count for info in topics.values() for name, count in info.repartition_source_topics.items()}
    counts = {name: count for name, count in declared.items() if count is not None}
    enforced = frozenset(counts)
    while open_topics := declared.keys() - counts.keys():
        sources = {name: _upstream_sources(name, topics) for name in open_topics}
        known = {**user_counts, **counts}
        complete = {name: found for name, found in sources.items() if found and known.keys() >= found}
        derived = {
            name: max(known[source] for source in found if source in known)
            for name, found in (complete or sources).items()  # incomplete only in a loop of topics
            if found & known.keys()
        }
        if not derived:
            raise TaskAssignmentError(
                f"Failed to compute the number of partitions of {', '.join(sorted(open_topics))}: make sure all user "
                "input topics are created and all pattern subscriptions match at least one topic in the cluster."
            )
        counts.update(derived)
    for group in dict.fromkeys(group for info in topics.values() for group in info.copartition_groups):
        counts.update(enforce_copartitioning(group, counts, user_counts, enforced))
    return counts


def _upstream_sources(name: str, topics: Mapping[int, TopicsInfo]) -> set[str]:
    """Return the source topics of all sub-topologies that write a topic."""
    return {source for info in topics.values() if name in info.sink_topics for source in info.source_topics}


def enforce_copartitioning(
    group: frozenset[str], counts: Mapping[str, int], user_counts: Mapping[str, int], enforced: frozenset[str]
) -> dict[str, int]:
    """Return the counts for a group's repartition topics that make all topics of the group equal.

    counts: of all repartition topics so far; enforced: those with a declared count. User topics decide, then declared
    counts, then the largest count. Raises TopologyError if the counts conflict.
    """
    internal = sorted(group & counts.keys())
    user = {topic: user_counts[topic] for topic in sorted(group - counts.keys())}
    fixed = {topic: counts[topic] for topic in internal if topic in enforced}
    if user:
        count = _same(user, "Topics not co-partitioned")
    elif fixed:
        count = _same(fixed, "Following topics do not have the same number of partitions")
    else:
        return dict.fromkeys(internal, max(counts[topic] for topic in internal))
    for topic, own in fixed.items():
        if own != count:
            raise TopologyError(
                f"Number of partitions [{own}] of repartition topic [{topic}] doesn't match number of partitions "
                f"[{count}] of the source topics {', '.join(user)}. Declare {count} in repartition(), or none."
            )
    return dict.fromkeys(internal, count)


def _same(counts: Mapping[str, int], otherwise: str) -> int:
    if len(set(counts.values())) > 1:
        raise TopologyError(
            f"{otherwise}: {_list(counts.items())}. Joined topics need the same number of partitions: recreate one of "
            "them, or call repartition() on one of the streams before the join."
        )
    return next(iter(counts.values()))


def _list(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{topic} has {count}" for topic, count in counts)
