"""The members of a group with the consumer protocol: heartbeats join, report, and return the assignment (KIP-848).

Kafka: ConsumerGroup, CurrentAssignmentBuilder, and the part of GroupMetadataManager about consumer groups.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

from typing_extensions import override

from .assignors import ASSIGNORS, TopicPartition
from .errors import ApiError, ErrorCode
from .modern_group import JOIN_EPOCH, MemberState, ModernGroup, ModernMember


@dataclass(eq=False)
class ConsumerMember(ModernMember):
    """assigned: its partitions, with the epoch in which it got them. revoking: those that it must release."""

    topics: frozenset[str] = frozenset()
    regex: str = ""
    assignor: str | None = None
    assigned: dict[TopicPartition, int] = field(default_factory=dict)
    revoking: dict[TopicPartition, int] = field(default_factory=dict)

    def update(self, body: SimpleNamespace, client_id: str, client_host: str) -> bool:
        """Apply a heartbeat's fields, null for unchanged; return True if the member's topics have changed."""
        before = self.topics, self.regex
        self.hear(body, client_id, client_host)
        if body.server_assignor is not None:
            self.assignor = body.server_assignor
        if body.subscribed_topic_names is not None:
            self.topics = frozenset(body.subscribed_topic_names)
        if body.subscribed_topic_regex is not None:
            self.regex = body.subscribed_topic_regex
        return (self.topics, self.regex) != before

    def reads(self, topic: str) -> bool:
        """Return whether it is subscribed to a topic."""
        return topic in self.topics or bool(self.regex and re.fullmatch(self.regex, topic))


@dataclass(eq=False)
class ConsumerGroup(ModernGroup[ConsumerMember, set[TopicPartition]]):
    """A state machine with timeouts, which expire() applies."""

    group_type: ClassVar[str] = "consumer"
    protocol_type = "consumer"

    #: The subscribed topics that exist, with their ids and numbers of partitions, when the epoch began.
    _topics: Mapping[str, tuple[bytes, int]] = field(default_factory=dict)

    @property
    def assignor(self) -> str:
        """The assignor that most members request, or the default."""
        wanted = Counter(member.assignor for member in self.members.values() if member.assignor)
        return wanted.most_common(1)[0][0] if wanted else next(iter(ASSIGNORS))

    def heartbeat(
        self, body: SimpleNamespace, member_id: str, client_id: str, client_host: str
    ) -> tuple[ConsumerMember, bool]:
        """Add a member, or apply its heartbeat; return it, and whether it must receive its assignment. Raises
        ApiError.
        """
        owned = None if body.topic_partitions is None else owned_partitions(body.topic_partitions)
        if body.subscribed_topic_regex:
            check_regex(body.subscribed_topic_regex)
        if body.member_epoch == JOIN_EPOCH:
            member = self.joining(member_id, body.instance_id, ConsumerMember)
        else:
            member = self.known(body, lambda one: owned is not None and owned <= one.assigned.keys())
        changed = member.update(body, client_id, client_host)
        before = member.assigned.keys()
        self._refresh(changed)
        self._reconcile(member, owned, changed)
        member.heard_ms = self.cluster.now_ms
        subscribed = body.subscribed_topic_names is not None or body.subscribed_topic_regex is not None
        is_full = body.rebalance_timeout_ms != -1 and subscribed and owned is not None
        return member, body.member_epoch == JOIN_EPOCH or is_full or member.assigned.keys() != before

    @override
    def left_for_a_while(self, member: ConsumerMember) -> None:
        member.revoking = {}

    @override
    def remove(self, member: ConsumerMember) -> None:
        super().remove(member)
        self._topics = self._subscribed()

    # -- assigning

    def _refresh(self, changed: bool) -> None:
        """Begin an epoch if subscriptions or their topics have changed, and compute its target."""
        topics = self._subscribed()
        if changed or topics != self._topics:
            self._topics = topics
            self.bump()
        if self.epoch > self.target_epoch:
            subscribed = {
                member.id: [id_ for name, (id_, _) in topics.items() if member.reads(name)]
                for member in self.members.values()
            }
            self.target = ASSIGNORS[self.assignor](subscribed, self.target, dict(topics.values()))
            self.target_epoch = self.epoch

    def _subscribed(self) -> Mapping[str, tuple[bytes, int]]:
        return {
            topic.name: (topic.id, len(topic.partitions))
            for topic in self.cluster.topics.values()
            if any(member.reads(topic.name) for member in self.members.values())
        }

    def _reconcile(self, member: ConsumerMember, owned: Collection[TopicPartition] | None, changed: bool) -> None:
        """Bring a member one step closer to its target (Kafka: CurrentAssignmentBuilder).

        owned: the partitions that it reports.
        """
        if member.state is MemberState.STABLE and member.epoch == self.target_epoch:
            return

        def still_has(partitions: Collection[TopicPartition]) -> bool:
            return bool(partitions) and (owned is None or any(one in partitions for one in owned))

        if member.state is MemberState.UNREVOKED and still_has(member.revoking):
            if changed:
                self._revoke_unread(member)
            return
        wanted = self.target.get(member.id, set())
        kept = {partition: epoch for partition, epoch in member.assigned.items() if partition in wanted}
        revoking = {partition: epoch for partition, epoch in member.assigned.items() if partition not in wanted}
        if still_has(revoking):
            member.move(MemberState.UNREVOKED, member.epoch)
            member.assigned, member.revoking = kept, revoking
            member.revoke_until = self.cluster.now_ms + member.rebalance_timeout_ms
            return
        others = {
            partition
            for other in self.members.values()
            if other is not member
            for partition in (*other.assigned, *other.revoking)
        }
        state = MemberState.UNRELEASED if wanted & others else MemberState.STABLE
        new = dict.fromkeys(wanted - kept.keys() - others, self.target_epoch)
        member.move(state, self.target_epoch)
        member.assigned, member.revoking = kept | new, {}

    def _revoke_unread(self, member: ConsumerMember) -> None:
        """Revoke topics that a member no longer reads, while it still releases others."""
        read = {id_ for name, (id_, _) in self._topics.items() if member.reads(name)}
        member.revoking |= {one: epoch for one, epoch in member.assigned.items() if one[0] not in read}
        member.assigned = {one: epoch for one, epoch in member.assigned.items() if one[0] in read}

    @override
    def assigned_in(self, member: ConsumerMember, topic: str, number: int) -> int:
        known = self.cluster.topics.get(topic)
        partition = (known.id, number) if known else (b"", number)
        return member.assigned.get(partition, member.revoking.get(partition, member.epoch))


def owned_partitions(topics: Collection[SimpleNamespace]) -> set[TopicPartition]:
    """Return a message's partitions."""
    return {(topic.topic_id, number) for topic in topics for number in topic.partitions}


#: Features of Python's regular expressions that Kafka's (RE2/J) lack: look-around and back references.
_NOT_RE2 = re.compile(r"\(\?(?:[=!]|<[=!]|P=|#|>|\()|\\[1-9]")


def check_regex(regex: str) -> None:
    """Raise ApiError for an expression that Kafka refuses."""
    try:
        re.compile(regex)
    except re.error as error:
        raise _invalid_regex(regex, str(error)) from error
    if _NOT_RE2.search(regex):
        raise _invalid_regex(regex, "it is not one of RE2/J's")


def _invalid_regex(regex: str, why: str) -> ApiError:
    said = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {why}."
    return ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, said)
