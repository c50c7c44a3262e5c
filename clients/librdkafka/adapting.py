"""Readers and Writers over the clients of a custom client supplier."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ..reading.reader import Reader
from ..writing.writer import Writer

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer


def as_reader(client: Reader | Consumer) -> Reader:
    """Return a Reader over a Reader or a confluent_kafka.Consumer."""
    if not _is_confluents(client):
        return cast("Reader", client)
    from .reader import LibrdkafkaReader

    return LibrdkafkaReader(client)


def as_writer(client: Writer | Producer) -> Writer:
    """Return a Writer over a Writer or a confluent_kafka.Producer."""
    if not _is_confluents(client):
        return cast("Writer", client)
    from .writer import LibrdkafkaWriter

    return LibrdkafkaWriter(client)


def _is_confluents(client: object) -> bool:
    """Whether it has the methods of confluent-kafka's clients; checks no class, because the client may be wrapped."""
    return hasattr(client, "list_topics")
