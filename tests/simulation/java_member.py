"""Group members that behave as Kafka Streams on Java does."""

from __future__ import annotations

import random
from dataclasses import replace

from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.membership import Assign, Joining, MemberSubscription
from penstock.workers.group.assignment.subscription_info import SubscriptionInfo
from tests.simulation.world import World


class JavaMember(GroupMember):
    """Sends its leader only the data that Kafka Streams sends, and stays in its group until its session ends."""

    def join(self, joining: Joining, reason: str = "") -> None:
        """Join with the subscription that Kafka Streams would send."""
        super().join(joining._replace(subscription=lambda: understood(joining.subscription())), reason)

    def close(self, leave: bool = False) -> None:
        """Close without leaving, as members on Java do (internal.leave.group.on.close)."""
        super().close(leave=False)


def understood(subscription: MemberSubscription) -> MemberSubscription:
    """Return a subscription without the data that only members of Penstock understand."""
    info = SubscriptionInfo.decode(subscription.user_data, "a member")
    return subscription._replace(user_data=replace(info, is_penstock=False).encode())


def leading_on_java(assign: Assign) -> Assign:
    """Return the assignment of a leader on Java, to which all members look like members on Java."""
    return lambda members: assign({member: understood(found) for member, found in members.items()})


class Kinds:
    """Draws which hosts of a mixed schedule run on Java, with a separate random generator (see harsh.py)."""

    def __init__(self, world: World, mixed: bool) -> None:
        self._chance = random.Random(f"mixed {world.seed}")
        self._mixed = mixed

    def next_is_java(self) -> bool:
        """Return whether the next host runs on Java."""
        return self._mixed and self._chance.random() < 0.5
