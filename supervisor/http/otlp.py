"""Sends the metrics of /metrics by OTLP, if penstock.metrics.otlp.interval.ms is set.

OpenTelemetry's own variables set the destination: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS and so on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError
from penstock.workers.metrics.sensors import Metric
from penstock_distribution import version

from .prometheus import Series, series

logger = logging.getLogger(__name__)

KEY = "penstock.metrics.otlp.interval.ms"


class OtlpMetrics:
    """A thread that sends all metrics periodically; started and stopped by KafkaStreams.

    metrics: returns the metrics. Does nothing unless the interval is set; raises ConfigError if the extra is missing.
    """

    def __init__(self, metrics: Callable[[], list[Metric]], client_id: str, config: StreamsConfig) -> None:
        self._metrics = metrics
        self._client_id = client_id
        self._seconds = config[KEY] / 1000
        self._ended = threading.Event()
        self._messages = _Messages(config["application.id"], client_id) if self._seconds else None

    def start(self) -> None:
        """Start; the first message is sent after one interval."""
        if self._messages is not None:
            threading.Thread(target=self._run, args=(self._messages,), name="penstock-otlp", daemon=True).start()

    def stop(self) -> None:
        """Stop, without waiting for a message that is being sent."""
        self._ended.set()
        if self._messages is not None:
            self._messages.close()

    def _run(self, messages: _Messages) -> None:
        while not self._ended.wait(self._seconds):
            try:
                messages.send(series(self._metrics(), self._client_id))
            except Exception:
                if not self._ended.is_set():
                    logger.exception("Metrics could not be sent by OTLP; the next ones are sent in %g s", self._seconds)


class _Messages:
    """Converts metrics to OpenTelemetry's, and sends them.

    It does not use meters, because they require each metric to be declared before it has a value.
    """

    def __init__(self, application_id: str, client_id: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import export
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as error:
            raise ConfigError(f"{KEY} needs the extra: pip install 'penstock-streams[otel]' ({error})") from error
        self._export = export
        self._exporter = OTLPMetricExporter()
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence.
        ours = Resource.create({"service.name": application_id, "service.instance.id": client_id})
        self._resource = ours.merge(OTELResourceDetector().detect())
        self._scope = InstrumentationScope("penstock", version())

    def send(self, found: Iterable[Series]) -> None:
        """Send metrics. The exporter logs a collector that does not answer; the next metrics are sent anyway."""
        export, now_ns = self._export, time.time_ns()
        metrics = [export.Metric(each.name, each.help, "", self._data(each, now_ns)) for each in found]
        scope = export.ScopeMetrics(self._scope, metrics, "")
        self._exporter.export(export.MetricsData([export.ResourceMetrics(self._resource, [scope], "")]))

    def _data(self, found: Series, now_ns: int) -> object:
        export = self._export
        # Start 0: unknown. A total starts with its process, or when its task arrives in it.
        points = [export.NumberDataPoint(labels, 0, now_ns, value) for labels, value in found.points]
        if found.is_counter:
            return export.Sum(points, export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
        return export.Gauge(points)

    def close(self) -> None:
        """End the connection."""
        self._exporter.shutdown()
