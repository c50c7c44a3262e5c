"""Handlers of records that cannot be read, processed or written (KIP-161, KIP-1033, KIP-1034, KIP-1065).

A handler is configured as "log_and_fail" or "log_and_continue", or is user-defined: a class or object with
``handle_error(context, record, exception)``, or a function with these arguments. It returns a Response, a Result, or
one of the words "fail" and "continue". record is the consumed Message for deserialization, a Record for processing
(None in a punctuation), and the ProducerRecord to be produced for production.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from ..errors import ConfigError, SerializationError, StreamsError
from ..records import Headers, TaskId, as_headers

logger = logging.getLogger(__name__)

DESERIALIZATION = "deserialization.exception.handler"
PROCESSING = "processing.exception.handler"
GLOBAL_PROCESSING = "processing.exception.handler.global.enabled"
PRODUCTION = "production.exception.handler"
DEAD_LETTER_TOPIC = "errors.dead.letter.queue.topic.name"
#: What is put before the name of every topic that the application writes, dead letters included.
SINK_PREFIX = "penstock.sink.prefix"
#: The prefix of a dead letter's own headers, as in Kafka Streams.
LETTER_HEADER = "__streams.errors."
DEAD_LETTER_TRACE_BYTES = "penstock.dead.letter.stacktrace.max.bytes"
#: The maximum size of an exception's message, and of its stack trace if nothing else is configured.
_TEXT_BYTES = 16_384


class Result(Enum):
    """A handler's decision. RETRY is for production only."""

    FAIL = "fail"
    RESUME = "continue"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to be produced; with partition None the producer chooses; timestamp is in milliseconds.

    For a failed serialization, key and value are the objects that were to be serialized. headers: see as_headers.
    """

    topic: str
    key: Any
    value: Any
    timestamp: int | None = None
    headers: Headers = None
    partition: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", as_headers(self.headers))


@dataclass(frozen=True, slots=True)
class Response:
    """A handler's decision, and the records to send to a dead-letter topic before it takes effect."""

    result: Result
    dead_letter_queue_records: Sequence[ProducerRecord] = ()

    @classmethod
    def fail(cls, records: Sequence[ProducerRecord] = ()) -> Response:
        """Fail the stream thread."""
        return cls(Result.FAIL, records)

    @classmethod
    def resume(cls, records: Sequence[ProducerRecord] = ()) -> Response:
        """Drop the record and continue."""
        return cls(Result.RESUME, records)

    @classmethod
    def retry(cls) -> Response:
        """Try to produce again."""
        return cls(Result.RETRY)


@dataclass(frozen=True, slots=True)
class ErrorHandlerContext:
    """The place of an error: the input record, if there is one, and the node (Kafka Streams' class).

    timestamp is in milliseconds; source_raw_key and source_raw_value are the input record's bytes.
    """

    topic: str | None
    partition: int
    offset: int
    headers: Headers
    processor_node_id: str
    task_id: TaskId
    timestamp: int
    source_raw_key: bytes | None
    source_raw_value: bytes | None


class FailedProcessingError(StreamsError):
    """An exception in an operator that a handler has already seen; operators upstream do not handle it again."""


class UnserializableRecordError(SerializationError):
    """A sink cannot serialize a record, and the production handler has answered FAIL.

    has_dead_letter: whether that handler had dead letters written. The processing handler is called next, as in Kafka
    Streams, but the record gets no second letter.
    """

    def __init__(self, message: str, has_dead_letter: bool) -> None:
        super().__init__(message)
        self.has_dead_letter = has_dead_letter


def asks_for_sources(config: Mapping[str, object]) -> bool:
    """Return whether a handler of lost records is configured, which gets the input record that each was made from."""
    configured = config.get(PRODUCTION) or "fail"
    is_default = isinstance(configured, str) and _WORDS.get(configured) is LogAndFail
    return config.get(DEAD_LETTER_TOPIC) is not None or not is_default


Handler = Callable[[ErrorHandlerContext, Any, Exception], Response]


class LogAndFail:
    """The default: the stream thread fails. With a dead-letter topic the record is sent there first."""

    result = Result.FAIL

    def __init__(self, dead_letter_topic: str | None, trace_bytes: int) -> None:
        self.dead_letter_topic = dead_letter_topic
        self.trace_bytes = trace_bytes

    def __call__(self, context: ErrorHandlerContext, record: object, exception: Exception) -> Response:
        """Return the response without logging, because the error is raised and logged where it is caught."""
        letters = dead_letter_queue_records(self.dead_letter_topic, context, exception, self.trace_bytes)
        return Response(self.result, letters)


