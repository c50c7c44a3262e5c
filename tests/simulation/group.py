"""The auditor's and the trace's view of the application's group, whose coordinator is that of the brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from penstock.testing.broker.classic_group import ClassicGroup, Member
from tests.simulation.world import World


class Group:
    """Watches the members of a group. Call observe() whenever they may have changed."""

    def __init__(self, world: World, members: ClassicGroup) -> None:
        self._world = world
        self._coordinated = members
        self._generation = 0
        self._members: Mapping[str, Member] = {}
        self._removals: Counter[str] = Counter()  # how often a process was removed, or left

    @property
    def generation(self) -> int:
        return self._coordinated.generation

    def is_current(self, client: str) -> bool:
        """Return whether a process is a member of the current generation."""
        members = self._coordinated.members.values()
        return any(member.client_id == client and member.generation == self.generation for member in members)

    def term(self, client: str) -> int:
        """Return a number that changes when the group removes a process."""
        return self._removals[client]

    def expiring(self) -> None:
        """Note the sessions that end now."""
        for member in self._coordinated.members.values():
            if member.session_until_ms <= self._world.now_ms:
                self._world.note("group", f"the session of {member.client_id} has expired")
                self._world.happened("a session expires")

    def observe(self) -> None:
        """Note a new generation, and the members that have left."""
        members = self._coordinated.members
        if members.keys() != self._members.keys():
            instances = {member.instance_id for member in members.values()} - {None}
            for id_ in self._members.keys() - members.keys():
                gone = self._members[id_]
                self._removals[gone.client_id] += gone.instance_id not in instances  # else it was replaced
            self._members = dict(members)
        if self.generation != self._generation:
            self._generation = self.generation
            joined = [member.client_id for member in members.values() if member.generation == self.generation]
            self._world.note("group", f"generation {self.generation}: {', '.join(joined)}")
