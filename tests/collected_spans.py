"""All spans of this process. OpenTelemetry accepts a provider only once per process."""

from __future__ import annotations

from functools import cache

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


def exporter() -> InMemorySpanExporter:
    """Return the exporter that collects all spans, after clearing it."""
    found = _exporter()
    found.clear()
    return found


@cache
def _exporter() -> InMemorySpanExporter:
    """Create the exporter and set the SDK's provider."""
    found, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    trace.set_tracer_provider(provider)
    return found
