"""The keys of Kafka's own clients (4.4), which a configuration of Kafka Streams may have with or without a prefix.

A key that is in no table of this file has one name and one meaning in Kafka and here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..errors import ConfigError


class Renamed(NamedTuple):
    """The name of a setting in librdkafka, and here; convert: from Kafka's unit to that one's."""

    name: str
    convert: Callable[[Any], Any] = lambda value: value


#: Kafka's names of settings that have another one here, which is librdkafka's.
RENAMED: Mapping[str, Renamed] = {
    "request.timeout.ms": Renamed("socket.timeout.ms"),
    "receive.buffer.bytes": Renamed("socket.receive.buffer.bytes"),
    "send.buffer.bytes": Renamed("socket.send.buffer.bytes"),
    "fetch.max.wait.ms": Renamed("fetch.wait.max.ms"),
    "max.request.size": Renamed("message.max.bytes"),
    "buffer.memory": Renamed("queue.buffering.max.kbytes", lambda size: max(1, int(size) // 1024)),
}

_PLUGIN = "a class of Java; see default.client.supplier"
_SERDE = "serdes are those of the operators"
_RUNTIME = "each stream thread sets its own"
_PARTITIONS = "partitions are those of Kafka Streams: by the key, or by a partitioner of the topology"
_MEASURED = "metrics are those of the application, without the prefix"
#: Settings of a client that have no effect here, with the reason.
WITHOUT_EFFECT: Mapping[str, str] = {
    "allow.auto.create.topics": "input topics are never created",
    "auto.commit.interval.ms": "stream threads commit; see commit.interval.ms",
    "bootstrap.controllers": "requests go to brokers",
    "bootstrap.resolve.timeout.ms": "names are resolved for each connection, and again if that fails",
    "buffer.memory.allocation.strategy": "batches get memory as records are added",
    "client.id": "clients are named after client.id without a prefix, and the stream thread",
    "compression.gzip.level": "the codec's default level is used",
    "compression.lz4.level": "the codec's default level is used",
    "compression.zstd.level": "the codec's default level is used",
    "config.providers": "Java's configuration providers; use environment variables",
    "default.api.timeout.ms": "each request has its deadline; see task.timeout.ms",
    "enable.auto.commit": "stream threads commit; see commit.interval.ms",
    "exclude.internal.topics": "patterns never match the brokers' internal topics",
    "group.id": "it is application.id",
    "group.protocol": "it is group.protocol without a prefix",
    "group.remote.assignor": "tasks are assigned, not partitions; see group.protocol",
    "interceptor.classes": _PLUGIN,
    "internal.throw.on.fetch.stable.offset.unsupported": "internal to Kafka",
    "key.deserializer": _SERDE,
    "key.serializer": _SERDE,
    "max.block.ms": "a full buffer pauses the stream thread's reading; see task.timeout.ms",
    "metadata.max.idle.ms": "metadata is kept",
    "metadata.recovery.rebootstrap.trigger.ms": "it is the key without a prefix",
    "metadata.recovery.strategy": "it is the key without a prefix",
    "metric.reporters": "Java's reporters; KafkaStreams.metrics() has them here",
    "metrics.num.samples": _MEASURED,
    "metrics.recording.level": _MEASURED,
    "metrics.sample.window.ms": _MEASURED,
    "partition.assignment.strategy": "tasks are assigned, not partitions; see task.assignor.class",
    "partitioner.adaptive.partitioning.enable": _PARTITIONS,
    "partitioner.availability.timeout.ms": _PARTITIONS,
    "partitioner.class": _PARTITIONS,
    "partitioner.ignore.keys": _PARTITIONS,
    "partitioner.rack.aware": _PARTITIONS,
    "security.providers": "a class of Java",
    "share.acknowledgement.mode": "of share groups",
    "share.acquire.mode": "of share groups",
    "socket.connection.setup.timeout.max.ms": "each attempt has socket.connection.setup.timeout.ms",
    "transaction.two.phase.commit.enable": "the broker decides how long a transaction may stay open",
    "transactional.id": _RUNTIME,
    "value.deserializer": _SERDE,
    "value.serializer": _SERDE,
}

_EACH = (
    *("bootstrap.resolve.timeout.ms", "client.dns.lookup", "retry.backoff.max.ms", "security.providers"),
    *("socket.connection.setup.timeout.max.ms", "socket.connection.setup.timeout.ms"),
)
#: The keys that may have no prefix, by client; those of config_keys.KEYS, and of TLS and SASL, are not among them.
UNPREFIXED: Mapping[str, frozenset[str]] = {
    "consumer.": frozenset(
        (
            *_EACH,
            *("allow.auto.create.topics", "auto.commit.interval.ms", "check.crcs", "default.api.timeout.ms"),
            "interceptor.classes",
            *("enable.auto.commit", "exclude.internal.topics", "fetch.max.bytes", "fetch.max.wait.ms"),
            *("fetch.min.bytes", "group.id", "group.remote.assignor", "key.deserializer", "value.deserializer"),
            *("internal.throw.on.fetch.stable.offset.unsupported", "max.partition.fetch.bytes"),
            *("partition.assignment.strategy", "share.acknowledgement.mode", "share.acquire.mode"),
        )
    ),
    "producer.": frozenset(
        (
            *_EACH,
            "interceptor.classes",
            *("batch.size", "buffer.memory", "buffer.memory.allocation.strategy", "compression.gzip.level"),
            *("compression.lz4.level", "compression.type", "compression.zstd.level", "key.serializer"),
            *("max.block.ms", "max.in.flight.requests.per.connection", "max.request.size", "metadata.max.idle.ms"),
            *("partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms", "partitioner.class"),
            *("partitioner.ignore.keys", "partitioner.rack.aware", "retries", "transaction.two.phase.commit.enable"),
            *("transactional.id", "value.serializer"),
        )
    ),
    "admin.": frozenset((*_EACH, "bootstrap.controllers", "default.api.timeout.ms", "retries")),
}


def renamed(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings by their names here; raises ConfigError for a size that is no number."""
    return dict(_renamed(name, value) for name, value in settings.items())


def of_client(settings: Mapping[str, object]) -> dict[str, object]:
    """Return a client's settings by their names here, without those that have no effect; raises as renamed()."""
    return renamed({name: value for name, value in settings.items() if name not in WITHOUT_EFFECT})


def _renamed(name: str, value: object) -> tuple[str, object]:
    if name not in RENAMED:
        return name, value
    found = RENAMED[name]
    try:
        return found.name, found.convert(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}={value!r} is not valid: expected a whole number.") from None