class LogAndContinue(LogAndFail):
    """The record is logged, counted as dropped, and with a dead-letter topic sent there."""

    result = Result.RESUME

    def __call__(self, context: ErrorHandlerContext, record: object, exception: Exception) -> Response:
        """Return the response after logging the error with where it happened."""
        logger.warning(
            "Exception caught in %s of task %s, the record is dropped: topic=%s partition=%s offset=%s",
            context.processor_node_id,
            context.task_id,
            context.topic,
            context.partition,
            context.offset,
            exc_info=exception,
        )
        return super().__call__(context, record, exception)


_WORDS: Mapping[str, type[LogAndFail]] = {
    "fail": LogAndFail,
    "log_and_fail": LogAndFail,
    "continue": LogAndContinue,
    "log_and_continue": LogAndContinue,
}


def configured_handler(config: Mapping[str, Any], key: str) -> Handler:
    """Return the handler that a configuration key names; raises ConfigError if it names none.

    Its dead letters go to topics with the prefix of sinks.
    """
    configured, prefix = config.get(key) or "fail", config.get(SINK_PREFIX, "")
    if isinstance(configured, str):
        if configured not in _WORDS:
            raise ConfigError(
                f"{key}={configured!r} is not a handler: use log_and_fail, log_and_continue or module:attribute"
            )
        trace_bytes = config.get(DEAD_LETTER_TRACE_BYTES, _TEXT_BYTES)
        topic = config.get(DEAD_LETTER_TOPIC)
        return _WORDS[configured](None if topic is None else prefix + topic, trace_bytes)
    handler = configured() if isinstance(configured, type) else configured
    configure = getattr(handler, "configure", None)
    if configure is not None:
        configure(config)
    return _checked(key, getattr(handler, "handle_error", handler), prefix)


def _checked(key: str, handle: object, prefix: str) -> Handler:
    if not callable(handle):
        raise ConfigError(
            f"{key} needs a function, or a class with handle_error(context, record, exception), not {handle!r}"
        )

    def checked(context: ErrorHandlerContext, record: object, exception: Exception) -> Response:
        try:
            found = handle(context, record, exception)
        except Exception as error:
            raise FailedProcessingError(
                f"Fatal user code error in {key} at {context.processor_node_id}: {error}"
            ) from error
        if isinstance(found, Response):
            if not prefix:
                return found
            letters = found.dead_letter_queue_records
            return Response(found.result, [replace(letter, topic=prefix + letter.topic) for letter in letters])
        try:
            return Response(Result(found))
        except ValueError:
            raise FailedProcessingError(f"{key} must return a Response, not {found!r}") from exception

    return checked


def dead_letter_queue_records(
    topic: str | None, context: ErrorHandlerContext, exception: Exception, trace_bytes: int
) -> tuple[ProducerRecord, ...]:
    """Return the record for a dead-letter topic, none without a topic: the input record and Kafka Streams' headers.

    trace_bytes: the maximum size of the stack trace.
    """
    if topic is None:
        return ()
    kind = type(exception)
    added = {
        "exception": f"{kind.__module__}.{kind.__qualname__}".encode(),
        "message": _cut(str(exception), _TEXT_BYTES),
        "stacktrace": _cut("".join(traceback.format_exception(exception)), trace_bytes),
        "topic": None if context.topic is None else context.topic.encode(),
        "partition": str(context.partition).encode(),
        "offset": str(context.offset).encode(),
    }
    headers = [*(context.headers or ()), *((f"{LETTER_HEADER}{name}", data) for name, data in added.items())]
    return (ProducerRecord(topic, context.source_raw_key, context.source_raw_value, context.timestamp, headers),)


def _cut(text: str, limit: int) -> bytes:
    """Return a text as bytes; of more than limit bytes the middle is left out: origin and end say the most."""
    data = text.encode(errors="backslashreplace")
    if len(data) <= limit:
        return data
    left_out = f"\n... {len(data) - limit:,} bytes left out ...\n".encode()
    half, odd = divmod(max(limit - len(left_out), 0), 2)
    parts = data[: half + odd], left_out, data[len(data) - half :]
    return "".join(part.decode(errors="ignore") for part in parts).encode()[:limit]
