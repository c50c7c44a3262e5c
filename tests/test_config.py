"""StreamsConfig: typed effective values, their origin, and errors that say what to do."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from penstock.topology.config.config_keys import KEYS
from penstock.topology.config.streams_config import StreamsConfig, verify_topology_optimization_configs
from penstock.topology.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("num.stream.threads", 1),
        ("commit.interval.ms", 30_000),
        ("num.standby.replicas", 0),
        ("max.warmup.replicas", 2),
        ("acceptable.recovery.lag", 10_000),
        ("probing.rebalance.interval.ms", 600_000),
        ("poll.ms", 100),
        ("buffered.records.per.partition", 1000),
        ("statestore.cache.max.bytes", 10_485_760),
        ("max.task.idle.ms", 0),
        ("task.timeout.ms", 300_000),
        ("state.cleanup.delay.ms", 600_000),
        ("state.cleanup.dir.max.age.ms", -1),
        ("repartition.purge.interval.ms", 30_000),
        ("windowstore.changelog.additional.retention.ms", 86_400_000),
        ("replication.factor", -1),
        ("log.summary.interval.ms", 120_000),
        ("group.protocol", "classic"),
        ("topology.optimization", "none"),
        ("upgrade.from", None),
        ("metrics.recording.level", "INFO"),
        ("rack.aware.assignment.strategy", "none"),
        ("auto.offset.reset", "earliest"),
        ("linger.ms", 100),
        ("deserialization.exception.handler", "fail"),
    ],
)
def test_the_defaults_are_those_of_kafka_streams(key: str, default: Any) -> None:
    config = StreamsConfig()
    assert config[key] == default
    assert config.origin(key).startswith("default")


def test_the_batch_size_has_penstocks_own_default() -> None:
    assert StreamsConfig()["max.poll.records"] == 5000  # see config_keys.py


def test_a_transaction_timeout_shorter_than_the_commit_interval_is_refused() -> None:
    """As in Kafka Streams (verifyEOSTransactionTimeoutCompatibility)."""
    given = {"application.id": "app", "bootstrap.servers": "x:1", "processing.guarantee": "exactly_once_v2"}
    with pytest.raises(ConfigError, match=r"commit.interval.ms=20000 is above transaction.timeout.ms=10000"):
        StreamsConfig({**given, "commit.interval.ms": 20_000})
    StreamsConfig({**given, "commit.interval.ms": 20_000, "producer.transaction.timeout.ms": 20_000})
    StreamsConfig({**given, "processing.guarantee": "at_least_once", "commit.interval.ms": 100_000})


def test_exactly_once_changes_the_defaults_that_depend_on_it() -> None:
    config = StreamsConfig({"processing.guarantee": "exactly_once_v2"})
    assert config["commit.interval.ms"] == 100
    assert config["transaction.timeout.ms"] == 10_000
    assert config["isolation.level"] == "read_committed"
    assert config.origin("commit.interval.ms") == "default by processing.guarantee"
    assert StreamsConfig({**config.originals(), "commit.interval.ms": 5})["commit.interval.ms"] == 5


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("commit.interval.ms", "250", 250),
        ("commit.interval.ms", timedelta(seconds=2), 2_000),
        ("errors.dead.letter.queue.topic.name", "", None),
        ("ensure.explicit.internal.resource.naming", "True", True),
        ("rack.aware.assignment.tags", [], []),
        ("bootstrap.servers", ["a:1", "b:2"], "a:1,b:2"),
        ("default.dsl.store", "IN_MEMORY", "in_memory"),
        ("dsl.store.suppliers.class", "org.x.BuiltInDslStoreSuppliers$InMemoryDslStoreSuppliers", "in_memory"),
        ("default.key.serde", "org.apache.kafka.common.serialization.Serdes$LongSerde", "int64"),
        (
            "deserialization.exception.handler",
            "org.apache.kafka.streams.errors.LogAndContinueExceptionHandler",
            "continue",
        ),
        ("default.timestamp.extractor", "org.x.WallclockTimestampExtractor", "WallclockTimestampExtractor"),
        ("group.protocol", "STREAMS", "streams"),
    ],
)
def test_values_may_be_text_or_typed(key: str, given: Any, value: Any) -> None:
    assert StreamsConfig({key: given})[key] == value


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        (
            "commit.interval.ms",
            "soon",
            "commit.interval.ms='soon' is not valid: expected a whole number of milliseconds",
        ),
        ("num.stream.threads", 0, "num.stream.threads=0 is not valid: expected a whole number, 1 or more"),
        ("num.stream.threads", True, "expected a whole number"),
        ("enable.metrics.push", "yes", "expected true or false"),
        ("main.consumer.enable.metrics.push", False, "Set both, or enable.metrics.push=false to push none"),
        ("admin.enable.metrics.push", False, "enable.metrics.push is true, but admin.enable.metrics.push is false"),
        ("processing.guarantee", "exactly_once", "expected text, one of at_least_once, exactly_once_v2"),
        ("consumer.max.poll.records", "many", "consumer.max.poll.records='many'"),
        ("application.id", "my app", "it names topics"),
        ("application.id", "..", "it names topics"),
        ("bootstrap.servers", "localhost", "host:port"),
        ("bootstrap.servers", "http://localhost:9092", "host:port without http://"),
        ("bootstrap.servers", "a:1, SSL://b:2", "host:port without http://"),
        ("application.server", "nonsense", "expected text, host:port, protocol://host:port, or nothing"),
        ("application.server", "host:", "host:port"),
        ("application.server", ":80", "host:port"),
        ("application.server", "host:80/", "host:port"),
        ("application.server", "a:80,b:81", "host:port"),
        ("topology.optimization", "all,none", "a list of optimizations"),
        ("default.key.serde", "strnig", "one of boolean, bytes, float32, float64, int16"),
        ("rack.aware.assignment.tags", "zone", "client.tag.zone"),
        ("penstock.worker.stall.timeout.ms", 1000, "must be above max.poll.interval.ms=300000"),
    ],
)
def test_the_error_for_a_wrong_value_says_what_is_expected(key: str, given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        StreamsConfig({key: given})
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("comit.interval.ms", "commit.interval.ms"), ("num.stream.thread", "num.stream.threads"), ("acks.all", "acks")],
)
def test_the_error_for_an_unknown_key_names_the_nearest_key(key: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"Did you mean {nearest}\\?"):
        StreamsConfig({key: 1})


def test_the_error_for_a_key_like_no_other_says_where_the_list_is() -> None:
    with pytest.raises(ConfigError, match="penstock config --all"):
        StreamsConfig({"zzz": 1})


def test_client_settings_are_passed_unchanged_without_their_prefix() -> None:
    config = StreamsConfig(
        {
            "consumer.fetch.min.bytes": "7",
            "main.consumer.debug": "cgrp",
            "ssl.ca.location": "/ca",
            "topic.segment.ms": 9,
        }
    )
    assert config.with_prefix("consumer.") == {"fetch.min.bytes": "7"}
    assert config.with_prefix("main.consumer.") == {"debug": "cgrp"}
    assert config.with_prefix("topic.") == {"segment.ms": 9}
    assert config.common_client_settings() == {"ssl.ca.location": "/ca"}


def test_the_most_specific_prefix_of_a_client_key_takes_precedence() -> None:
    values = {"max.poll.records": 1, "consumer.max.poll.records": 2, "main.consumer.max.poll.records": "3"}
    config = StreamsConfig(values, dict.fromkeys(values, "penstock.toml"))
    assert config["max.poll.records"] == 3
    assert config.origin("max.poll.records") == "penstock.toml (main.consumer.max.poll.records)"


def test_a_deprecated_key_sets_the_new_one_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert StreamsConfig({"cache.max.bytes.buffering": 5})["statestore.cache.max.bytes"] == 5
    assert "cache.max.bytes.buffering is deprecated; use statestore.cache.max.bytes." in caplog.text
    both = StreamsConfig({"cache.max.bytes.buffering": 5, "statestore.cache.max.bytes": 6})
    assert both["statestore.cache.max.bytes"] == 6


def test_a_key_that_nothing_reads_is_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    StreamsConfig({"config.providers": ["file"], "rack.aware.assignment.strategy": "none"})
    assert "config.providers has no effect: Java's configuration providers; use environment variables." in caplog.text
    assert "rack.aware" not in caplog.text  # the default, so no warning is needed


def test_the_error_for_a_missing_required_key_says_how_to_set_it() -> None:
    with pytest.raises(ConfigError) as raised:
        StreamsConfig({"bootstrap.servers": "a:1"}).require("application.id", "bootstrap.servers")
    assert "missing: application.id." in str(raised.value)
    assert "PENSTOCK_APPLICATION_ID" in str(raised.value)


def test_an_object_or_a_reference_is_accepted_for_kafkas_classes() -> None:
    assert StreamsConfig({"processing.exception.handler": print})["processing.exception.handler"] is print
    config = StreamsConfig({"processing.exception.handler": "json:dumps"})
    assert config["processing.exception.handler"].__module__ == "json"
    assert config.shown("processing.exception.handler") == "json:dumps"
    with pytest.raises(ConfigError, match="cannot be imported"):
        StreamsConfig({"processing.exception.handler": "json:nothing"})["processing.exception.handler"]


def test_a_config_maps_all_keys_and_can_be_pickled() -> None:
    config = StreamsConfig({"application.id": "a", "consumer.debug": "all"}, {"application.id": "file"})
    copy = pickle.loads(pickle.dumps(config))
    assert dict(copy) == dict(config)
    assert set(KEYS) < set(config)
    assert config.get("no.such.key") is None
    assert copy.origin("application.id") == "file"


def test_optimizations_have_the_values_of_kafka() -> None:
    all_three = {"reuse.ktable.source.topics", "merge.repartition.topics", "single.store.self.join"}
    assert verify_topology_optimization_configs("all") == all_three
    assert verify_topology_optimization_configs("none") == frozenset()
    assert verify_topology_optimization_configs("merge.repartition.topics") == {"merge.repartition.topics"}


@pytest.mark.parametrize("given", ["", "host:80", "http://host:80", "[::1]:80", "a_b:080", "host:99999"])
def test_an_address_that_kafka_streams_accepts(given: str) -> None:
    """KIP-1245: checked when the configuration is made, by Kafka's pattern."""
    assert StreamsConfig({"application.server": given})["application.server"] == given


def test_kafkas_settings_of_a_client_need_no_prefix(caplog: pytest.LogCaptureFixture) -> None:
    config = StreamsConfig(
        {"fetch.min.bytes": 7, "consumer.fetch.min.bytes": 8, "compression.type": "lz4", "key.serializer": "a.B"}
    )
    assert config.with_prefix("consumer.") == {"fetch.min.bytes": 8}
    assert config.with_prefix("producer.") == {"compression.type": "lz4", "key.serializer": "a.B"}
    assert config.with_prefix("admin.") == {}
    assert "key.serializer has no effect: serdes are those of the operators." in caplog.text
    assert "fetch.min.bytes" not in caplog.text


def test_a_java_class_without_effect_is_accepted() -> None:
    assert StreamsConfig({"default.list.key.serde.type": "java.util.ArrayList"})["default.list.key.serde.type"]
