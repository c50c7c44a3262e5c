"""Members of a streams group on a real broker, and a stream thread's handling of their events."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from penstock.clients.clock import SystemClock
from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.membership import Assigned, Event, Fatal, Lost, Rebalance
from penstock.clients.group.requests import GroupMemberConfig
from penstock.clients.group.streams_protocol import StreamsProtocol
from penstock.clients.group.streams_values import InternalTopic, StreamsSubtopology, StreamsTopology
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.network_settings import network_settings
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.group.assignment.changelog_offsets import ChangelogOffsets
from penstock.workers.group.assignment.streams_partition_assignor import Assignment, StreamsPartitionAssignor
from penstock.workers.group.assignment.subscription_info import AssignorError
from tests import brokers
from tests.topics import create_topics, delete_topics_of
from tests.waiting import PATIENCE_SECONDS, change_settings

PARTITIONS = 4
PAUSE_SECONDS = 0.01
HEARTBEAT_MS = 100
#: A session that a test waits for.
SHORT_SESSION_MS = 1_500
#: Any other session is as long as brokers allow: a process that gets no CPU for a while keeps its own.
LONG_SESSION_MS = 60_000
#: Upper bound for everything that does not wait for the end of such a session.
PROMPT_SECONDS = LONG_SESSION_MS / 1000 - 5
#: Brokers do not allow such short heartbeat intervals and session timeouts of streams groups by default.
LONGEST = {
    "group.streams.min.heartbeat.interval.ms": HEARTBEAT_MS,
    "group.streams.min.session.timeout.ms": SHORT_SESSION_MS,
    "group.streams.initial.rebalance.delay.ms": 0,
}


def quick_groups(bootstrap_servers: str) -> str:
    """Return these brokers, or the plain broker's address if these have slow streams groups."""
    resource = ConfigResource(ResourceType.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    config = admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)
    if any(int(config[name].value) > value for name, value in LONGEST.items()):
        return brokers.plain().bootstrap_servers
    return bootstrap_servers


class ThreadDouble:
    """A member, and a replacement for its stream thread: it opens and closes tasks, and joins when required."""

    def __init__(self, member: GroupMember, process_id: UUID, endpoint: str, tags: Mapping[str, str]) -> None:
        settings = StreamsConfig(
            {"application.id": "a", "bootstrap.servers": "unused:1", "application.server": endpoint}
        )
        log = PrefixedLogger(__name__, "")
        self.member = member
        self.assignor = StreamsPartitionAssignor(settings, process_id, NoOffsets(), SystemClock(), log, tags)
        self.assignment = Assignment()
        self.events: list[Event] = []
        self.history: list[frozenset[TaskId]] = []
        self.error = AssignorError.NONE
        self.offset_sums: Mapping[TaskId, int] = {}
        self.rejoins = True
        self.closed = False

    @property
    def protocol(self) -> StreamsProtocol:
        assert isinstance(self.member._protocol, StreamsProtocol)
        return self.member._protocol

    @property
    def active(self) -> frozenset[TaskId]:
        return frozenset(self.assignment.active)

    @property
    def standby(self) -> frozenset[TaskId]:
        return frozenset(self.assignment.standby)

    def join(self) -> None:
        self.member.join(self.assignor.joining(self.active, self.standby, self.offset_sums, self.error), "test")

    def step(self) -> None:
        wants_join = False
        for event in self.member.poll():
            self.events.append(event)
            wants_join |= self._handle(event)
        if wants_join and self.rejoins and not self.member.join_pending:
            self.join()

    def _handle(self, event: Event) -> bool:
        if isinstance(event, Assigned):
            self.assignment = self.assignor.on_assignment(event)
            self.history.append(self.active)
            return self.assignment.next_rebalance_in_ms == 0
        if isinstance(event, Lost):
            self.assignment = Assignment()
        return isinstance(event, Rebalance | Lost)

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    @property
    def fatal(self) -> Exception:
        return next(event.error for event in self.events if isinstance(event, Fatal))

    def close(self, leave: bool = True) -> None:
        if not self.closed:
            self.closed = True
            self.assignment = Assignment()
            self.member.close(leave)


