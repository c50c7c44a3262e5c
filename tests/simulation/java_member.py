"""Members of a second kind, which behave in their group as Kafka Streams does on Java."""

from __future__ import annotations

import random
from dataclasses import replace

from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.membership import Assign, MemberSubscription
from penstock.workers.group.assignment.subscription_info import SubscriptionInfo
from tests.simulation.world import World


class JavaMember(GroupMember):
    """Tells its leader what Kafka Streams tells and nothing else, and stays in its group until its session ends."""

    def join(self, subscription: MemberSubscription, reason: str = "") -> None:
        """Join with what Kafka Streams has in the subscription."""
        super().join(understood(subscription), reason)

    def close(self, leave: bool = False) -> None:
        """Go without a word: on Java members do not leave when they close (internal.leave.group.on.close)."""
        super().close(leave=False)


def understood(subscription: MemberSubscription) -> MemberSubscription:
    """Return what Kafka Streams understands of a subscription: all but what members of Penstock tell each other."""
    info = SubscriptionInfo.decode(subscription.user_data, "a member")
    return subscription._replace(user_data=replace(info, is_penstock=False).encode())


def leading_on_java(assign: Assign) -> Assign:
    """Return a leader's decision as Kafka Streams makes it: whatever the members are, all seem to run on Java."""
    return lambda members: assign({member: understood(found) for member, found in members.items()})


class Kinds:
    """Which hosts run on Java in a mixed schedule, in one that is not none. Of its own chances, as harsh schedules."""

    def __init__(self, world: World, mixed: bool) -> None:
        self._chance = random.Random(f"mixed {world.seed}")
        self._mixed = mixed

    def next_is_java(self) -> bool:
        """Return whether the next host runs on Java."""
        return self._mixed and self._chance.random() < 0.5
