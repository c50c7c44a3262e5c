"""Creates confluent-kafka's clients, and Readers and Writers over them. settings: by librdkafka's names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from penstock.topology.errors import ConfigError

from .group_metadata import verify_layout
from .reader import LibrdkafkaReader
from .renewed_files import RenewedFiles
from .writer import LibrdkafkaWriter

Client = TypeVar("Client")

#: The logger of librdkafka's log lines; they are emitted when the client is polled.
CLIENT_LOGGER = logging.getLogger("penstock.librdkafka")
#: The minimum linger.ms with idempotence. librdkafka then has one request per partition in flight, and without linger
#: its thread spins while records wait behind that request; on two cores this kept a broker from answering.
#: With 0.25 ms the thread sleeps, with 0.1 ms it does not.
LEAST_LINGER_MS = 0.25
#: Settings of all clients, which the configuration may override. librdkafka tries the next address of a name only after
#: this timeout, 30 s by default; commands wait 10 s for a broker.
_DEFAULTS: Mapping[str, object] = {"socket.connection.setup.timeout.ms": 4_000}
#: Those of a command's clients. librdkafka tries the addresses of a name in turn as long as it keeps them. After
#: broker.address.ttl (1 s by default), and at each start from bootstrap.servers, it resolves the name again, in another
#: order, and may try the same silent address once more.
_DEFAULTS_OF_COMMANDS: Mapping[str, object] = {"broker.address.ttl": 10_000, "metadata.recovery.strategy": "none"}


def make_reader(settings: Mapping[str, object]) -> LibrdkafkaReader:
    """Return a Reader; raises as make_consumer."""
    return LibrdkafkaReader(make_consumer(settings), RenewedFiles(settings))


def make_writer(settings: Mapping[str, object]) -> LibrdkafkaWriter:
    """Return a Writer; raises as make_producer."""
    # Success reports would cost half as much as the send itself; flush() confirms all records at once.
    producer = make_producer({"delivery.report.only.error": True, **settings})
    return LibrdkafkaWriter(producer, RenewedFiles(settings))


def make_consumer(settings: Mapping[str, object]) -> Consumer:
    """Return a Consumer. Raises ConfigError, which names the key, for settings that librdkafka rejects."""
    return _make(Consumer, "consumer", settings)


def make_command_consumer(settings: Mapping[str, object]) -> Consumer:
    """Return a Consumer that lives for one command. Raises ConfigError as make_consumer."""
    return make_consumer({**_DEFAULTS_OF_COMMANDS, **settings})


def make_producer(settings: Mapping[str, Any]) -> Producer:
    """Return a Producer. Raises ConfigError as make_consumer, StreamsError if its transactions could not be fenced."""
    if "transactional.id" in settings:
        verify_layout()
    given = dict(settings)
    if given["enable.idempotence"]:
        given["linger.ms"] = max(given["linger.ms"], LEAST_LINGER_MS)
    return _make(Producer, "producer", given)


def make_admin(settings: Mapping[str, object]) -> AdminClient:
    """Return an AdminClient that lives for one command. Raises ConfigError as make_consumer."""
    return _make(AdminClient, "admin client", {**_DEFAULTS_OF_COMMANDS, **settings})


def _make(client: type[Client], name: str, settings: Mapping[str, object]) -> Client:
    known = {key: value for key, value in settings.items() if key != "metadata.cluster.check.enable"}  # of Kafka 4.4
    try:
        return client({**_DEFAULTS, **known}, logger=CLIENT_LOGGER)  # type: ignore[call-arg]
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else error
        raise ConfigError(f"librdkafka rejects the settings of the {name}: {reason}.") from error
