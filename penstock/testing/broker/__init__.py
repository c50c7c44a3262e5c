"""Kafka brokers in memory: ``EmbeddedKafka`` for tests, ``Cluster`` for callers with own clock and connections."""

from __future__ import annotations

from .cluster import Cluster, Connection
from .embedded_kafka import EmbeddedKafka
from .errors import ApiError

__all__ = ["ApiError", "Cluster", "Connection", "EmbeddedKafka"]
