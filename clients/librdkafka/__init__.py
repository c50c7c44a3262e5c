"""The only adapter for librdkafka: a Reader and a Writer over confluent-kafka's clients.

Its modules are imported on first use, because most processes do not need librdkafka.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

    from .adapting import as_reader, as_writer
    from .making import make_admin, make_command_consumer, make_consumer, make_producer, make_reader, make_writer
    from .reader import LibrdkafkaReader
    from .writer import LibrdkafkaWriter

__all__ = [
    "AdminClient",
    "Consumer",
    "LibrdkafkaReader",
    "LibrdkafkaWriter",
    "Producer",
    "as_reader",
    "as_writer",
    "make_admin",
    "make_command_consumer",
    "make_consumer",
    "make_producer",
    "make_reader",
    "make_writer",
]

_MODULES = {
    "AdminClient": "making",
    "Consumer": "making",
    "LibrdkafkaReader": "reader",
    "LibrdkafkaWriter": "writer",
    "Producer": "making",
    "as_reader": "adapting",
    "as_writer": "adapting",
    "make_admin": "making",
    "make_command_consumer": "making",
    "make_consumer": "making",
    "make_producer": "making",
    "make_reader": "making",
    "make_writer": "making",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
