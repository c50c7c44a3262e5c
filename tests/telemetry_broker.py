"""A broker that accepts the metrics of clients (KIP-714): its plugin, TelemetryReporter, writes them to a file."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from typing_extensions import override

from benchmarks.systems import compile_java
from penstock.clients.cluster.cluster import Cluster
from penstock.clients.network_settings import network_settings
from penstock.clients.protocol.admin_messages import INCREMENTAL_ALTER_CONFIGS
from penstock.dev.kafka_distribution import KafkaDistribution, distribution, preferred
from penstock.pipeline.java.java_runtime import find_java
from tests.brokers import SmallBroker
from tests.waiting import PATIENCE_SECONDS

#: IncrementalAlterConfigs' type of a subscription to clients' metrics, and its operations.
CLIENT_METRICS = 16
SET, DELETE = 0, 1


@dataclass(frozen=True)
class Push:
    """One push, as the broker's plugin received it."""

    client_id: str
    client_instance_id: UUID
    is_last: bool
    content_type: str
    labels: Mapping[str, str]
    metrics: Mapping[str, Any]


class TelemetryBroker(SmallBroker):
    """A broker with the plugin, and with TopologyPlugin on its class path. config: more settings."""

    def __init__(self, name: str, directory: Path, config: Mapping[str, str] | None = None) -> None:
        self._file = directory / "pushed"
        self._classes = directory / "classes"
        plugin = {"metric.reporters": "TelemetryReporter", "telemetry.file": str(self._file)}
        super().__init__(name, directory, config={**plugin, **(config or {})})

    @override
    def _class_path(self, kafka: KafkaDistribution) -> str:
        found = kafka.class_path()
        for plugin in ("TelemetryReporter.java", "TopologyPlugin.java"):
            compile_java(find_java(), Path(__file__).parent / "java" / plugin, self._classes, found)
        return f"{found}{os.pathsep}{self._classes}"

    def pushes(self, client_id: str = "") -> list[Push]:
        """Return all pushes so far whose client id ends so."""
        data = self._file.read_bytes() if self._file.exists() else b""
        return [push for push in _read(data) if push.client_id.endswith(client_id)]

    def subscribe(self, name: str, **settings: str) -> None:
        """Make or change a subscription: metrics, interval_ms, match (``key=pattern``)."""
        self._alter(name, {key.replace("_", "."): (SET, value) for key, value in settings.items()})

    def unsubscribe(self, name: str) -> None:
        self._alter(name, dict.fromkeys(("metrics", "interval.ms", "match"), (DELETE, None)))

    def _alter(self, name: str, changes: Mapping[str, tuple[int, str | None]]) -> None:
        configs = [{"name": key, "config_operation": how, "value": value} for key, (how, value) in changes.items()]
        resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": configs}
        with asking(self.bootstrap_servers) as cluster:
            answer: SimpleNamespace = cluster.submit(
                cluster.ask_any, INCREMENTAL_ALTER_CONFIGS(resources=[resource])
            ).result(PATIENCE_SECONDS)
        (result,) = answer.responses
        assert result.error_code == 0, result.error_message


@contextmanager
def asking(bootstrap_servers: str) -> Iterator[Cluster]:
    """Connect to a cluster."""
    cluster = Cluster(network_settings({"bootstrap.servers": bootstrap_servers}))
    try:
        yield cluster
    finally:
        cluster.close()


@contextmanager
def telemetry_broker(directory: Path, config: Mapping[str, str] | None = None) -> Iterator[TelemetryBroker]:
    """Run a broker with the plugin."""
    broker = TelemetryBroker("telemetry", directory, config)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def has_plugins() -> bool:
    """Whether the broker under test knows clients' metrics."""
    return tuple(map(int, distribution(preferred()).version.split("."))) >= (3, 7)


def _read(data: bytes) -> Iterator[Push]:
    """Read complete pushes; the last one may be incomplete, because the broker is still writing it."""
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        if at + size > len(data):
            raise EOFError
        at += size
        return data[at - size : at]

    def text() -> str:
        return take(int.from_bytes(take(2), "big")).decode()

    while True:
        try:
            client_id, instance, is_last, kind = text(), text(), take(1) != b"\0", text()
            message = MetricsData.FromString(take(int.from_bytes(take(4), "big")))
        except EOFError:
            return
        padded = base64.urlsafe_b64decode(instance + "=" * (-len(instance) % 4))
        labels = {
            each.key: each.value.string_value for one in message.resource_metrics for each in one.resource.attributes
        }
        yield Push(client_id, UUID(bytes=padded), is_last, kind, labels, dict(_metrics(message)))


def _metrics(message: MetricsData) -> Iterator[tuple[str, Any]]:
    """Yield name and metric; one with several points is yielded once for each message that has it."""
    found: dict[str, Any] = {}
    for resource in message.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if metric.name in found:
                    found[metric.name].MergeFrom(metric)
                else:
                    found[metric.name] = metric
    yield from found.items()
