"""The one place where a stream thread's Kafka clients are made (Kafka Streams: DefaultKafkaClientSupplier).

Penstock reads and writes by itself. librdkafka does it behind the same two protocols, Reader and Writer, where that is
configured, with settings that Penstock does not know, and without the compiled kernel. All clients, the group member
and the admin too, get the same brokers and the same TLS and SASL settings. What is given behind a client's prefix wins
over what is set here, but for what the runtime depends on.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.clients import librdkafka
from penstock.clients.clock import Clock, SystemClock
from penstock.clients.cluster.admin import Admin, KafkaAdmin
from penstock.clients.cluster.brokers import KafkaBrokers
from penstock.clients.connection.security import check_security_keys, is_security_key
from penstock.clients.group.group_member import GroupMember, StreamsGroupMember
from penstock.clients.group.membership import Assign
from penstock.clients.group.offsets_reader import GroupOffsetsReader
from penstock.clients.group.requests import GroupMemberConfig
from penstock.clients.group.streams_values import StreamsTopology
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.network_settings import NETWORK_FIELDS, NetworkSettings, network_settings
from penstock.clients.reading import fetch_settings as fetching
from penstock.clients.reading.fetcher import Fetcher
from penstock.clients.reading.reader import Reader
from penstock.clients.writing import produce_settings as producing
from penstock.clients.writing.kafka_producer import KafkaProducer
from penstock.clients.writing.transactional_producer import TransactionalKafkaProducer
from penstock.clients.writing.writer import Writer
from penstock.kernel import record_accumulator, record_batches
from penstock.statestore.directory.state_directory import PROCESS_FILE_NAME
from penstock.topology.config.config_keys import KEYS
from penstock.topology.config.streams_config import StreamsConfig

from ..group.assignment.streams_group_bytes import StreamsGroupBytes

if TYPE_CHECKING:
    from penstock.clients.librdkafka import AdminClient, Consumer, Producer

LOG = logging.getLogger(__name__)

#: How long a stream thread waits for committed offsets before it continues with its other work, in ms.
COMMITTED_WAIT_MS = 500
#: Kafka's names of settings that librdkafka calls otherwise.
_RENAMED: Mapping[str, str] = {
    "request.timeout.ms": "socket.timeout.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}

#: What a user may change behind a prefix.
_CONSUMER_DEFAULTS: Mapping[str, Any] = {
    "check.crcs": True,  # as Java's consumer; a broken record must not get into a store
    "fetch.wait.max.ms": 100,  # a partition that is assigned while a fetch waits for data is fetched only after it
    "fetch.queue.backoff.ms": 10,  # librdkafka's 1000: with full queues it sleeps longer than it takes to empty them
}
#: What the runtime depends on. Members are GroupMember's, positions are explicit, ends are seen by their events.
_CONSUMER_FIXED: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "allow.auto.create.topics": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "max.poll.interval.ms": 86_400_000,  # GroupMember watches it; this is the highest librdkafka takes
}
#: Partitions must equal those that Java's producer chooses, else keys of two writers would not meet.
_PRODUCER_FIXED: Mapping[str, Any] = {"partitioner": "murmur2_random"}
#: Behind these StreamsConfig finds the keys of a client that stand in its table (max.poll.records, linger.ms …).
_RESOLVED = ("consumer.", "main.consumer.", "producer.")
#: Those of them that librdkafka's producer knows.
_FOR_PRODUCER = ("linger.ms", "acks", "enable.idempotence", "delivery.timeout.ms")
#: Of records without keys: where a writer begins.
_SEEDS = 1 << 16


class KafkaClientSupplier:
    """Makes clients from one configuration; ``default.client.supplier`` may name a subclass.

    Where a method returns a Reader or a Writer, a subclass may return a confluent_kafka.Consumer or Producer too, or
    what has its methods. confluent_consumer() and confluent_producer() make such clients from the configuration.

    Raises ConfigError for settings that a client refuses; it names the key.
    """

    def __init__(self, config: StreamsConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()

    def get_consumer(self, client_id: str) -> Reader | Consumer:
        """Return what reads input topics; see the class for what it may be."""
        return self._reader(client_id, "consumer.", "main.consumer.")

    def get_restore_consumer(self, client_id: str) -> Reader | Consumer:
        """Return what reads changelogs, of restoring active tasks and of standby tasks."""
        return self._reader(client_id, "consumer.", "restore.consumer.")

    def get_global_consumer(self, client_id: str) -> Reader | Consumer:
        """Return what reads the topics of global tables."""
        return self._reader(client_id, "consumer.", "global.consumer.")

    def _reader(self, client_id: str, *prefixes: str) -> Reader:
        settings = self._consumer_settings(client_id, *prefixes)
        unknown = fetching.unknown_settings(settings)
        if not self._is_own("penstock.fetcher", "Reading", record_batches is not None, unknown):
            return librdkafka.make_reader(settings)
        log = PrefixedLogger("penstock.clients.reading", f"[{client_id}] ")
        found = fetching.fetch_settings(settings)
        return Fetcher(KafkaBrokers(found), found, self._clock, log)

    def _is_own(self, key: str, doing: str, is_built: bool, unknown: Collection[str]) -> bool:
        """Return whether Penstock reads or writes by itself; the log says what stands against it."""
        if self._config[key] == "librdkafka":
            return False
        if not is_built:
            LOG.info("%s with librdkafka: the compiled kernel is not built here", doing)
        elif unknown:
            LOG.info("%s with librdkafka, which knows %s", doing, ", ".join(unknown))
        return is_built and not unknown

    def get_producer(self, client_id: str, transactional_id: str | None = None) -> Writer | Producer:
        """Return what writes: idempotent, with Java's partitioner.

        transactional_id: for exactly-once, None without; transactions are not initialized yet.
        """
        settings = self._producer_settings(client_id, transactional_id)
        unknown = producing.unknown_settings(settings)
        if not self._is_own("penstock.sender", "Writing", record_accumulator is not None, unknown):
            return librdkafka.make_writer(settings)
        found = producing.produce_settings(settings)
        kind = KafkaProducer if transactional_id is None else TransactionalKafkaProducer
        log = PrefixedLogger("penstock.clients.writing", f"[{client_id}] ")
        return kind(KafkaBrokers(found, creates_topics=True), found, self._clock, log, random.randrange(_SEEDS))

    def confluent_consumer(self, client_id: str) -> Consumer:
        """Return a confluent_kafka.Consumer for assign(), with the main consumer's configuration."""
        return librdkafka.make_consumer(self._consumer_settings(client_id, "consumer.", "main.consumer."))

    def confluent_producer(self, client_id: str, transactional_id: str | None = None) -> Producer:
        """Return a confluent_kafka.Producer; see get_producer."""
        return librdkafka.make_producer(self._producer_settings(client_id, transactional_id))

    def _consumer_settings(self, client_id: str, *prefixes: str) -> dict[str, Any]:
        """Return the settings of a consumer, by librdkafka's names."""
        return {
            **self._common(client_id, *prefixes),
            **_CONSUMER_DEFAULTS,
            "isolation.level": self._config["isolation.level"],
            "client.rack": self._config["client.rack"],  # fetches from a replica in the same rack (KIP-392)
            **self._given(*prefixes),
            **_CONSUMER_FIXED,
            "group.id": self._config["application.id"],
        }

    def _producer_settings(self, client_id: str, transactional_id: str | None) -> dict[str, Any]:
        """Return the settings of a producer, by librdkafka's names."""
        config = self._config
        own = {name: config[name] for name in _FOR_PRODUCER}
        if transactional_id is not None:
            # librdkafka ends a record's time with its transaction's; a longer one is an error there.
            del own["delivery.timeout.ms"]
            own |= {"transactional.id": transactional_id, "transaction.timeout.ms": config["transaction.timeout.ms"]}
        return {**self._common(client_id, "producer."), **own, **self._given("producer."), **_PRODUCER_FIXED}

    def get_admin(self, client_id: str) -> Admin:
        """Return what asks the brokers for topics and offsets, makes internal topics and deletes consumed records."""
        given = self._given("admin.")
        settings = {**self._common(client_id, "admin."), **given}
        unknown = sorted(key for key in given if key not in NETWORK_FIELDS and not is_security_key(key))
        if unknown:
            LOG.info("Only the command line's admin client, which is librdkafka's, knows %s", ", ".join(unknown))
        return KafkaAdmin(network_settings(settings))

    def get_admin_client(self, client_id: str) -> AdminClient:
        """Return librdkafka's admin client, for what the command line asks seldom: groups, deletions of topics."""
        return librdkafka.make_admin({**self._common(client_id, "admin."), **self._given("admin.")})

    def get_group_member(self, client_id: str, assign: Assign, instance_id: str | None = None) -> GroupMember:
        """Return this thread's member of the application's group; instance_id: see static_instance_id."""
        member_config, network = self._member_settings(client_id, instance_id)
        return GroupMember(member_config, network, assign, self._clock)

    def get_streams_group_member(
        self, client_id: str, topology: StreamsTopology, instance_id: str | None = None
    ) -> StreamsGroupMember:
        """Return this thread's member where the broker assigns the tasks (``group.protocol=streams``, KIP-1071)."""
        member_config, network = self._member_settings(client_id, instance_id)
        rack = self._config["client.rack"] or None
        return StreamsGroupMember(member_config, network, topology, StreamsGroupBytes(), self._clock, rack)

    def get_offsets_reader(self, client_id: str, timeout_ms: int) -> GroupOffsetsReader:
        """Return what reads the group's committed offsets without being a member; timeout_ms: for one question."""
        _, network = self._member_settings(client_id, None)
        return GroupOffsetsReader(self._config["application.id"], network, timeout_ms, self._clock)

    def _member_settings(self, client_id: str, instance_id: str | None) -> tuple[GroupMemberConfig, NetworkSettings]:
        """Return the settings of a group member, and those of its connections."""
        config = self._config
        settings = {
            **self._common(client_id, "consumer.", "main.consumer."),
            **self._given("consumer.", "main.consumer."),
        }
        member_config = GroupMemberConfig(
            config["application.id"],
            instance_id,
            session_timeout_ms=config["session.timeout.ms"],
            heartbeat_interval_ms=config["heartbeat.interval.ms"],
            max_poll_interval_ms=config["max.poll.interval.ms"],
            unavailable_timeout_ms=max(config["task.timeout.ms"], config["session.timeout.ms"]),
            committed_wait_ms=COMMITTED_WAIT_MS,
            process_id_file="" if config["group.instance.id"] else str(process_id_file(config)),
        )
        return member_config, network_settings(settings)

    def _common(self, client_id: str, *prefixes: str) -> dict[str, Any]:
        """Return what all clients share; checks the TLS and SASL keys given behind the prefixes as well."""
        shared = self._config.common_client_settings()
        check_security_keys({**shared, **self._given(*prefixes)})
        settings = {_RENAMED.get(name, name): value for name, value in shared.items() if value not in (None, "")}
        return {**settings, "client.id": client_id}

    def _given(self, *prefixes: str) -> dict[str, Any]:
        """Return what was given behind the prefixes, the last one wins, but for keys that StreamsConfig resolves."""
        return {
            _RENAMED.get(name, name): value
            for prefix in prefixes
            for name, value in self._config.with_prefix(prefix).items()
            if not (prefix in _RESOLVED and name in KEYS and KEYS[name].client)
        }


def static_instance_id(config: StreamsConfig, process_id: object, slot: int) -> str | None:
    """Return the ``group.instance.id`` of a slot, None for a dynamic member.

    ``<group.instance.id>-<slot>`` where that is configured; else, with ``penstock.static.membership``, a name that no
    other host of the application has: ``<application.id>-<process id>-<slot>``. process_id: the one that the state
    directory keeps, so that a replaced process and a restarted application come back as the same members.
    """
    if config["group.instance.id"]:
        return f"{config['group.instance.id']}-{slot}"
    if config["penstock.static.membership"]:
        return f"{config['application.id']}-{process_id}-{slot}"
    return None


def process_id_file(config: StreamsConfig) -> Path:
    """Return where this host keeps the application's process id."""
    return Path(config["state.dir"], config["application.id"], PROCESS_FILE_NAME)
