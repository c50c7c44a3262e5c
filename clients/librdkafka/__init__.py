"""The one adapter for librdkafka: a Reader and a Writer over confluent-kafka's clients, by their plain calls.

What is here is imported when it is first used: most processes do without librdkafka.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .group_metadata import verify_layout
    from .making import make_admin, make_consumer, make_producer
    from .reader import LibrdkafkaReader
    from .writer import LibrdkafkaWriter

__all__ = ["LibrdkafkaReader", "LibrdkafkaWriter", "make_admin", "make_consumer", "make_producer", "verify_layout"]

_MODULES = {
    "LibrdkafkaReader": "reader",
    "LibrdkafkaWriter": "writer",
    "make_admin": "making",
    "make_consumer": "making",
    "make_producer": "making",
    "verify_layout": "group_metadata",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
