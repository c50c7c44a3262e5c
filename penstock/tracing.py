"""Traces by OpenTelemetry: a span for each operator that a traced record passes. Needs penstock-streams[otel].

A record is traced if its header ``traceparent`` (W3C Trace Context) has the flag of sampled traces.
"""

from __future__ import annotations

from penstock.topology.context.processor_wrapper import ProcessorWrapper, ProcessRecord, WrappedProcessor
from penstock.topology.context.trace_context import is_sampled
from penstock.topology.errors import ConfigError
from penstock.topology.records import Record
from penstock.workers.metrics.spans import carrier

try:
    from opentelemetry import propagate, trace
except ImportError as error:
    raise ConfigError(f"Traces need the extra: pip install 'penstock-streams[otel]' ({error})") from error


class TracingWrapper(ProcessorWrapper):
    """``processor.wrapper.class=penstock.tracing:TracingWrapper``.

    The span of an operator is the child of the one before it, and of the record's sender at first. What is forwarded,
    into repartition and output topics too, carries the context of its last span. A span has links to those that have
    written the rows of tables which the operator has read; see docs/traces.md. Spans go to the global tracer provider
    of the process: the module of the topology sets it, as it is imported in each stream thread.
    """

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("penstock")

    def wrap(self, processor: WrappedProcessor) -> ProcessRecord:
        """Return what opens a span around the processor for traced records."""
        task = str(processor.task_id)

        def process(record: Record) -> None:
            headers = record[3]
            if not headers or not is_sampled(headers):
                processor.process(record)
                return
            origin = processor.record_metadata()
            attributes: dict[str, str | int] = {"messaging.system": "kafka", "kafka.streams.task_id": task}
            if origin is not None:
                attributes["messaging.destination.name"] = origin.topic
                attributes["messaging.destination.partition.id"] = str(origin.partition)
                attributes["messaging.kafka.offset"] = origin.offset
            sender = propagate.extract(carrier(headers))
            with self._tracer.start_as_current_span(processor.name, context=sender, attributes=attributes) as span:
                context: dict[str, str] = {}
                propagate.inject(context)
                kept = [header for header in headers if header[0] not in context]
                added = [(name, text.encode("latin-1")) for name, text in context.items()]
                for row in processor.process_and_note(record.with_headers([*kept, *added])):
                    span.add_link(trace.get_current_span(propagate.extract(carrier(row))).get_span_context())

        return process
