"""Resets an application (Kafka: kafka-streams-application-reset, tools.StreamsResetter)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from penstock.clients.cluster.admin import answered
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.statestore.directory.state_directory import GLOBAL_DIRECTORY, StateDirectory
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import BrokerUnavailableError, MissingSourceTopicError, StreamsError
from penstock.topology.records import TopicPartition
from penstock.topology.type_variables import R
from penstock.workers.tasks.partition_offsets import OFFSET_BEGINNING, OFFSET_END, PartitionOffsets
from penstock.workers.thread.client_supplier import KafkaClientSupplier

from ..source.topology_gate import FACTS_FILE_NAME

TIMEOUT_SECONDS = 30.0
TIMEOUT_MS = int(TIMEOUT_SECONDS * 1000)
LOOK_SECONDS = 0.5
#: Suffixes of the names of internal topics.
INTERNAL = ("-changelog", "-repartition", "-subscription-registration-topic", "-subscription-response-topic")


@dataclass(frozen=True, slots=True)
class Move:
    """One input partition: the group's committed offset (None: none), and its new one.

    metadata: the text to commit with the offset.
    """

    partition: TopicPartition
    committed: int | None
    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of input partitions; exactly one is given. since_ms: since 1970; shift: records."""

    latest: bool = False
    since_ms: int | None = None
    shift: int | None = None


