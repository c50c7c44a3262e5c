"""A stream thread's clients over a cluster in memory: the client supplier, and the group member."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any

from penstock.clients.group.group_description import GroupDescription
from penstock.clients.group.membership import (
    Assign,
    Assigned,
    Event,
    Lost,
    MemberSubscription,
    Rebalance,
    RetriableCommitError,
)
from penstock.clients.protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from penstock.topology.errors import StreamsError, TaskMigratedError
from penstock.topology.records import TopicPartition
from tests.workers.memory_io import MemoryReader, MemoryWriter
from tests.workers.memory_kafka import Cluster, ManualClock, MemoryAdmin


class MemoryMember:
    """GroupMembership without a broker. holds_commits: commits wait until a test answers them or waits for one."""

    holds_commits = False

    def __init__(self, cluster: Cluster, name: str, assign: Assign) -> None:
        self.cluster = cluster
        self.name = name
        self.assign = assign
        self.joined: MemberSubscription | None = None
        self.events: list[Event] = []
        self.generation = -1
        self.refuse_commits = 0
        self.refusal: Exception = RetriableCommitError("Try again")
        self.commits: list[dict[TopicPartition, OffsetAndMetadata]] = []
        self.asked: list[tuple[int, dict[TopicPartition, OffsetAndMetadata], Future[None]]] = []
        self.left: bool | None = None
        self.in_doubt = False
        self._pending = False

    def poll(self) -> list[Event]:
        events: list[Event] = []
        for event in self.events:
            if not (self._pending and isinstance(event, Rebalance)):  # the join under way is the answer to it
                events.append(event)
            self._pending = self._pending and not isinstance(event, Assigned | Lost)
        self.events = []
        return events

    @property
    def join_pending(self) -> bool:
        return self._pending

    def join(self, subscription: MemberSubscription, reason: str = "") -> None:
        if self._pending:
            raise StreamsError("A join is already pending")
        self._pending = True
        group = self.cluster.group
        answers = group.members.get(self.name) is self and self.joined is None
        group.members[self.name] = self
        self.joined = subscription
        group.joined() if answers else group.rebalance(self)

    def lose(self, reason: str) -> None:
        """Throw this member out, as after a session timeout."""
        self.cluster.group.members.pop(self.name, None)
        self.joined, self.generation = None, -1
        self.events.append(Lost(reason))
        self.cluster.group.rebalance(None)

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], meanwhile: Any = None) -> None:
        self.wait_for_commit(self.commit_async(offsets), meanwhile)

    def commit_async(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Future[None]:
        asked: Future[None] = Future()
        self.asked.append((self.generation, dict(offsets), asked))
        if not self.holds_commits:
            self.answer_commits()
        return asked

    def wait_for_commit(self, asked: Future[None], meanwhile: Any = None) -> None:
        self.answer_commits()
        asked.result(0)

    def answer_commits(self) -> None:
        """Answer the commits that were asked for."""
        asked, self.asked = self.asked, []
        for generation, offsets, future in asked:
            if generation != self.cluster.group.generation:
                future.set_exception(TaskMigratedError("Not a member any more"))
            elif self.refuse_commits:
                self.refuse_commits -= 1
                future.set_exception(self.refusal)
            else:
                self.commits.append(offsets)
                self.cluster.committed |= offsets
                future.set_result(None)

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return {partition: self.cluster.committed.get(partition) for partition in partitions}

    def describe(self) -> GroupDescription:
        return GroupDescription("DEAD")

    def group_metadata(self) -> GroupMetadata:
        if self.generation < 0:
            raise TaskMigratedError("Not a member")
        return GroupMetadata("app", self.generation, self.name)

    def close(self, leave: bool = False) -> None:
        self.left = leave
        if leave and self.cluster.group.members.pop(self.name, None) is not None:
            self.cluster.group.rebalance(None)


class MemoryClientSupplier:
    """KafkaClientSupplier over a Cluster; keeps the clients it created, for tests."""

    def __init__(self, cluster: Cluster, clock: ManualClock, exactly_once: bool = False) -> None:
        self.cluster = cluster
        self.clock = clock
        self.exactly_once = exactly_once
        self.made: dict[str, Any] = {}

    def get_consumer(self, client_id: str) -> MemoryReader:
        reader = MemoryReader(self.cluster, self.clock, self.exactly_once)
        self.made[client_id] = reader
        return reader

    get_restore_consumer = get_global_consumer = get_consumer

    def get_producer(self, client_id: str, transactional_id: str | None = None) -> MemoryWriter:
        writer = self.made[client_id] = MemoryWriter(self.cluster, transactional_id is not None)
        return writer

    def get_admin(self, client_id: str) -> MemoryAdmin:
        admin = self.made[client_id] = MemoryAdmin(self.cluster)
        return admin

    def get_offsets_reader(self, client_id: str, timeout_ms: int) -> MemoryMember:
        return MemoryMember(self.cluster, client_id, lambda members: {})  # reading needs no membership

    def get_group_member(self, client_id: str, assign: Assign, instance_id: str | None = None) -> MemoryMember:
        member = MemoryMember(self.cluster, client_id, assign)
        self.made[client_id] = member
        return member
