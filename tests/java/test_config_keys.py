"""Every key of a properties file of Kafka Streams is accepted, with its meaning or a reason.

Keys of a client are tried with its prefix, and without, as Kafka Streams accepts them.
"""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock import StreamsConfig
from penstock.clients.connection.security import is_security_key
from penstock.topology.config.client_keys import RENAMED, UNPREFIXED, WITHOUT_EFFECT
from penstock.topology.config.config_keys import KEYS
from penstock.topology.errors import ConfigError
from penstock.workers.thread.client_supplier import KafkaClientSupplier
from tests.java.conftest import driver_program
from tests.java.handover import ROOT
from tests.java.versions import is_since

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_since((4, 4)), reason="the keys are those of 4.4"),
]
REQUIRED = {"application.id": "app", "bootstrap.servers": "localhost:1"}
#: Values of keys without a default, by type.
OF_TYPE = {"STRING": "word", "PASSWORD": "word", "INT": "7", "LONG": "7", "LIST": "a,b", "CLASS": "java.util.ArrayList"}
#: Values of keys whose type does not say what is valid.
VALUES = {
    **REQUIRED,
    "application.server": "localhost:1",
    "default.key.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
    "default.value.serde": "org.apache.kafka.common.serialization.Serdes$LongSerde",
    "default.list.key.serde.inner": "org.apache.kafka.common.serialization.Serdes$StringSerde",
    "default.list.value.serde.inner": "org.apache.kafka.common.serialization.Serdes$StringSerde",
    "task.assignor.class": "org.apache.kafka.streams.processor.assignment.assignors.StickyTaskAssignor",
    "upgrade.from": "4.3",
    "window.size.ms": "5",
}
#: Java classes for which a configuration here needs a function or class of Python: refused, and the error says so.
JAVA_CLASSES = {
    "default.client.supplier",
    "processor.wrapper.class",
    "rocksdb.config.setter",
}


TAGS = {"client.tag.a": "zone", "client.tag.b": "cluster"}


class Key(NamedTuple):
    owner: str
    name: str
    type: str
    default: str
    valid: str

    @property
    def value(self) -> str:
        return VALUES.get(self.name) or self.default or OF_TYPE[self.type]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[Key]:
    command = driver_program(Path(__file__).with_name("ConfigKeysProgram.java"), tmp_path_factory.mktemp("classes"))
    run = subprocess.run(command, capture_output=True, check=True, cwd=ROOT, text=True)
    return [Key(*line.split("|", 4)) for line in run.stdout.splitlines()]


def of_clients(keys: list[Key]) -> Iterator[Key]:
    return (key for key in keys if key.owner != "streams" and not is_security_key(key.name))


def test_each_key_of_kafka_streams_is_in_the_table(keys: list[Key]) -> None:
    assert len([key for key in keys if key.owner == "streams"]) == 79
    assert [key.name for key in keys if key.owner == "streams" and key.name not in KEYS] == []


def test_each_default_and_each_word_of_kafka_streams_is_a_valid_value(keys: list[Key]) -> None:
    for key in keys:
        if key.owner != "streams" or key.name in JAVA_CLASSES:
            continue
        words = re.fullmatch(r"(?:\(case insensitive\) )?\[([\w., -]+)\]", key.valid)
        values = words[1].split(", ") if words and "..." not in words[1] else []
        for value in [key.value, *values]:
            StreamsConfig({**REQUIRED, **TAGS, key.name: "" if value == "null" else value})


@pytest.mark.parametrize("name", sorted(JAVA_CLASSES))
def test_a_java_class_is_refused_with_what_to_give_instead(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{re.escape(name)}=.*module:attribute"):
        StreamsConfig({name: "org.example.Class"})


def test_keys_of_clients_need_no_prefix(keys: list[Key]) -> None:
    for prefix, names in UNPREFIXED.items():
        owner = prefix.removesuffix(".")
        theirs = {key.name for key in of_clients(keys) if key.owner == owner}
        assert names == theirs - KEYS.keys(), owner
    everyones = {key.name for key in of_clients(keys)}
    assert WITHOUT_EFFECT.keys() <= everyones
    assert RENAMED.keys() <= everyones


@pytest.mark.parametrize("prefixed", [True, False])
def test_each_client_can_be_made_with_each_of_its_keys(
    keys: list[Key], prefixed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for key in of_clients(keys):
        name = f"{key.owner}.{key.name}" if prefixed else key.name
        caplog.clear()
        supplier = KafkaClientSupplier(StreamsConfig({**REQUIRED, name: key.value, "enable.metrics.push": False}))
        make: dict[str, Any] = {
            "consumer": supplier.get_consumer,
            "producer": supplier.get_producer,
            "admin": supplier.get_admin,
        }
        make[key.owner]("made").close()
        if key.name in WITHOUT_EFFECT and name not in KEYS:
            assert f"{name} has no effect: {WITHOUT_EFFECT[key.name]}" in caplog.text
        else:
            warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
            assert not [text for text in warnings if "no effect" not in text and "Connection refused" not in text]


def test_each_security_key_that_is_refused_has_a_reason(keys: list[Key]) -> None:
    theirs = [key for key in keys if is_security_key(key.name) and key.owner != "streams"]
    refused = {name: refusal(name, key.value) for key in theirs for name in (key.name, f"{key.owner}.{key.name}")}
    assert "use a PEM file" in (refused["ssl.truststore.location"] or "")
    assert refused["ssl.endpoint.identification.algorithm"] is None
    kept = {name: reason for name, reason in refused.items() if reason is not None}
    assert [name for name, reason in kept.items() if name.partition(".")[2] not in reason] == []


def refusal(name: str, value: str) -> str | None:
    """Return why a client cannot have a setting, None if it can."""
    try:
        KafkaClientSupplier(StreamsConfig({**REQUIRED, name: value})).get_admin("made").close()
    except ConfigError as error:
        return str(error)
    return None
