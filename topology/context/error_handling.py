"""Finds the operator that failed in a task, and calls the task's exception handlers.

Nodes are plain calls without try blocks. When an exception arrives at the source, the node at work is the failed one:
RecordContext.at. Only with a processing handler that may continue, each node has a guard, because the siblings of a
failed node must still process the record (KIP-1033).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NoReturn

from penstock.kernel.nodes import Guard, PythonNode

from ..common.kept_error import forget_tracebacks
from ..errors import (
    BrokerUnavailableError,
    EventLoopError,
    ProcessorStateError,
    StreamsError,
    TaskCorruptedError,
    TaskMigratedError,
)
from ..records import Headers, Message, Record
from .exception_handlers import (
    DESERIALIZATION,
    GLOBAL_PROCESSING,
    PROCESSING,
    PRODUCTION,
    ErrorHandlerContext,
    FailedProcessingError,
    LogAndFail,
    ProducerRecord,
    Response,
    Result,
    UnserializableRecordError,
    configured_handler,
)
from .task_context import Process, TaskContext

logger = logging.getLogger(__name__)

#: Exceptions that are no failure of a record: the task is closed or retried, or the process is replaced.
_OF_NO_RECORD = (TaskMigratedError, TaskCorruptedError, BrokerUnavailableError, EventLoopError)
#: Exceptions not passed to handlers: these, and those about which a handler has decided already.
UNHANDLED = (FailedProcessingError, *_OF_NO_RECORD)


class ErrorHandling:
    """The error handling of one task.

    of_global_stores: it has the processors of global stores. The processing handler decides about their failures only
    if processing.exception.handler.global.enabled is set, and their dead letters are not written (KIP-1270).
    """

    def __init__(self, task: TaskContext, of_global_stores: bool = False) -> None:
        self.task = task
        self._of_global_stores = of_global_stores
        handles = not of_global_stores or task.config[GLOBAL_PROCESSING]
        self.deserialization = configured_handler(task.config, DESERIALIZATION)
        self.processing = configured_handler(task.config, PROCESSING)
        if not handles and type(self.processing) is not LogAndFail:
            logger.warning(
                "%s decides nothing about failures in processors of global stores: set %s=true to enable it, as it "
                "will be by default in Kafka Streams 5.0",
                PROCESSING,
                GLOBAL_PROCESSING,
            )
        if not handles:
            self.processing = LogAndFail(None, 0)
        self.production = configured_handler(task.config, PRODUCTION)

    @property
    def guards_nodes(self) -> bool:
        """Whether processing may continue after an exception, so that each node needs a guard."""
        return type(self.processing) is not LogAndFail

    def raise_failure(self, error: BaseException, key: object = None) -> NoReturn:
        """Raise the StreamsError for an exception while a record was processed: it names operator and record.

        Other BaseExceptions, e.g. of sys.exit(), are raised unchanged, with operator and record as a note.
        """
        if isinstance(error, UNHANDLED):
            raise error
        name = self.task.at or "unknown"
        if not isinstance(error, Exception):
            raise_noted(error, self._where(name, key))
        self._fail(name, error)
        raise self._failed(name, error, key) from error

    def raise_flush_failure(self, store_name: str, error: BaseException) -> NoReturn:
        """Raise the ProcessorStateError for an exception while a store's cache was flushed downstream."""
        if isinstance(error, _OF_NO_RECORD):
            raise error
        name, message = self.task.at, self.task.message
        what = f"Failed to flush cache of store {store_name}" + ("" if name is None else f", in processor {name}")
        if message is not None:  # of the last update of the key
            what += f", topic={message.topic()}, partition={message.partition()}, offset={message.offset()}"
        if not isinstance(error, Exception):
            raise_noted(error, what)
        if name is not None and not isinstance(error, UNHANDLED):
            self._fail(name, error)
        raise ProcessorStateError(f"{what}: {_text(error)}") from error

    def raise_extraction_failure(self, name: str, message: Message, error: BaseException) -> NoReturn:
        """Raise the StreamsError for an exception in a timestamp extractor."""
        what = (
            f"Fatal user code error in TimestampExtractor callback of source {name} for the record of "
            f"{message.topic()}-{message.partition()} at offset {message.offset()}"
        )
        if not isinstance(error, Exception):
            raise_noted(error, what)
        raise StreamsError(f"{what}: {_text(error)}") from error

    def judge(self, name: str, key: object, value: object, timestamp: int, headers: Headers, error: Exception) -> None:
        """Drop the record that a node failed to process, or raise, as the processing handler decides."""
        record = Record(key, value, timestamp, headers)
        context = self._context(name, self.task.message, timestamp, headers)
        response = self.processing(context, record, error)
        self._send_dead_letters(name, error, response)
        if response.result is Result.FAIL:
            raise self._failed(name, error, key) from error
        self._drop(name, "processing error", error)

    def guard_held(self, name: str, process: Process) -> Process:
        """Return process for records that a node has buffered; they are processed with their own record context.

        The source would handle an error too late: by then the task has the context of the current record.
        """
        judged = process
        if self.guards_nodes:
            judged = Guard(PythonNode(self.task, name, process), self.judge, UNHANDLED).receive

        def guarded(key: object, value: object, timestamp: int, headers: Headers) -> None:
            try:
                judged(key, value, timestamp, headers)
            except BaseException as error:  # noqa: BLE001 - raised with operator and record
                self.raise_failure(error, key)

        return guarded

    def punctuated(self, name: str) -> Callable[[Callable[[int], None], int], None]:
        """Return a function that runs a node's punctuation, whose records have no source topic."""
        task = self.task

        def punctuate(callback: Callable[[int], None], timestamp: int) -> None:
            task.message, task.timestamp, task.headers = None, timestamp, None
            task.at = name
            try:
                callback(timestamp)
            except _OF_NO_RECORD:
                raise
            except FailedProcessingError as error:
                raise _punctuation_failed(name, error) from error
            except BaseException as error:
                if not isinstance(error, Exception):
                    raise_noted(error, _while_punctuating(self.task.at or name))
                response = self.processing(self._context(name, None, timestamp, None), None, error)
                self._send_dead_letters(name, error, response)
                if response.result is Result.FAIL:
                    raise _punctuation_failed(self.task.at or name, error) from error
                self._drop(name, "punctuation error", error)

        return punctuate

    def failed_deserialization(self, name: str, message: Message, error: BaseException) -> None:
        """Drop a record that cannot be deserialized, or raise StreamsError, as the handler decides."""
        if isinstance(error, UNHANDLED):
            raise error
        what = (
            f"Deserialization error in {message.topic()}-{message.partition()} at offset {message.offset()} "
            f"(source {name})"
        )
        if not isinstance(error, Exception):
            raise_noted(error, what)
        timestamp, headers = message.timestamp()[1], message.headers()
        response = self.deserialization(self._context(name, message, timestamp, headers), message, error)
        self._send_dead_letters(name, error, response)
        if response.result is Result.FAIL:
            raise FailedProcessingError(
                f"{what}: {_text(error)}. Check the serdes; to skip such records set "
                f"{DESERIALIZATION}=log_and_continue."
            ) from error
        self._drop(name, "deserialization error", error)

    def failed_serialization(self, name: str, record: ProducerRecord, error: Exception) -> None:
        """Drop a record that cannot be serialized, or raise StreamsError, as the production handler decides."""
        if isinstance(error, UNHANDLED):
            raise error
        context = self._context(name, self.task.message, self.task.timestamp, self.task.headers)
        response = self.production(context, record, error)
        self._send_dead_letters(name, error, response)
        if response.result is not Result.RESUME:
            raise UnserializableRecordError(
                f"Unable to serialize record for topic {record.topic} in sink {name}: {_text(error)}",
                has_dead_letter=bool(response.dead_letter_queue_records),
            ) from error
        self._drop(name, "serialization error", error)

    def _context(self, name: str, message: Message | None, timestamp: int, headers: Headers) -> ErrorHandlerContext:
        task_id = self.task.task_id
        if message is None:
            return ErrorHandlerContext(None, -1, -1, headers, name, task_id, timestamp, None, None)
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        return ErrorHandlerContext(
            topic, partition, offset, headers, name, task_id, timestamp, message.key(), message.value()
        )

    def _send_dead_letters(self, name: str, error: Exception, response: Response) -> None:
        if isinstance(error, UnserializableRecordError) and error.has_dead_letter:
            return
        if self._of_global_stores:
            self._warn_of_unsent(name, response)
            return
        for record in response.dead_letter_queue_records:
            self.task.record_dead_letter(name, error, record.topic)
            self.task.output.send(
                record.topic, record.key, record.value, record.timestamp, record.headers, record.partition
            )

    def _warn_of_unsent(self, name: str, response: Response) -> None:
        """Log dead letters of global stores, which are not written: each process would write the same ones.

        Kafka Streams writes none either.
        """
        message = self.task.message
        for letter in response.dead_letter_queue_records:
            logger.warning(
                "Dead letter queue records cannot be sent for processors of global stores: none is written to %s for "
                "the record that failed in %s, topic=%s partition=%s offset=%s",
                letter.topic,
                name,
                *(("-",) * 3 if message is None else (message.topic(), message.partition(), message.offset())),
            )

    def _fail(self, name: str, error: Exception) -> None:
        """Write the dead letter of a failure that ends the task.

        A handler that may continue is not called: its answer could not be followed, and guards have called it already.
        """
        if not self.guards_nodes:
            context = self._context(name, self.task.message, self.task.timestamp, self.task.headers)
            self._send_dead_letters(name, error, self.processing(context, None, error))

    def _drop(self, name: str, reason: str, error: Exception) -> None:
        """Count a dropped record. Its exception, with all its causes, loses its traceback."""
        self.task.record_dropped(name, reason)
        forget_tracebacks(error)

    def _failed(self, name: str, error: Exception, key: object) -> FailedProcessingError:
        return FailedProcessingError(f"{self._where(name, key)}: {_text(error)}")

    def _where(self, name: str, key: object) -> str:
        message = self.task.message
        record = (
            "no input record"
            if message is None
            else (f"topic={message.topic()}, partition={message.partition()}, offset={message.offset()}, key={key!r}")
        )
        return f"Exception caught in process. taskId={self.task.task_id}, processor={name}, {record}"


def raise_noted(error: BaseException, where: str) -> NoReturn:
    """Reraise an exception that bypasses handlers and must not be replaced, with a note of its origin.

    These include BaseExceptions that are not Exceptions: sys.exit() in a user's function, or Ctrl-C in a test.
    """
    error.add_note(where)
    raise error


def _punctuation_failed(name: str, error: Exception) -> FailedProcessingError:
    return FailedProcessingError(f"{_while_punctuating(name)}: {_text(error)}")


def _while_punctuating(name: str) -> str:
    return f"Exception caught while punctuating processor '{name}'"


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
