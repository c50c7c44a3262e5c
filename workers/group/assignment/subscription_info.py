"""A member's subscription, in Kafka Streams' encoding, because some members may run on Java.

Kafka Streams: SubscriptionInfo, AssignorError, StreamsAssignmentProtocolVersions. Versions 1 to 11; in a rolling
upgrade all members use the version of the oldest (version probing, KIP-268). assignment_info.py has the leader's
response.

Kafka Streams ignores bytes after the fields of a version. Penstock appends its own fields there: see _write_own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from uuid import UUID

from penstock.clients.group.streams_values import NO_LAG, Report
from penstock.topology.records import TaskId, TopicPartition

from .wire import NAMED_TOPOLOGY_VERSION, MalformedInfoError, Reader, Writer

LATEST_SUPPORTED_VERSION = 11
EARLIEST_SUPPORTED_VERSION = 1
#: From this version on, a member can detect that others use an older one (EARLIEST_PROBEABLE_VERSION).
PROBING_VERSION = 3

#: The first versions with a user endpoint, offset sums, a unique field, an error code, client tags.
_ENDPOINT_VERSION, _OFFSETS_VERSION, _UNIQUE_VERSION, _ERROR_VERSION, _TAGS_VERSION = 2, 7, 8, 9, 11

#: The start of Penstock's own fields, and their version.
_MAGIC = b"PNSK"
_OWN_VERSION = 1

#: Offset sum of a running active task: no lag (Kafka: Task.LATEST_OFFSET).
LATEST_OFFSET = -2
#: Offset sum of a task whose offsets could not be read (Kafka: SubscriptionInfo.UNKNOWN_OFFSET_SUM).
UNKNOWN_OFFSET_SUM = -3
#: Kafka's latestSupportedVersion of members that do not send it (versions 1 and 2).
UNKNOWN_VERSION = -1
#: The process id of members whose version is too new; Kafka Streams, too, counts all of them as one client.
FUTURE_PROCESS_ID = UUID(int=2**128 - 1)

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
        """Kafka Streams' description, for the stream thread's error."""
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
    """A member's subscription; the partitions it owns and its rack are in the envelope (MemberSubscription).

    offset_sums: for each stateful task with state on this host's disk, the sum of its changelog offsets, or
    LATEST_OFFSET for a running active task. user_endpoint: application.server. unique_field: changes with each join,
    because the broker ignores a join with unchanged bytes; one byte of it is sent.

    Members of Penstock (is_penstock) send more fields. active_tasks, standby_tasks: the open tasks; for other members,
    the tasks with LATEST_OFFSET and those with another sum. topology: see topics_info.topology_digest. facts: the
    topology from topology_facts.pack_facts, for `penstock plan`; the leader ignores it. loads: the shares of the
    thread's time that active tasks use, in thousandths, once measured.
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
    topology: str = ""
    facts: bytes = b""
    loads: Mapping[TaskId, int] = field(default_factory=dict)
    is_penstock: bool = True

    def report(self) -> Report:
        """Return it as a member of a streams group reports it (KIP-1071)."""
        known = {
            task: NO_LAG if offset == LATEST_OFFSET else offset
            for task, offset in self.offset_sums.items()
            if offset != UNKNOWN_OFFSET_SUM
        }
        return Report(
            self.process_id,
            self.active_tasks,
            self.standby_tasks,
            known,
            self.user_endpoint,
            self.client_tags,
            self.error is AssignorError.SHUTDOWN_REQUESTED,
        )

    def encode(self) -> bytes:
        """Return the bytes, in this version's encoding."""
        writer = Writer()
        version = self.version
        writer.int32(version)
        if version >= PROBING_VERSION:
            writer.int32(self.latest_supported_version)
        writer.raw(self.process_id.bytes)
        if version < _OFFSETS_VERSION:
            running = {task for task, offset in self.offset_sums.items() if offset == LATEST_OFFSET}
            writer.tasks(running)
            writer.tasks(self.offset_sums.keys() - running)
        if version >= _ENDPOINT_VERSION:
            writer.data(self.user_endpoint.encode())
        if version >= _OFFSETS_VERSION:
            _write_offset_sums(writer, self.offset_sums, version)
        if version >= _UNIQUE_VERSION:
            writer.int8((self.unique_field + 128) % 256 - 128)
        if version >= _ERROR_VERSION:
            writer.int32(self.error)
        if version >= _TAGS_VERSION:
            texts = [text.encode() for pair in sorted(self.client_tags.items()) for text in pair]
            writer.int32(len(self.client_tags))
            for text in texts:
                writer.data(text)
        if self.is_penstock:
            self._write_own(writer)
        return writer.to_bytes()

    def _write_own(self, writer: Writer) -> None:
        """Append Penstock's own fields."""
        own = Writer()
        own.tasks(self.active_tasks)
        own.tasks(self.standby_tasks)
        own.int32(self.unique_field)
        own.text(self.topology)
        own.data(self.facts)
        own.tasks(self.loads)
        for task in sorted(self.loads):
            own.int32(self.loads[task])
        writer.raw(_MAGIC)
        writer.int32(_OWN_VERSION)
        writer.data(own.to_bytes())

    @classmethod
    def decode(cls, data: bytes, sender: str, latest_version: int = LATEST_SUPPORTED_VERSION) -> SubscriptionInfo:
        """Decode the bytes of a member; of a version above latest_version, only the versions.

        Raises MalformedInfoError with the sender.
        """
        reader = Reader(data, f"subscription of member {sender}")
        version = read_version(reader)
        latest = reader.int32() if version >= PROBING_VERSION else UNKNOWN_VERSION
        if version > latest_version:
            return cls(version, latest, FUTURE_PROCESS_ID, is_penstock=False)
        process_id = UUID(bytes=reader.raw(16))
        offset_sums: dict[TaskId, int] = {}
        if version < _OFFSETS_VERSION:
            offset_sums = dict.fromkeys(reader.tasks(), LATEST_OFFSET)
            offset_sums = {**dict.fromkeys(reader.tasks(), UNKNOWN_OFFSET_SUM), **offset_sums}
        user_endpoint = reader.bytes_text() if version >= _ENDPOINT_VERSION else ""
        if version >= _OFFSETS_VERSION:
            offset_sums = _read_offset_sums(reader, version)
        unique_field = reader.int8() if version >= _UNIQUE_VERSION else 0
        error = read_error(reader) if version >= _ERROR_VERSION else AssignorError.NONE
        tags = reader.items(lambda: (reader.bytes_text(), reader.bytes_text())) if version >= _TAGS_VERSION else []
        running = frozenset(task for task, offset in offset_sums.items() if offset == LATEST_OFFSET)
        info = cls(
            version,
            latest,
            process_id,
            running,
            frozenset(offset_sums.keys() - running),
            offset_sums,
            user_endpoint,
            dict(tags),
            unique_field,
            error,
            is_penstock=False,
        )
        return info._with_own(reader)

    def _with_own(self, reader: Reader) -> SubscriptionInfo:
        """Return this with Penstock's own fields, if the member sent them."""
        if reader.remaining < len(_MAGIC) or reader.raw(len(_MAGIC)) != _MAGIC:
            return self
        reader.int32()  # later versions of this part only append to it
        own = Reader(reader.data(), "part of a member of Penstock")
        return replace(
            self,
            active_tasks=own.tasks(),
            standby_tasks=own.tasks(),
            unique_field=own.int32(),
            topology=own.text(),
            facts=own.data(),
            loads={task: own.count() for task in sorted(own.tasks())},
            is_penstock=True,
        )


