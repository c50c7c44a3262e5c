"""What members tell the leader and what it tells them: Penstock's own, versioned encoding.

Kafka Streams: SubscriptionInfo, AssignmentInfo, AssignorError, StreamsAssignmentProtocolVersions. Its bytes are its
own business and Java and Python members never share a group, so these are ours; wire.py says how values are written.

SubscriptionInfo, version 1::

    "PNSK"  used version  latest supported version  process id (16 bytes)  active tasks     <- never changes
    standby tasks  [(task, offset sum)]  user endpoint  [(tag, value)]  unique field  error code

Version 2 adds ``rack  topology`` at the end, version 3 ``facts`` behind that, version 4 ``[(task, load)]``. The first
line stays as it is in all versions to come, so that an old leader in a rolling upgrade knows which tasks a newer member
still owns (version probing, KIP-268).

AssignmentInfo, versions 1 to 4::

    "PNSK"  used version  commonly supported version  error code                            <- never changes
    [topic]  [(active task, partitions)]  [(standby task, partitions)]
    [(host, partitions)]  [(host, standby partitions)]  next rebalance
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from uuid import UUID

from penstock.topology.records import TaskId, TopicPartition

from .wire import MalformedInfoError, Reader, Writer

LATEST_SUPPORTED_VERSION = 4
EARLIEST_SUPPORTED_VERSION = 1

#: From this version on a member tells its rack and its topology's digest.
_RACK_VERSION = 2
#: From this version on a member tells what its topology is.
_FACTS_VERSION = 3
#: From this version on a member tells how much work its tasks are.
_LOADS_VERSION = 4

_MAGIC = b"PNSK"

#: Offset sum of a running active task: no lag (Kafka: Task.LATEST_OFFSET).
LATEST_OFFSET = -2
#: Offset sum of a task whose offsets could not be read (Kafka: SubscriptionInfo.UNKNOWN_OFFSET_SUM).
UNKNOWN_OFFSET_SUM = -3

Partitions = frozenset[TopicPartition]


class AssignorError(IntEnum):
    """Why there is no assignment (Kafka: AssignorError)."""

    NONE = 0
    INCOMPLETE_SOURCE_TOPIC_METADATA = 1
    VERSION_PROBING = 2
    ASSIGNMENT_ERROR = 3
    SHUTDOWN_REQUESTED = 4

    @property
    def description(self) -> str:
        """What it means, for the error that the stream thread raises."""
        return _DESCRIPTIONS[self]


_DESCRIPTIONS: Mapping[AssignorError, str] = {
    AssignorError.NONE: "NONE",
    AssignorError.INCOMPLETE_SOURCE_TOPIC_METADATA: (
        "Missing metadata for source topics. Check the group leader logs for details."
    ),
    AssignorError.VERSION_PROBING: "Could not read internal rebalance metadata due to unknown encoding version.",
    AssignorError.ASSIGNMENT_ERROR: "Internal task assignment error. Check the group leader logs for details.",
    AssignorError.SHUTDOWN_REQUESTED: (
        "An instance of the application encountered a fatal error and requested a shutdown for the entire application."
    ),
}


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """What a member tells the leader.

    active_tasks: the tasks it owns now, which no other member may get before this one has given them up.
    standby_tasks: its standby tasks. offset_sums: of each task with state on its disk, whose or not, the sum of its
    changelog offsets, or LATEST_OFFSET, or UNKNOWN_OFFSET_SUM. user_endpoint: application.server. unique_field: another
    number at each join, because the broker takes a join with unchanged bytes for none. rack: client.rack, empty without
    one. topology: see topics_info.topology_digest; empty from a member that does not tell. facts: its topology as
    topology_facts.pack_facts gives it, for `penstock plan`; the leader does not read it.
    loads: of active tasks that have run for a while, how much of the thread's time each takes, in thousandths.
    """

    version: int
    latest_supported_version: int
    process_id: UUID
    active_tasks: frozenset[TaskId] = frozenset()
    standby_tasks: frozenset[TaskId] = frozenset()
    offset_sums: Mapping[TaskId, int] = field(default_factory=dict)
    user_endpoint: str = ""
    client_tags: Mapping[str, str] = field(default_factory=dict)
    unique_field: int = 0
    error: AssignorError = AssignorError.NONE
    rack: str = ""
    topology: str = ""
    facts: bytes = b""
    loads: Mapping[TaskId, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the bytes, in this version's encoding."""
        writer = Writer()
        writer.raw(_MAGIC)
        writer.number(self.version)
        writer.number(self.latest_supported_version)
        writer.raw(self.process_id.bytes)
        writer.tasks(self.active_tasks)
        writer.tasks(self.standby_tasks)
        writer.tasks(self.offset_sums)
        for task in sorted(self.offset_sums):
            writer.signed(self.offset_sums[task])
        writer.text(self.user_endpoint)
        writer.items([text for pair in sorted(self.client_tags.items()) for text in pair], writer.text)
        writer.number(self.unique_field)
        writer.number(self.error)
        if self.version >= _RACK_VERSION:
            writer.text(self.rack)
            writer.text(self.topology)
        if self.version >= _FACTS_VERSION:
            writer.data(self.facts)
        if self.version >= _LOADS_VERSION:
            writer.tasks(self.loads)
            for task in sorted(self.loads):
                writer.number(self.loads[task])
        return writer.to_bytes()

    @classmethod
    def decode(cls, data: bytes, sender: str, latest_version: int = LATEST_SUPPORTED_VERSION) -> SubscriptionInfo:
        """Read the bytes of a member; of a version above latest_version only what never changes.

        Raises MalformedInfoError, which names the sender.
        """
        reader = Reader(data, f"subscription of member {sender}")
        version, latest = _read_header(reader)
        process_id, active = reader.uuid(), reader.tasks()
        if version > latest_version:
            return cls(version, latest, process_id, active)
        info = cls(
            version,
            latest,
            process_id,
            active,
            standby_tasks=reader.tasks(),
            offset_sums={task: reader.signed() for task in sorted(reader.tasks())},
            user_endpoint=reader.text(),
            client_tags=_read_tags(reader),
            unique_field=reader.number(),
            error=_read_error(reader),
            rack=reader.text() if version >= _RACK_VERSION else "",
            topology=reader.text() if version >= _RACK_VERSION else "",
            facts=reader.data() if version >= _FACTS_VERSION else b"",
            loads={task: reader.small() for task in sorted(reader.tasks())} if version >= _LOADS_VERSION else {},
        )
        reader.end()
        return info


