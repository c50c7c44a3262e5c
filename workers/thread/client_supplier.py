"""Creates all Kafka clients of a stream thread (Kafka Streams: DefaultKafkaClientSupplier).

By default Penstock's own client reads and writes. librdkafka, behind the same protocols Reader and Writer, is used if
it is configured, and for settings that Penstock does not know. All clients, including the
group member and the admin client, get the same brokers and the same TLS and SASL settings. Settings with a client's
prefix override the ones set here, except those that the runtime depends on.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.clients import librdkafka
from penstock.clients.clock import Clock, SystemClock
from penstock.clients.cluster.admin import Admin, KafkaAdmin
from penstock.clients.cluster.brokers import KafkaBrokers
from penstock.clients.connection.security import check_security_keys, is_security_key
from penstock.clients.group.classic_protocol import ClassicProtocol
from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.membership import Assign
from penstock.clients.group.offsets_reader import GroupOffsetsReader
from penstock.clients.group.requests import GroupMemberConfig
from penstock.clients.group.streams_protocol import StreamsProtocol
from penstock.clients.group.streams_values import StreamsTopology
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.network_settings import NETWORK_FIELDS, NetworkSettings, network_settings
from penstock.clients.reading import fetch_settings as fetching
from penstock.clients.reading.fetcher import Fetcher
from penstock.clients.reading.reader import Reader
from penstock.clients.telemetry.client_telemetry import ClientTelemetry
from penstock.clients.writing import produce_settings as producing
from penstock.clients.writing.kafka_producer import KafkaProducer
from penstock.clients.writing.transactional_producer import TransactionalKafkaProducer
from penstock.clients.writing.writer import Writer
from penstock.statestore.directory.state_directory import PROCESS_FILE_NAME
from penstock.topology.config.client_keys import of_client, renamed
from penstock.topology.config.config_keys import KEYS
from penstock.topology.config.streams_config import StreamsConfig

from ..group.assignment.subscription_info import user_host

if TYPE_CHECKING:
    from penstock.clients.librdkafka import AdminClient, Consumer, Producer

LOG = logging.getLogger(__name__)

#: How long a stream thread waits for committed offsets before it continues with its other work, in ms.
COMMITTED_WAIT_MS = 500
#: Defaults that a prefixed setting may override.
_CONSUMER_DEFAULTS: Mapping[str, object] = {
    "check.crcs": True,  # as in Java's consumer; a corrupt record must not get into a store
    "fetch.wait.max.ms": 100,  # a partition assigned during a pending fetch is fetched only after it
    "fetch.queue.backoff.ms": 10,  # librdkafka's 1000: with full queues it sleeps longer than it takes to empty them
}
#: Settings that the runtime depends on: GroupMember handles membership, positions are explicit, ends are reported as
#: events.
_CONSUMER_FIXED: Mapping[str, object] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "allow.auto.create.topics": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "max.poll.interval.ms": 86_400_000,  # GroupMember enforces it; this is librdkafka's maximum
}
#: Partitions must equal those that Java's producer chooses; otherwise a key's records end in different partitions.
_PRODUCER_FIXED: Mapping[str, object] = {"partitioner": "murmur2_random"}
#: Prefixes whose keys StreamsConfig resolves itself (max.poll.records, linger.ms …).
_RESOLVED = ("consumer.", "main.consumer.", "producer.")
#: The ones that librdkafka's producer knows.
_FOR_PRODUCER = ("linger.ms", "acks", "enable.idempotence", "delivery.timeout.ms")
#: Attributes that describe a client in pushed metrics, by the settings with their values (Kafka:
#: ClientTelemetryProvider). ThreadTelemetry adds the group's.
_LABELS = {"transactional.id": "transactional_id", "client.rack": "client_rack"}
#: The first partition for records without keys.
_SEEDS = 1 << 16


class KafkaClientSupplier:
    """Creates clients from one configuration; ``default.client.supplier`` may name a subclass.

    Instead of a Reader or Writer, a subclass may also return a confluent_kafka.Consumer or Producer, or an object with
    its methods. confluent_consumer() and confluent_producer() create such clients from the configuration.

    Raises ConfigError for settings that a client refuses; it names the key.
    """

    def __init__(self, config: StreamsConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._telemetries: dict[str, ClientTelemetry] = {}

    def telemetries(self) -> Mapping[str, ClientTelemetry]:
        """Return what pushes the metrics of the readers and writers to a broker, by client id (KIP-714).

        Empty with ``enable.metrics.push=false``. Clients of librdkafka are not in it: they push librdkafka's metrics.
        """
        return self._telemetries

    def get_consumer(self, client_id: str) -> Reader | Consumer:
        """Return the reader of input topics; see the class for the allowed types."""
        return self._reader(client_id, "consumer.", "main.consumer.")

    def get_restore_consumer(self, client_id: str) -> Reader | Consumer:
        """Return the reader of changelogs, for restores and standby tasks."""
        return self._reader(client_id, "consumer.", "restore.consumer.")

    def get_global_consumer(self, client_id: str) -> Reader | Consumer:
        """Return the reader of the topics of global tables."""
        return self._reader(client_id, "consumer.", "global.consumer.")

    def _reader(self, client_id: str, *prefixes: str) -> Reader:
        settings = self._consumer_settings(client_id, *prefixes)
        unknown = fetching.unknown_settings(settings)
        if not self._is_own("penstock.fetcher", "Reading", unknown):
            return librdkafka.make_reader(settings)
        log = PrefixedLogger("penstock.clients.reading", f"[{client_id}] ")
        found = fetching.fetch_settings(settings, max_record_bytes=self._config["penstock.record.max.bytes"])
        brokers = KafkaBrokers(found)
        self._add_telemetry(brokers, settings, *prefixes)
        return Fetcher(brokers, found, self._clock, log)

    def _add_telemetry(self, brokers: KafkaBrokers, settings: Mapping[str, object], *prefixes: str) -> None:
        """Push the metrics of a client with these settings, unless that is disabled."""
        if not self._config.of_client("enable.metrics.push", *prefixes):
            return
        client_id = str(settings["client.id"])
        labels = {label: str(settings[key]) for key, label in _LABELS.items() if settings.get(key)}
        self._telemetries[client_id] = ClientTelemetry(client_id, brokers, labels, self._clock, random.Random())

    def _is_own(self, key: str, doing: str, unknown: Collection[str]) -> bool:
        """Return whether Penstock's own client is used; the log names the reason if not."""
        if self._config[key] == "librdkafka":
            return False
        if unknown:
            LOG.info("%s with librdkafka, which knows %s", doing, ", ".join(unknown))
        return not unknown

    def get_producer(self, client_id: str, transactional_id: str | None = None) -> Writer | Producer:
        """Return the writer: idempotent, with Java's partitioner.

        transactional_id: for exactly-once, otherwise None. Transactions are not initialized yet.
        """
        settings = self.producer_settings(client_id, transactional_id)
        unknown = producing.unknown_settings(settings)
        if not self._is_own("penstock.sender", "Writing", unknown):
            return librdkafka.make_writer(settings)
        found = producing.produce_settings(settings)
        kind = KafkaProducer if transactional_id is None else TransactionalKafkaProducer
        log = PrefixedLogger("penstock.clients.writing", f"[{client_id}] ")
        brokers = KafkaBrokers(found, creates_topics=True)
        self._add_telemetry(brokers, settings, "producer.")
        return kind(brokers, found, self._clock, log, random.randrange(_SEEDS))

    def confluent_consumer(self, client_id: str) -> Consumer:
        """Return a confluent_kafka.Consumer for assign(), with the main consumer's configuration."""
        return librdkafka.make_consumer(self._consumer_settings(client_id, "consumer.", "main.consumer."))

    def command_consumer(self, client_id: str) -> Consumer:
        """Return a confluent_kafka.Consumer as confluent_consumer() does, for the command line."""
        return librdkafka.make_command_consumer(self._consumer_settings(client_id, "consumer.", "main.consumer."))

    def confluent_producer(self, client_id: str, transactional_id: str | None = None) -> Producer:
        """Return a confluent_kafka.Producer; see get_producer."""
        return librdkafka.make_producer(self.producer_settings(client_id, transactional_id))

    def _consumer_settings(self, client_id: str, *prefixes: str) -> dict[str, object]:
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

    def producer_settings(self, client_id: str, transactional_id: str | None = None) -> dict[str, object]:
        """Return the settings of a producer, by librdkafka's names."""
        config = self._config
        own = {name: config[name] for name in _FOR_PRODUCER}
        if transactional_id is not None:
            # librdkafka requires the delivery timeout to be at most the transaction timeout.
            del own["delivery.timeout.ms"]
            own |= {"transactional.id": transactional_id, "transaction.timeout.ms": config["transaction.timeout.ms"]}
        return {**self._common(client_id, "producer."), **own, **self._given("producer."), **_PRODUCER_FIXED}

    def get_admin(self, client_id: str) -> Admin:
        """Return the admin client: it describes topics, lists offsets, creates internal topics, deletes records."""
        given = self._given("admin.")
        settings = {**self._common(client_id, "admin."), **given}
        unknown = sorted(key for key in given if key not in NETWORK_FIELDS and not is_security_key(key))
        if unknown:
            LOG.info("Only the command line's admin client, which is librdkafka's, knows %s", ", ".join(unknown))
        return KafkaAdmin(network_settings(settings))

    def get_admin_telemetry(self, client_id: str) -> tuple[KafkaBrokers, ClientTelemetry]:
        """Return what pushes the application's own metrics, as an admin client (KIP-1076), and its connections.

        The caller closes both.
        """
        settings = {**self._common(client_id, "admin."), **self._given("admin.")}
        brokers = KafkaBrokers(network_settings(settings))
        return brokers, ClientTelemetry(client_id, brokers, {}, self._clock, random.Random())

    def get_admin_client(self, client_id: str) -> AdminClient:
        """Return librdkafka's admin client, which the command line uses for groups and for deleting topics."""
        return librdkafka.make_admin({**self._common(client_id, "admin."), **self._given("admin.")})

    def get_group_member(self, client_id: str, assign: Assign, instance_id: str | None = None) -> GroupMember:
        """Return this thread's member of the application's group; instance_id: see static_instance_id."""
        member_config, network = self._member_settings(client_id, instance_id)
        return GroupMember(
            member_config, network, self._clock, partial(ClassicProtocol, assign=assign, host_of=user_host)
        )

    def get_streams_group_member(
        self, client_id: str, topology: StreamsTopology, instance_id: str | None = None
    ) -> GroupMember:
        """Return this thread's member of a streams group, where the broker assigns tasks (``group.protocol=streams``,
        KIP-1071).
        """
        member_config, network = self._member_settings(client_id, instance_id)
        rack = self._config["client.rack"] or None
        return GroupMember(
            member_config, network, self._clock, partial(StreamsProtocol, topology=topology, rack_id=rack)
        )

    def get_offsets_reader(self, client_id: str, timeout_ms: int) -> GroupOffsetsReader:
        """Return a reader of the group's committed offsets that is no member; timeout_ms: per request."""
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

    def _common(self, client_id: str, *prefixes: str) -> dict[str, object]:
        """Return the settings shared by all clients; also checks TLS and SASL keys with prefixes."""
        shared = self._config.common_client_settings()
        check_security_keys({**shared, **self._given(*prefixes)})
        return {**renamed({n: value for n, value in shared.items() if value not in (None, "")}), "client.id": client_id}

    def _given(self, *prefixes: str) -> dict[str, object]:
        """Return a client's settings by librdkafka's names (the last prefix wins), without keys that StreamsConfig
        resolves, and those without effect.
        """
        given: dict[str, object] = {}
        for prefix in prefixes:
            mine = self._config.with_prefix(prefix).items()
            unresolved = {n: v for n, v in mine if not (prefix in _RESOLVED and n in KEYS and KEYS[n].client)}
            given |= of_client(unresolved)
        return given


def configured_supplier(config: StreamsConfig, clock: Clock) -> KafkaClientSupplier:
    """Return the object named by ``default.client.supplier``, by default Penstock's clients."""
    supplier: type[KafkaClientSupplier] = config["default.client.supplier"] or KafkaClientSupplier
    return supplier(config, clock)


def static_instance_id(config: StreamsConfig, process_id: object, slot: int) -> str | None:
    """Return the ``group.instance.id`` of a slot, None for a dynamic member.

    ``<group.instance.id>-<slot>`` if that is configured. Otherwise, with ``penstock.static.membership``, a name that no
    other host has: ``<application.id>-<process id>-<slot>``. process_id: from the state directory, so a replaced
    process or a restarted application joins as the same member.
    """
    if config["group.instance.id"]:
        return f"{config['group.instance.id']}-{slot}"
    if config["penstock.static.membership"]:
        return f"{config['application.id']}-{process_id}-{slot}"
    return None


def process_id_file(config: StreamsConfig) -> Path:
    """Return the path of the file with the application's process id on this host."""
    return Path(config["state.dir"], config["application.id"], PROCESS_FILE_NAME)
