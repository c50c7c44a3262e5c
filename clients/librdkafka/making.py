"""Makes confluent-kafka's clients."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from penstock.topology.errors import ConfigError

Client = TypeVar("Client")

#: librdkafka writes its log lines here; they come out when the client is polled.
CLIENT_LOGGER = logging.getLogger("penstock.librdkafka")


def make_consumer(settings: Mapping[str, Any]) -> Consumer:
    """Return a Consumer. Raises ConfigError for settings that librdkafka refuses; it names the key. As all of these."""
    return _make(Consumer, "consumer", settings)


def make_producer(settings: Mapping[str, Any]) -> Producer:
    """Return a Producer."""
    return _make(Producer, "producer", settings)


def make_admin(settings: Mapping[str, Any]) -> AdminClient:
    """Return an AdminClient."""
    return _make(AdminClient, "admin client", settings)


def _make(client: type[Client], name: str, settings: Mapping[str, Any]) -> Client:
    try:
        return client(dict(settings), logger=CLIENT_LOGGER)  # type: ignore[call-arg]
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else error
        raise ConfigError(f"librdkafka refuses the settings of the {name}: {reason}.") from error