class NoOffsets(ChangelogOffsets):
    """Those of a member that never leads."""

    def __init__(self) -> None:
        """Take no client: nothing is requested."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        raise AssertionError("asked for offsets")

    committed_offsets = end_offsets


class Group:
    """Members of one group that counts the records of one topic in a store; one thread polls them all."""

    def __init__(self, group_id: str, bootstrap_servers: str, partitions: int = PARTITIONS) -> None:
        self.group_id = group_id
        self.bootstrap_servers = bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self.changelog = f"{group_id}-counts-changelog"
        self.config = GroupMemberConfig(
            group_id, heartbeat_interval_ms=HEARTBEAT_MS, max_poll_interval_ms=30_000, api_timeout_ms=10_000
        )
        self.threads: list[ThreadDouble] = []
        self.watches = True  # check that no task is open in two threads
        self.configure(
            heartbeat_interval_ms=HEARTBEAT_MS, session_timeout_ms=LONG_SESSION_MS, assignment_interval_ms=0
        )
        self.topic = self.make_topic("in", partitions)

    def make_topic(self, purpose: str, partitions: int = PARTITIONS) -> str:
        topic = f"{self.group_id}-{purpose}"
        create_topics(self.admin, NewTopic(topic, partitions, 1))
        return topic

    def configure(self, **settings: int) -> None:
        """Configure the group on the broker: ``num_standby_replicas=1`` is streams.num.standby.replicas."""
        given = {f"streams.{name.replace('_', '.')}": str(value) for name, value in settings.items()}
        change_settings(self.admin, ResourceType.GROUP, self.group_id, given)

    @property
    def topology(self) -> StreamsTopology:
        changelog = InternalTopic(self.changelog, config={"cleanup.policy": "compact"})
        return StreamsTopology((StreamsSubtopology(0, (self.topic,), changelog_topics=(changelog,)),))

    @property
    def tasks(self) -> frozenset[TaskId]:
        return frozenset(TaskId(0, number) for number in range(PARTITIONS))

    def add(
        self,
        config: GroupMemberConfig | None = None,
        topology: StreamsTopology | None = None,
        endpoint: str = "",
        tags: Mapping[str, str] | None = None,
        *,
        join: bool = True,
    ) -> ThreadDouble:
        """Start a thread in its own process."""
        connection = network_settings({"bootstrap.servers": self.bootstrap_servers})
        member = GroupMember(
            config or self.config,
            connection,
            SystemClock(),
            partial(StreamsProtocol, topology=topology or self.topology),
        )
        # The threads of a host belong to one process of the application.
        process_id = uuid5(NAMESPACE_URL, endpoint) if endpoint else uuid4()
        thread = ThreadDouble(member, process_id, endpoint, tags or {})
        self.threads.append(thread)
        if join:
            thread.join()
        return thread

    @property
    def live(self) -> list[ThreadDouble]:
        return [thread for thread in self.threads if not thread.closed]

    def run_until(self, condition: Callable[[], object]) -> float:
        """Poll all members until the condition holds; return the seconds that took."""
        started = time.monotonic()
        while not condition():
            waited = time.monotonic() - started
            assert waited < PATIENCE_SECONDS, [(t.active, t.standby, t.events[-5:]) for t in self.threads]
            for thread in self.live:
                thread.step()
            running = [task for thread in self.live for task in thread.active]
            if self.watches:
                assert len(running) == len(set(running)), f"open twice: {[(t.active, t.events) for t in self.live]}"
            time.sleep(PAUSE_SECONDS)
        return time.monotonic() - started

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.run_until(lambda: time.monotonic() >= end)

    def settled(self) -> bool:
        """Return True if all tasks run, evenly distributed."""
        shares = [len(thread.active) for thread in self.live]
        return sum(shares) == len(self.tasks) and max(shares) - min(shares) <= 1

    def settle(self) -> float:
        return self.run_until(self.settled)

    def close(self) -> None:
        """Close all members and delete the topics, including those that the broker created."""
        for thread in self.threads:
            thread.close()
        delete_topics_of(self.admin, self.group_id)
