"""Record contexts, for operators that buffer records and forward them later."""

from __future__ import annotations

from penstock.kernel.messages import context_fields

from ..context.task_context import Process, TaskContext
from ..records import Headers, Message, ProcessorRecordContext, RawRecord, RecordMetadata

_new = tuple.__new__


def record_context(task: TaskContext, timestamp: int, headers: Headers) -> ProcessorRecordContext:
    """Return the context of the record that an operator is processing."""
    message = task.message
    if message is None:
        return ProcessorRecordContext(timestamp, -1, -1, None, headers)
    return _new(ProcessorRecordContext, context_fields(message, timestamp, headers))


def record_metadata(task: TaskContext) -> RecordMetadata | None:
    """Return topic, partition and offset of the input record, or None in a punctuation."""
    message = task.message
    return None if message is None else RecordMetadata(message.topic(), message.partition(), message.offset())


def with_record_context(
    task: TaskContext, context: ProcessorRecordContext, process: Process, key: object, value: object
) -> None:
    """Process a buffered record in its own context, then restore the context of the current record."""
    timestamp, offset, partition, topic, headers, raw_key, raw_value = context
    message = None
    if topic is not None:
        kept_headers = None if headers is None else list(headers)
        message = RawRecord(topic, partition, offset, timestamp, raw_key, raw_value, kept_headers)
    process_as_input(task, message, process, key, value, timestamp, headers)


def process_as_input(
    task: TaskContext,
    message: Message | None,
    process: Process,
    key: object,
    value: object,
    timestamp: int,
    headers: Headers,
) -> None:
    """Process a record with message as the task's input record, then restore the context of the current record."""
    previous = task.message, task.timestamp, task.headers
    task.message, task.timestamp, task.headers = message, timestamp, headers
    try:
        process(key, value, timestamp, headers)
    finally:
        task.message, task.timestamp, task.headers = previous
