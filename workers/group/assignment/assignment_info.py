"""A member's assignment, in Kafka Streams' encoding (AssignmentInfo), versions 1 to 11."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from penstock.topology.records import TaskId, TopicPartition

from .subscription_info import (
    LATEST_SUPPORTED_VERSION,
    PROBING_VERSION,
    UNKNOWN_VERSION,
    AssignorError,
    Partitions,
    read_error,
    read_version,
)
from .wire import NAMED_TOPOLOGY_VERSION, Reader, Writer

#: The first versions with active tasks by host, an error code, a dictionary of topics, standby tasks by host, and the
#: time of the next rebalance.
_HOSTS_VERSION, _ERROR_VERSION, _DICTIONARY_VERSION, _STANDBY_HOSTS_VERSION, _NEXT_REBALANCE_VERSION = 2, 4, 5, 6, 7
#: Java's Long.MAX_VALUE: no rebalance is planned.
_NO_REBALANCE = 2**63 - 1

ByHost = Mapping[str, Partitions]


@dataclass(frozen=True, slots=True)
class AssignmentInfo:
    """A member's assignment by the leader.

    version: the lowest one used in the group; commonly_supported_version: the highest that all understand. active,
    standby: this member's tasks. partitions_by_host: input partitions of all active tasks by user endpoint (host:port),
    standby_partitions_by_host: of all standby tasks. next_rebalance_ms: when this member must join again, in ms since
    the epoch; 0: immediately, None: never.
    """

    version: int
    commonly_supported_version: int
    error: AssignorError = AssignorError.NONE
    active: Mapping[TaskId, Partitions] = field(default_factory=dict)
    standby: Mapping[TaskId, Partitions] = field(default_factory=dict)
    partitions_by_host: ByHost = field(default_factory=dict)
    standby_partitions_by_host: ByHost = field(default_factory=dict)
    next_rebalance_ms: int | None = None

    @property
    def active_partitions(self) -> list[TopicPartition]:
        """The input partitions of the active tasks; the envelope around these bytes holds them."""
        return sorted(partition for partitions in self.active.values() for partition in partitions)

    def encode(self) -> bytes:
        """Encode it. Active tasks are written as one id for each of active_partitions."""
        version, writer = self.version, Writer()
        writer.int32(version)
        if version >= PROBING_VERSION:
            writer.int32(self.commonly_supported_version)
        owners = {partition: task for task, partitions in self.active.items() for partition in partitions}
        writer.items(self.active_partitions, lambda partition: _write_task(writer, owners[partition], version))
        writer.int32(len(self.standby))
        for task, partitions in sorted(self.standby.items()):
            _write_task(writer, task, version)
            writer.items(sorted(partitions), writer.partition)
        if version >= _HOSTS_VERSION:
            self._write_hosts(writer)
        if version >= _ERROR_VERSION:
            writer.int32(self.error)
        if version >= _NEXT_REBALANCE_VERSION:
            writer.int64(_NO_REBALANCE if self.next_rebalance_ms is None else self.next_rebalance_ms)
        return writer.to_bytes()

    def _write_hosts(self, writer: Writer) -> None:
        by_role = [self.partitions_by_host, self.standby_partitions_by_host]
        by_role = by_role[: 2 if self.version >= _STANDBY_HOSTS_VERSION else 1]
        write = _write_dictionary(writer, by_role) if self.version >= _DICTIONARY_VERSION else writer.partition
        for by_host in by_role:
            writer.int32(len(by_host))
            for host, partitions in sorted(by_host.items()):
                name, _, port = host.rpartition(":")
                writer.text(name)
                writer.int32(int(port))
                writer.items(sorted(partitions), write)

    @classmethod
    def decode(
        cls,
        data: bytes,
        active_partitions: Collection[TopicPartition],
        latest_version: int = LATEST_SUPPORTED_VERSION,
    ) -> AssignmentInfo:
        """Decode the leader's bytes. active_partitions: those in the envelope around them.

        Raises MalformedInfoError, also for a version above latest_version.
        """
        reader = Reader(data, "assignment of the group's leader")
        version = read_version(reader)
        if version > latest_version:
            raise reader.fail(f"version {version}; the latest one that is understood is {latest_version}")
        common = reader.int32() if version >= PROBING_VERSION else UNKNOWN_VERSION
        active_tasks = reader.items(lambda: _read_task(reader, version))
        if len(active_tasks) != len(active_partitions):
            raise reader.fail(f"{len(active_tasks)} active tasks for {len(active_partitions)} partitions")
        active: dict[TaskId, Partitions] = {}
        for task, partition in zip(active_tasks, sorted(active_partitions), strict=True):
            active[task] = active.get(task, frozenset()) | {partition}
        standby = dict(reader.items(lambda: (_read_task(reader, version), _read_partitions(reader))))
        by_host, standby_by_host = _read_hosts(reader, version)
        error = read_error(reader) if version >= _ERROR_VERSION else AssignorError.NONE
        next_rebalance_ms = reader.int64() if version >= _NEXT_REBALANCE_VERSION else _NO_REBALANCE
        return cls(
            version,
            common,
            error,
            active,
            standby,
            by_host,
            standby_by_host,
            None if next_rebalance_ms == _NO_REBALANCE else next_rebalance_ms,
        )


def _write_dictionary(writer: Writer, by_role: list[ByHost]) -> Callable[[TopicPartition], None]:
    """Write the topics' names once; return what writes partitions that refer to them."""
    names = {p.topic for by_host in by_role for partitions in by_host.values() for p in partitions}
    indexes = {name: index for index, name in enumerate(sorted(names))}
    writer.int32(len(indexes))
    for name, index in indexes.items():
        writer.int32(index)
        writer.text(name)

    def write(partition: TopicPartition) -> None:
        writer.int32(indexes[partition.topic])
        writer.int32(partition.partition)

    return write


def _write_task(writer: Writer, task: TaskId, version: int) -> None:
    writer.task(task)
    if version >= NAMED_TOPOLOGY_VERSION:
        writer.int32(0)


def _read_task(reader: Reader, version: int) -> TaskId:
    task = reader.task()
    if version >= NAMED_TOPOLOGY_VERSION:
        reader.no_named_topology(reader.int32())
    return task


def _read_partitions(reader: Reader) -> Partitions:
    return frozenset(reader.items(reader.partition))


def _read_dictionary(reader: Reader) -> Callable[[], TopicPartition]:
    """Read the topics' names; return what reads partitions that refer to them."""
    names = dict(reader.items(lambda: (reader.int32(), reader.text())))

    def read() -> TopicPartition:
        index = reader.int32()
        if index not in names:
            raise reader.fail("a topic without a name")
        return TopicPartition(names[index], reader.count())

    return read


def _read_hosts(reader: Reader, version: int) -> tuple[ByHost, ByHost]:
    if version < _HOSTS_VERSION:
        return {}, {}
    read = _read_dictionary(reader) if version >= _DICTIONARY_VERSION else reader.partition

    def by_host() -> ByHost:
        return dict(reader.items(lambda: (f"{reader.text()}:{reader.int32()}", frozenset(reader.items(read)))))

    return by_host(), by_host() if version >= _STANDBY_HOSTS_VERSION else {}
