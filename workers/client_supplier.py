"""The one place where a stream thread's Kafka clients are made (Kafka Streams: DefaultKafkaClientSupplier).

Consumers and producer are librdkafka's; the group member and the admin have connections of their own. All of them get
the same brokers and the same TLS and SASL settings. What is given behind a client's prefix reaches librdkafka unchanged
and wins over what is set here, but for what the runtime depends on.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer

from penstock.clients.clock import Clock, SystemClock
from penstock.clients.cluster.admin import Admin, KafkaAdmin
from penstock.clients.connection.security import check_security_keys, is_security_key
from penstock.clients.network_settings import NETWORK_FIELDS, NetworkSettings, network_settings
from penstock.clients.reading import fetch_settings as fetching
from penstock.clients.reading.fetch_settings import FetchSettings
from penstock.clients.writing import produce_settings as producing
from penstock.clients.writing.produce_settings import ProduceSettings
from penstock.statestore.state_directory import PROCESS_FILE_NAME
from penstock.topology.config_keys import KEYS
from penstock.topology.errors import ConfigError
from penstock.topology.streams_config import StreamsConfig

from .membership.group_member import GroupMember
from .membership.group_metadata import verify_layout
from .membership.membership import Assign
from .membership.offsets_reader import GroupOffsetsReader
from .membership.requests import GroupMemberConfig
from .membership.streams_group_member import StreamsGroupMember
from .membership.streams_topology import StreamsTopology
from .transactional_producer import TransactionalProducer

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Client = TypeVar("Client")

LOG = logging.getLogger(__name__)
#: librdkafka writes its log lines here; they come out when the client is polled.
CLIENT_LOGGER = logging.getLogger("penstock.librdkafka")

#: How long a stream thread waits for committed offsets before it goes on with its other work, in ms.
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
_PLUGINS = "plugin.library.paths"
#: Partitions must equal those that Java's producer chooses, else keys of two writers would not meet.
_PRODUCER_FIXED: Mapping[str, Any] = {"partitioner": "murmur2_random"}
#: Behind these StreamsConfig finds the keys of a client that stand in its table (max.poll.records, linger.ms …).
_RESOLVED = ("consumer.", "main.consumer.", "producer.")
#: Those of them that librdkafka's producer knows.
_FOR_PRODUCER = ("linger.ms", "acks", "enable.idempotence", "delivery.timeout.ms")
#: The shortest linger.ms with idempotence. librdkafka then has one request of a partition on its way, and its thread
#: turns in a busy loop while records that need not wait are behind it: on two cores it kept a broker from answering.
#: A quarter of a millisecond is enough for it to sleep, a tenth is not.
LEAST_LINGER_MS = 0.25


class AssignedConsumer(Consumer):
    """A Consumer for assign() only. fetch_settings: how a Fetcher reads in its place, None if librdkafka is to read."""

    fetch_settings: FetchSettings | None = None


class ReplaceableProducer(Producer):
    """A Producer. produce_settings: how a KafkaProducer writes in its place, None if librdkafka is to write."""

    produce_settings: ProduceSettings | None = None


class KafkaClientSupplier:
    """Makes clients from one configuration; ``default.client.supplier`` may name a subclass.

    Raises ConfigError for settings that a client refuses; it names the key.
    """

    def __init__(self, config: StreamsConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._layout_verified = False

    def get_consumer(self, client_id: str) -> Consumer:
        """Return the main consumer, for assign() only."""
        return self._consumer(client_id, "consumer.", "main.consumer.")

    def get_restore_consumer(self, client_id: str) -> Consumer:
        """Return a consumer for changelogs, of restoring active tasks and of standby tasks."""
        return self._consumer(client_id, "consumer.", "restore.consumer.")

    def get_global_consumer(self, client_id: str) -> Consumer:
        """Return a consumer for the topics of global tables."""
        return self._consumer(client_id, "consumer.", "global.consumer.")

    def _consumer(self, client_id: str, *prefixes: str) -> Consumer:
        settings = {
            **self._common(client_id, *prefixes),
            **_CONSUMER_DEFAULTS,
            "isolation.level": self._config["isolation.level"],
            "client.rack": self._config["client.rack"],  # fetches from a replica in the same rack (KIP-392)
            **self._given(*prefixes),
            **_CONSUMER_FIXED,
            "group.id": self._config["application.id"],
        }
        consumer = _make(AssignedConsumer, settings)
        if self._without_librdkafka("penstock.fetcher", "Reading", fetching.unknown_settings(settings)):
            consumer.fetch_settings = fetching.fetch_settings(settings)
        return consumer

    def _without_librdkafka(self, key: str, doing: str, unknown: Collection[str]) -> bool:
        """Return whether Penstock reads or writes by itself; the log says which settings stand against it."""
        if self._config[key] == "librdkafka":
            return False
        if unknown:
            LOG.info("%s with librdkafka, which knows %s", doing, ", ".join(unknown))
        return not unknown

    def get_producer(
        self, client_id: str, settings: Mapping[str, Any] | None = None, transactional_id: str | None = None
    ) -> Producer:
        """Return a producer: idempotent, with Java's partitioner.

        settings: what the caller needs (``on_delivery``, ``delivery.report.only.error``, ``plugin.library.paths``, to
        which the user's are added). transactional_id: for exactly-once; transactions are not initialized yet.
        """
        config = self._config
        own = {name: config[name] for name in _FOR_PRODUCER}
        linger_ms = own["linger.ms"]
        if own["enable.idempotence"]:
            own["linger.ms"] = max(linger_ms, LEAST_LINGER_MS)
        if transactional_id is not None:
            self._verify_layout()
            # librdkafka ends a record's time with its transaction's; a longer one is an error there.
            del own["delivery.timeout.ms"]
            own |= {"transactional.id": transactional_id, "transaction.timeout.ms": config["transaction.timeout.ms"]}
        given, settings = self._given("producer."), dict(settings or {})
        if given.get(_PLUGINS) and settings.get(_PLUGINS):
            settings[_PLUGINS] = f"{given[_PLUGINS]};{settings[_PLUGINS]}"
        settings = {**self._common(client_id, "producer."), **own, **given, **_PRODUCER_FIXED, **settings}
        kind: type[ReplaceableProducer | TransactionalProducer] = (
            ReplaceableProducer if transactional_id is None else TransactionalProducer
        )
        producer = _make(kind, settings)
        settings["linger.ms"] = linger_ms
        if self._without_librdkafka("penstock.sender", "Writing", producing.unknown_settings(settings)):
            producer.produce_settings = producing.produce_settings(settings)
        return producer

    def _verify_layout(self) -> None:
        """Check, before the first transaction, that the group fences the offsets in it; see group_metadata."""
        if not self._layout_verified:
            verify_layout()
            self._layout_verified = True

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
        from confluent_kafka.admin import AdminClient

        return _make(AdminClient, {**self._common(client_id, "admin."), **self._given("admin.")})

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
        return StreamsGroupMember(member_config, network, topology, self._clock, rack)

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
            retry_backoff_ms=config["retry.backoff.ms"],
            request_timeout_ms=config["request.timeout.ms"],
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


def static_instance_id(config: Mapping[str, Any], process_id: object, slot: int) -> str | None:
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


def process_id_file(config: Mapping[str, Any]) -> Path:
    """Return where this host keeps the application's process id."""
    return Path(config["state.dir"], config["application.id"], PROCESS_FILE_NAME)


def _make(client: type[Client], settings: Mapping[str, Any]) -> Client:
    try:
        return client(dict(settings), logger=CLIENT_LOGGER)  # type: ignore[call-arg]
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else error
        kinds = {Producer: "producer", Consumer: "consumer"}
        kind = next((name for base, name in kinds.items() if issubclass(client, base)), "admin client")
        raise ConfigError(f"librdkafka refuses the settings of the {kind}: {reason}.") from error