class ApplicationReset:
    """Plans a reset, and performs it. A context manager that closes its clients.

    Raises BrokerUnavailableError and StreamsError with the brokers' message.
    """

    def __init__(self, config: StreamsConfig) -> None:
        config.require("application.id", "bootstrap.servers")
        self.application_id: str = config["application.id"]
        self.state = Path(config["state.dir"]) / self.application_id
        self._config = config
        supplier, client_id = KafkaClientSupplier(config), f"{self.application_id}-reset"
        with ExitStack() as clients:
            self._group = clients.enter_context(closing(supplier.get_offsets_reader(client_id, TIMEOUT_MS)))
            self._admin = clients.enter_context(closing(supplier.get_admin(client_id)))
            self._librdkafka: AdminClient = supplier.get_admin_client(client_id)  # for requests of no other client
            self._close = clients.pop_all().close

    def close(self) -> None:
        """Close the clients."""
        self._close()

    def __enter__(self) -> ApplicationReset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- queries

    def wait_until_empty(self, wait_seconds: float) -> None:
        """Wait until the group has no members; raises StreamsError if it still has some after this time (s)."""
        for found in _looks(self._group.describe, wait_seconds):
            if not found.has_members:
                return
        members = ", ".join(sorted({f"{member.client_id} on {member.host}" for member in found.members}))
        raise StreamsError(
            f"The group {self.application_id} is {found.state} and has members: {members or 'some'}. Stop "
            f"the application on all hosts; members with a static id stay for session.timeout.ms "
            f"({self._config['session.timeout.ms']} ms) longer: --wait SECONDS waits for them."
        )

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets."""
        return self._group.committed(partitions)

    def moves(self, topics: Collection[str], target: Target) -> list[Move]:
        """Return the planned changes of the input topics' offsets, by topic and partition."""
        partitions = self._partitions(topics)
        committed = self._group.committed(partitions)
        first, end = self._offsets(partitions, OFFSET_BEGINNING), self._offsets(partitions, OFFSET_END)
        if target.since_ms is not None:
            found = self._offsets(partitions, target.since_ms)
            wanted = {p: offset if offset >= 0 else end[p] for p, offset in found.items()}
        elif target.shift is not None:
            at = {p: None if committed[p] is None else committed[p].offset for p in partitions}  # type: ignore[union-attr]
            wanted = {p: first[p] if (offset := at[p]) is None else offset + target.shift for p in partitions}
        else:
            wanted = end if target.latest else first
        return [
            Move(
                p,
                None if (offset := committed[p]) is None else offset.offset,
                min(max(wanted[p], first[p]), end[p]),
            )
            for p in partitions
        ]

    def internal_topics(self) -> tuple[list[str], list[str]]:
        """Return the application's internal topics, and those to keep because they look like another group's."""
        topics = self._topics()
        mine = [t for t in sorted(topics) if t.startswith(f"{self.application_id}-") and t.endswith(INTERNAL)]
        listed = self._ask("the groups", lambda: self._librdkafka.list_consumer_groups().result(TIMEOUT_SECONDS))
        others = [
            f"{group.group_id}-"
            for group in listed.valid
            if group.group_id.startswith(f"{self.application_id}-") and group.group_id != self.application_id
        ]
        kept = [topic for topic in mine if topic.startswith(tuple(others))] if others else []
        return [topic for topic in mine if topic not in kept], kept

    def local_tasks(self) -> list[str]:
        """Return which tasks have state on this host, ``global`` for the stores of global tables."""
        if not self.state.is_dir():
            return []
        directory = StateDirectory(self.state.parent, self.application_id)
        found = [str(task) for task in directory.tasks_on_disk()]
        return found + ([GLOBAL_DIRECTORY] if (self.state / GLOBAL_DIRECTORY).is_dir() else [])

    # -- changes

    def move(self, moves: Iterable[Move]) -> None:
        """Commit the new offsets; the brokers refuse it while the group has members."""
        partitions = [
            ClientPartition(*m.partition, m.offset, m.metadata)
            if m.metadata
            else ClientPartition(*m.partition, m.offset)
            for m in moves
        ]
        if not partitions:
            return
        asked = ConsumerGroupTopicPartitions(self.application_id, partitions)
        done = self._ask(
            f"the offsets of group {self.application_id}",
            lambda: self._librdkafka.alter_consumer_group_offsets([asked])[self.application_id].result(TIMEOUT_SECONDS),
        )
        failed = [f"{p.topic}-{p.partition}: {p.error}" for p in done.topic_partitions if p.error is not None]
        if failed:
            raise StreamsError(f"Offsets were refused, nothing is deleted: {'; '.join(failed)}.")

    def delete_group(self) -> None:
        """Delete the group with its offsets, if there is one; raises StreamsError if the brokers refuse it."""
        try:
            self._librdkafka.delete_consumer_groups([self.application_id])[self.application_id].result(TIMEOUT_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise StreamsError(
                    f"The group {self.application_id} remains: {error.args[0].str()}. Run the command again."
                ) from error

    def delete_topics(self, topics: Collection[str]) -> None:
        """Delete those of the topics that exist; raises StreamsError that names the remaining ones.

        Returns when the brokers list none of them: the controller answers before the brokers know it, and what is
        started then would take a deleted topic for its own.
        """
        if not topics:
            return
        failed = []
        for topic, future in self._librdkafka.delete_topics(list(topics)).items():
            try:
                future.result(TIMEOUT_SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    failed.append(f"{topic}: {error.args[0].str()}")
        if not failed:
            for found in _looks(self._topics, TIMEOUT_SECONDS):
                if not (listed := sorted(found.keys() & set(topics))):
                    return
            failed = [f"{topic}: it is deleted, but still listed" for topic in listed]
        raise StreamsError(f"Topics remain: {'; '.join(failed)}. Run the command again.")

    def delete_state(self) -> None:
        """Delete the state of this host; raises LockError if the application runs here."""
        if self.state.is_dir():
            directory = StateDirectory(self.state.parent, self.application_id)
            directory.lock_application()
            try:
                directory.clean(older_than_ms=-1)
                if (self.state / GLOBAL_DIRECTORY).is_dir():
                    shutil.rmtree(self.state / GLOBAL_DIRECTORY)
                (self.state / FACTS_FILE_NAME).unlink(missing_ok=True)  # no state remains that a topology must fit
            finally:
                directory.close()

    # -- helpers

    def _topics(self) -> dict[str, int]:
        with answered("The topics of the cluster could not be listed"):
            return self._admin.describe(None, TIMEOUT_MS).partition_counts

    def _partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        counts = self._topics()
        missing = sorted(set(topics) - counts.keys())
        if missing:
            raise MissingSourceTopicError(f"There is no topic {', '.join(missing)}: check the names and the cluster.")
        return [TopicPartition(topic, number) for topic in sorted(topics) for number in range(counts[topic])]

    def _offsets(self, partitions: Collection[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        offsets = PartitionOffsets(self._admin, committed_only=False)
        return offsets.offsets_at(dict.fromkeys(partitions, timestamp), TIMEOUT_SECONDS)

    def _ask(self, what: str, question: Callable[[], R]) -> R:
        try:
            return question()
        except KafkaException as error:
            raise BrokerUnavailableError(
                f"The brokers at {self._config['bootstrap.servers']} did not give {what}: {error.args[0].str()}. "
                "Check bootstrap.servers, and that they run."
            ) from error


def _looks(look: Callable[[], R], seconds: float) -> Iterator[R]:
    """Yield what look() returns, at least once, again and again until this time (s) has passed."""
    deadline = time.monotonic() + seconds
    yield look()
    while time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        yield look()

