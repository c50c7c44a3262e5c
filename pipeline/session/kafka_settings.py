"""The local engine's configuration translated for Spark's Kafka source, a Java client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import orjson

from penstock.topology.config.client_keys import of_client
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError
from penstock.topology.graph.processor_topology import AutoOffsetReset, ProcessorTopology, SourceNode

#: Spark's words for the first and the next record of a partition.
EARLIEST, LATEST = -2, -1

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
#: librdkafka's setting -> Java's name, and the conversion of its value. Files are read here: executors need not have
#: them.
_JAVA_SSL: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "ssl.ca.location": ("ssl.truststore.certificates", lambda path: _read(path, "ssl.ca.location")),
    "ssl.ca.pem": ("ssl.truststore.certificates", str),
    "ssl.certificate.location": (
        "ssl.keystore.certificate.chain",
        lambda path: _read(path, "ssl.certificate.location"),
    ),
    "ssl.certificate.pem": ("ssl.keystore.certificate.chain", str),
    "ssl.key.location": ("ssl.keystore.key", lambda path: _read(path, "ssl.key.location")),
    "ssl.key.pem": ("ssl.keystore.key", str),
    "ssl.key.password": ("ssl.key.password", str),
    "ssl.cipher.suites": ("ssl.cipher.suites", str),
    "ssl.endpoint.identification.algorithm": (
        "ssl.endpoint.identification.algorithm",
        lambda value: "" if value == "none" else value,
    ),
}
_SECURITY = ("ssl.", "sasl.", "security.")
_SASL = ("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password")
#: Common client settings that only librdkafka or the group's member knows.
_NOT_FOR_SPARK = ("enable.metrics.push", "client.id")

#: How Spark asks for end offsets until none is before those it has processed (SPARK-26267): Spark's three attempts, a
#: second apart, end too soon for a new leader, which may report older ones.
OFFSET_ATTEMPTS = {"fetchOffset.numRetries": "8", "fetchOffset.retryIntervalMs": "2000"}
#: Each of these attempts waits so long for brokers that are away: a minute and more by Kafka's defaults.
ATTEMPT_TIMEOUT_MS = "10000"


def source_options(
    topology: ProcessorTopology, config: StreamsConfig, counts: Mapping[str, int], topics: Iterable[str]
) -> dict[str, str]:
    """Return the options of Spark's Kafka source for one sub-topology; raises ConfigError for an unsupported setting.

    topics: what it reads, by full names; counts: their partitions. startingOffsets counts only without a checkpoint.
    """
    resets = _resets(topology, config)
    names = sorted(topics)
    starts = {
        name: dict.fromkeys(map(str, range(counts[name])), LATEST if resets.get(name) == "latest" else EARLIEST)
        for name in names
    }
    return {
        "subscribe": ",".join(names),
        "startingOffsets": orjson.dumps(starts).decode(),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        **OFFSET_ATTEMPTS,
        "maxOffsetsPerTrigger": str(config["penstock.spark.max.records.per.batch"]),
        **{f"kafka.{name}": value for name, value in java_settings(config).items()},
    }


def _resets(topology: ProcessorTopology, config: StreamsConfig) -> dict[str, str]:
    """Return the start offsets of the user's topics; internal ones begin at their first record."""
    return {
        topic: node.auto_offset_reset.value
        if isinstance(node.auto_offset_reset, AutoOffsetReset)
        else config["auto.offset.reset"]
        for node in topology.nodes.values()
        if isinstance(node, SourceNode)
        for topic in node.topics
        if topic not in topology.repartition_topics
    }


def java_settings(config: StreamsConfig) -> dict[str, str]:
    """Return the connection settings of Java's consumer; raises ConfigError for a key without a translation."""
    given = {**config.common_client_settings(), **_security_of(config.with_prefix("consumer."))}
    settings = {"isolation.level": str(config["isolation.level"]), "request.timeout.ms": ATTEMPT_TIMEOUT_MS}
    for name, value in given.items():
        if value in (None, "") or name in _SASL or name in _NOT_FOR_SPARK:
            continue
        if name in _JAVA_SSL:
            java, made = _JAVA_SSL[name]
            settings[java] = made(str(value))
        elif name.startswith(("ssl.", "sasl.")) or name == "enable.ssl.certificate.verification":
            raise ConfigError(f"{name} cannot be translated for Spark's Kafka source, which is a Java client.")
        else:
            settings[name] = str(value)
    if "ssl.truststore.certificates" in settings:
        settings["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.certificate.chain" in settings:
        settings["ssl.keystore.type"] = "PEM"
    # Java's admin client refuses a shorter one than request.timeout.ms.
    settings["default.api.timeout.ms"] = settings["request.timeout.ms"]
    return settings | _java_sasl(given)


def _security_of(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of connections' security."""
    return {name: value for name, value in of_client(settings).items() if name.startswith(_SECURITY)}


def _java_sasl(given: Mapping[str, object]) -> dict[str, str]:
    if not str(given.get("security.protocol") or "").upper().startswith("SASL"):
        return {}
    mechanism = str(given.get("sasl.mechanism") or given.get("sasl.mechanisms") or "GSSAPI").upper()
    if mechanism not in _LOGIN_MODULES:
        raise ConfigError(
            f"sasl.mechanism={mechanism} cannot be translated for Spark's Kafka source: use PLAIN or SCRAM."
        )
    user, password = (_quoted(str(given.get(name) or "")) for name in ("sasl.username", "sasl.password"))
    jaas = f"{_LOGIN_MODULES[mechanism]} required username={user} password={password};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _read(path: str, key: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}={path} cannot be read: {error}.") from error
