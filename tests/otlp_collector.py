"""The receiver of an OpenTelemetry collector: OTLP over HTTP, decoded from protobuf."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """spans, metrics: received data, with the attributes of their resources. refuses: True to respond with 400."""

    def __init__(self) -> None:
        self.spans: list[tuple[dict[str, Any], Any]] = []
        self.metrics: list[tuple[dict[str, Any], Any]] = []
        self.refuses = False
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if collector.refuses:
                    self.send_error(400)
                    return
                assert self.headers["Content-Type"] == "application/x-protobuf"
                collector.take(self.path, body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for spans in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = values(spans.resource.attributes)
                self.spans += [(resource, span) for scope in spans.scope_spans for span in scope.spans]
        else:
            assert path == "/v1/metrics"
            for metrics in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                resource = values(metrics.resource.attributes)
                self.metrics += [(resource, metric) for scope in metrics.scope_metrics for metric in scope.metrics]

    def named(self, name: str) -> list[Any]:
        """Return the spans with this name."""
        return [span for _, span in self.spans if span.name == name]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop responding."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


def values(attributes: Any) -> dict[str, Any]:
    """Return attributes as a dict."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