def _write_offset_sums(writer: Writer, sums: Mapping[TaskId, int], version: int) -> None:
    if version >= NAMED_TOPOLOGY_VERSION:
        writer.int32(len(sums))
        for task in sorted(sums):
            writer.task(task)
            writer.int64(sums[task])
            writer.raw(b"\xff\xff")  # no named topology
        return
    subtopologies = sorted({task.subtopology for task in sums})
    writer.int32(len(subtopologies))
    for subtopology in subtopologies:
        tasks = sorted(task for task in sums if task.subtopology == subtopology)
        writer.int32(subtopology)
        writer.int32(len(tasks))
        for task in tasks:
            writer.int32(task.partition)
            writer.int64(sums[task])


def _read_offset_sums(reader: Reader, version: int) -> dict[TaskId, int]:
    if version >= NAMED_TOPOLOGY_VERSION:

        def one() -> tuple[TaskId, int]:
            found = reader.task(), reader.int64()
            reader.no_named_topology(int.from_bytes(reader.raw(2), signed=True))
            return found

        return dict(reader.items(one))

    def subtopology() -> list[tuple[TaskId, int]]:
        number = reader.count()
        return reader.items(lambda: (TaskId(number, reader.count()), reader.int64()))

    return dict(pair for pairs in reader.items(subtopology) for pair in pairs)


def user_host(data: bytes) -> tuple[str, str]:
    """Return application.server and process id in the bytes of a member; "" if another program wrote them."""
    try:
        info = SubscriptionInfo.decode(data, "of the group")
    except MalformedInfoError:
        return "", ""
    return info.user_endpoint, str(info.process_id)


def read_version(reader: Reader) -> int:
    """Return the version at the start of the bytes; raises MalformedInfoError if it is invalid."""
    version = reader.int32()
    if version < EARLIEST_SUPPORTED_VERSION:
        raise reader.fail(f"version {version}")
    return version


def read_error(reader: Reader) -> AssignorError:
    """Return an error code; raises MalformedInfoError for an unknown one."""
    code = reader.int32()
    try:
        return AssignorError(code)
    except ValueError as error:
        raise reader.fail(f"the unknown error code {code}") from error