@dataclass(frozen=True, slots=True)
class AssignmentInfo:
    """What the leader tells a member.

    version: the lowest one used in the group; commonly_supported_version: the highest that all understand.
    active, standby: this member's tasks. partitions_by_host: input partitions of all active tasks by user endpoint,
    standby_partitions_by_host: of all standby tasks. next_rebalance_ms: when this member shall join again, in ms since
    the epoch; 0 at once, None not at all.
    """

    version: int
    commonly_supported_version: int
    error: AssignorError = AssignorError.NONE
    active: Mapping[TaskId, Partitions] = field(default_factory=dict)
    standby: Mapping[TaskId, Partitions] = field(default_factory=dict)
    partitions_by_host: Mapping[str, Partitions] = field(default_factory=dict)
    standby_partitions_by_host: Mapping[str, Partitions] = field(default_factory=dict)
    next_rebalance_ms: int | None = None

    def encode(self) -> bytes:
        """Return the bytes."""
        maps = (self.active, self.standby, self.partitions_by_host, self.standby_partitions_by_host)
        names = {partition.topic for by_key in maps for partitions in by_key.values() for partition in partitions}
        topics = {topic: number for number, topic in enumerate(sorted(names))}
        writer = Writer()
        writer.raw(_MAGIC)
        writer.number(self.version)
        writer.number(self.commonly_supported_version)
        writer.number(self.error)
        writer.items(list(topics), writer.text)
        for by_task in (self.active, self.standby):
            writer.tasks(by_task)
            for task in sorted(by_task):
                writer.partitions(by_task[task], topics)
        for by_host in (self.partitions_by_host, self.standby_partitions_by_host):
            writer.items(sorted(by_host), writer.text)
            for host in sorted(by_host):
                writer.partitions(by_host[host], topics)
        writer.signed(-1 if self.next_rebalance_ms is None else self.next_rebalance_ms)
        return writer.to_bytes()

    @classmethod
    def decode(cls, data: bytes, latest_version: int = LATEST_SUPPORTED_VERSION) -> AssignmentInfo:
        """Read the leader's bytes; of a version above latest_version only what never changes.

        Raises MalformedInfoError.
        """
        reader = Reader(data, "assignment of the group's leader")
        version, common = _read_header(reader)
        error = _read_error(reader)
        if version > latest_version:
            return cls(version, common, error)
        topics = reader.items(reader.text)
        active, standby = (_read_by_task(reader, topics) for _ in range(2))
        by_host, standby_by_host = (_read_by_host(reader, topics) for _ in range(2))
        next_rebalance_ms = reader.signed()
        reader.end()
        return cls(
            version,
            common,
            error,
            active,
            standby,
            by_host,
            standby_by_host,
            None if next_rebalance_ms < 0 else next_rebalance_ms,
        )


def _read_header(reader: Reader) -> tuple[int, int]:
    if reader.raw(len(_MAGIC)) != _MAGIC:
        raise reader.fail(
            "not written by Penstock. If Kafka Streams (Java) runs with the same application.id, stop all of it before "
            "Penstock starts; a stopped Java instance leaves the group after session.timeout.ms"
        )
    version, supported = reader.small(), reader.small()
    if version < EARLIEST_SUPPORTED_VERSION:
        raise reader.fail(f"version {version}")
    return version, supported


def _read_error(reader: Reader) -> AssignorError:
    code = reader.number()
    try:
        return AssignorError(code)
    except ValueError as error:
        raise MalformedInfoError(f"Unknown assignor error code {code}; was Penstock upgraded meanwhile?") from error


def _read_tags(reader: Reader) -> dict[str, str]:
    texts = reader.items(reader.text)
    if len(texts) % 2:
        raise reader.fail("a tag without a value")
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _read_by_task(reader: Reader, topics: list[str]) -> dict[TaskId, Partitions]:
    return {task: reader.partitions(topics) for task in sorted(reader.tasks())}


def _read_by_host(reader: Reader, topics: list[str]) -> dict[str, Partitions]:
    return {host: reader.partitions(topics) for host in sorted(reader.items(reader.text))}
