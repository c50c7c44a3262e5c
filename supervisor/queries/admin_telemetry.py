"""Pushes the metrics of the application itself, of the group ``stream-metrics``, by an admin client (KIP-1076).

Kafka Streams: StreamsClientMetricsDelegatingReporter.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.shadowing import NamingShadows
from penstock.workers.metrics.sensors import MetricGroup

if TYPE_CHECKING:
    from penstock.clients.telemetry.client_telemetry import ClientTelemetry
    from penstock.clients.telemetry.telemetry_collector import TelemetryPoint

logger = logging.getLogger(__name__)

#: How long the end of the application waits for the answer to the last push, in seconds.
CLOSE_SECONDS = 2.0


class AdminTelemetry:
    """A thread with an admin client; started and stopped by KafkaStreams. Nothing with enable.metrics.push=false.

    metrics: reads the metrics of the application without waiting, because stop() waits for this thread.
    client_id: the admin client's.
    """

    def __init__(self, metrics: Callable[[], Iterable[MetricGroup]], client_id: str, config: StreamsConfig) -> None:
        self._metrics = metrics
        self._client_id = client_id
        self._config = config
        self._changed = threading.Condition()
        self._ends = False
        self._telemetry: ClientTelemetry | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; it asks a broker which metrics it wants."""
        if self._config["enable.metrics.push"]:
            self._thread = threading.Thread(target=self._run, name="penstock-telemetry", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Push the last metrics and end the thread; waits for a limited time."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def client_instance_id(self, seconds: float) -> UUID | None:
        """Return the id that a broker has given to the admin client; None if it pushes no metrics.

        Raises TimeoutError if no broker has given one within this time.
        """
        if self._thread is None:
            return None
        with self._changed:
            self._changed.wait_for(lambda: self._ends or self._is_settled(), seconds)
            telemetry = self._telemetry
            if telemetry is None or (telemetry.enabled and telemetry.client_instance_id is None):
                raise TimeoutError(f"no broker has given {self._client_id} a client instance id")
            return telemetry.client_instance_id

    def _is_settled(self) -> bool:
        found = self._telemetry
        return found is not None and (found.client_instance_id is not None or not found.enabled)

    def _run(self) -> None:
        try:
            # Kafka's clients, whose memory a supervisor without telemetry saves.
            with NamingShadows():
                from penstock.clients.clock import SystemClock
                from penstock.workers.thread.client_supplier import configured_supplier

            brokers, telemetry = configured_supplier(self._config, SystemClock()).get_admin_telemetry(self._client_id)
            try:
                self._push(telemetry)
                telemetry.begin_close(self._points)
                telemetry.finish_close(CLOSE_SECONDS)
            finally:
                brokers.close()
        except Exception:
            logger.exception("The metrics of the application are not pushed to brokers any more")

    def _push(self, telemetry: ClientTelemetry) -> None:
        """Push until the end."""
        while True:
            telemetry.advance(self._points)
            with self._changed:
                self._telemetry = telemetry
                self._changed.notify_all()
                if self._ends:
                    return
                if telemetry.response is None:
                    self._changed.wait(telemetry.due_in_seconds())
            if telemetry.response is not None:
                self._wait(telemetry.response)

    def _wait(self, response: Future[Any]) -> None:
        response.add_done_callback(self._wake)
        with self._changed:
            self._changed.wait_for(lambda: self._ends or response.done())

    def _wake(self, _: object) -> None:
        with self._changed:
            self._changed.notify_all()

    def _points(self) -> Iterator[TelemetryPoint]:
        from penstock.workers.metrics.telemetry_points import telemetry_points

        return telemetry_points(self._metrics())
