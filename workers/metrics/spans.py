"""OpenTelemetry spans of a stream thread: batches, commits, restores and rebalances.

OpenTelemetry is imported only with ``penstock.tracing=true``. Spans go to the process's tracer provider, which the
module of the topology sets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from penstock.topology.context.trace_context import is_sampled
from penstock.topology.errors import ConfigError
from penstock.topology.records import Headers, Message

#: Values of a span's attributes.
Attributes = Mapping[str, str | int | bool]
#: Maximum number of links of a batch: the default limit of OpenTelemetry's SDK.
LINKS_MAX = 128
T = TypeVar("T")


class Spans:
    """Records no spans (penstock.tracing=false)."""

    def began(self) -> int:
        """Return the start time for record()."""
        return 0

    def record(self, name: str, began: int, attributes: Attributes, error: BaseException | None = None) -> None:
        """Record a span of a completed operation; error: why it failed."""

    def of_batches(self, process: Callable[[T], None], where: Attributes, stamped: bool) -> Callable[[T], None]:
        """Return a function that records a span for each call of process with a sampled record, with links to the
        senders.

        process takes messages, or (stamped) a list of stamped records.
        """
        return process


class OpenTelemetrySpans(Spans):
    """Records spans. common: attributes of all spans. Raises ConfigError if the extra is not installed."""

    def __init__(self, common: Attributes) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError as error:
            raise ConfigError(
                f"penstock.tracing needs the extra: pip install 'penstock-streams[otel]' ({error})"
            ) from error
        self._trace = trace
        self._extract = propagate.extract
        self._tracer = trace.get_tracer("penstock")
        self._common = dict(common)

    def began(self) -> int:
        """Return the wall clock in ns."""
        return time.time_ns()

    def record(self, name: str, began: int, attributes: Attributes, error: BaseException | None = None) -> None:
        """Record a span that ends now."""
        span = self._tracer.start_span(name, start_time=began, attributes={**self._common, **attributes})
        if error is not None:
            span.record_exception(error)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))
        span.end()

    def of_batches(self, process: Callable[[T], None], where: Attributes, stamped: bool) -> Callable[[T], None]:
        """Return a function whose span is current during processing, so users' own spans become its children."""
        attributes = {**self._common, "messaging.system": "kafka", "messaging.operation.type": "process", **where}
        name = f"process {where['messaging.destination.name']}"

        def traced(records: Any) -> None:
            messages = [record.message for record in records] if stamped else records
            sampled = [headers for message in messages if (headers := message.headers()) and is_sampled(headers)]
            if not sampled:
                process(records)
                return
            with self._batch(name, sampled, {**attributes, **_extent(messages)}):
                process(records)

        return traced

    @contextmanager
    def _batch(self, name: str, sampled: list[Headers], attributes: Attributes) -> Iterator[None]:
        links = [self._trace.Link(context) for context in self._contexts(sampled)]
        kind = self._trace.SpanKind.CONSUMER
        with self._tracer.start_as_current_span(name, kind=kind, links=links, attributes=attributes):
            yield

    def _contexts(self, sampled: Iterable[Headers]) -> list[Any]:
        found: dict[tuple[int, int], object] = {}
        for headers in sampled:
            context = self._trace.get_current_span(self._extract(carrier(headers))).get_span_context()
            if context.is_valid:
                found[context.trace_id, context.span_id] = context
            if len(found) == LINKS_MAX:
                break
        return list(found.values())


def _extent(messages: Sequence[Message]) -> dict[str, str | int]:
    first = messages[0]
    return {
        "messaging.destination.partition.id": str(first.partition()),
        "messaging.kafka.offset": first.offset(),
        "messaging.batch.message_count": len(messages),
    }


def carrier(headers: Headers) -> dict[str, str]:
    """Return headers as OpenTelemetry's propagators read them."""
    return {name: (value or b"").decode("latin-1") for name, value in headers or ()}
