"""Finds the operator that failed in a task, and calls the task's exception handlers.

Operators are plain calls without try blocks. When an exception arrives at the source, the failed operator is found
from the traceback: the deepest frame that runs a compiled closure, or the line of a fused loop. Only with a processing
handler that may continue, each closure has a guard, because the siblings of a failed node must still process the record
(KIP-1033). A loop then contains only nodes without siblings, so it can continue with the next record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, NoReturn

from ..errors import BrokerUnavailableError, ProcessorStateError, StreamsError, TaskCorruptedError, TaskMigratedError
from ..records import Change, Headers, Message, Record
from .exception_handlers import (
    DESERIALIZATION,
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

#: Exceptions not passed to handlers: the task is closed or retried, or a handler has decided already.
UNHANDLED = (FailedProcessingError, TaskMigratedError, TaskCorruptedError, BrokerUnavailableError)


class NodeInput(NamedTuple):
    """The record that a fused loop passes to the lines of a node.

    node: the node whose guard would catch their errors; the others are expressions of the loop's variables.
    """

    node: str
    key: str
    value: str
    timestamp: str

    def record(self, variables: Mapping[str, Any]) -> Record[Any, Any]:
        """Return the record."""
        text = f"Record({self.key}, {self.value}, {self.timestamp}, headers)"
        made: Record[Any, Any] = eval(text, {"Record": Record, "Change": Change}, variables)  # only the loop's own text
        return made


class ErrorHandling:
    """The error handling of one task."""

    def __init__(self, task: TaskContext) -> None:
        self.task = task
        self.deserialization = configured_handler(task.config, DESERIALIZATION)
        self.processing = configured_handler(task.config, PROCESSING)
        self.production = configured_handler(task.config, PRODUCTION)
        self._closures: dict[CodeType, list[tuple[str, Any]]] = {}
        self._lines: dict[CodeType, tuple[str | None, ...]] = {}
        self._inputs: dict[CodeType, Mapping[str, NodeInput]] = {}
        #: Called for each dead letter that is written: node, exception, topic.
        self.on_dead_letter: Callable[[str, Exception, str], None] = lambda node, error, topic: None

    @property
    def guards_nodes(self) -> bool:
        """Whether processing may continue after an exception, so that each node needs a guard."""
        return type(self.processing) is not LogAndFail

    def register(self, name: str, closure: Callable[..., Any]) -> None:
        """Report this node for an exception that passes through closure."""
        code = getattr(getattr(closure, "__func__", closure), "__code__", None)
        if code is not None:
            self._closures.setdefault(code, []).append((name, closure))

    def register_lines(
        self, loop: Callable[..., Any], nodes: list[str | None], inputs: Mapping[str, NodeInput]
    ) -> None:
        """Report these nodes, one per line, for an exception that passes through a line of a fused loop.

        inputs: of the nodes whose failures the processing handler may judge.
        """
        self._lines[loop.__code__] = tuple(nodes)
        self._inputs[loop.__code__] = inputs

    def failed_node(self, error: BaseException) -> str | None:
        """Return the node whose closure is the deepest in an exception's traceback, None if there is none."""
        found = None
        step: TracebackType | None = error.__traceback__
        while step is not None:
            lines = self.lines_of(step.tb_frame.f_code)
            found = (self.node_of(step.tb_frame) if lines is None else lines[step.tb_lineno - 1]) or found
            step = step.tb_next
        return found

    def lines_of(self, code: CodeType) -> tuple[str | None, ...] | None:
        """Return the node of each line of a fused loop, None if the code is not a fused loop."""
        return self._lines.get(code)

    def node_of(self, frame: FrameType) -> str | None:
        """Return the node whose closure a frame runs, None if it runs none."""
        candidates = self._closures.get(frame.f_code, ())
        if len(candidates) == 1:
            return candidates[0][0]
        return next((name for name, closure in candidates if _runs(frame, closure)), None)

    def raise_failure(self, error: BaseException, key: Any = None) -> NoReturn:
        """Raise the StreamsError for an exception while a record was processed: it names operator and record.

        Other BaseExceptions, e.g. of sys.exit(), are raised unchanged, with operator and record as a note.
        """
        if isinstance(error, UNHANDLED):
            raise error
        name = self.failed_node(error) or "unknown"
        if not isinstance(error, Exception):
            raise_noted(error, self._where(name, key))
        message = self.task.message
        context = self._context(name, message, self.task.timestamp, self.task.headers)
        self._send_dead_letters(name, error, self.processing(context, None, error))
        raise self._failed(name, error, key) from error

    def raise_flush_failure(self, store_name: str, error: BaseException) -> NoReturn:
        """Raise the ProcessorStateError for an exception while a store's cache was flushed downstream."""
        if isinstance(error, TaskMigratedError | TaskCorruptedError | BrokerUnavailableError):
            raise error
        name, message = self.failed_node(error), self.task.message
        what = f"Failed to flush cache of store {store_name}" + ("" if name is None else f", in processor {name}")
        if message is not None:  # of the last update of the key
            what += f", topic={message.topic()}, partition={message.partition()}, offset={message.offset()}"
        if not isinstance(error, Exception):
            raise_noted(error, what)
        if name is not None and not isinstance(error, UNHANDLED):
            context = self._context(name, message, self.task.timestamp, self.task.headers)
            self._send_dead_letters(name, error, self.processing(context, None, error))
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

    def failed_in_loop(self, error: BaseException, key: Any) -> None:
        """Drop a record whose processing failed in a fused loop, or raise the StreamsError, as the handler decides."""
        if self.guards_nodes and isinstance(error, Exception) and not isinstance(error, UNHANDLED):
            found = self._input_of(error)
            if found is not None:
                self._judge(*found, error)
                return
        self.raise_failure(error, key)

    def _input_of(self, error: Exception) -> tuple[str, Record[Any, Any]] | None:
        """Return the node whose lines failed in a fused loop and the record that it got; None for a source."""
        step: TracebackType | None = error.__traceback__
        while step is not None:
            code = step.tb_frame.f_code
            lines = self.lines_of(code)
            if lines is not None:
                given = self._inputs[code].get(lines[step.tb_lineno - 1] or "")
                return None if given is None else (given.node, given.record(step.tb_frame.f_locals))
            step = step.tb_next
        return None

    def _judge(self, name: str, record: Record[Any, Any], error: Exception) -> None:
        """Drop the record that a node failed to process, or raise, as the processing handler decides."""
        context = self._context(name, self.task.message, record.timestamp, record.headers)
        response = self.processing(context, record, error)
        self._send_dead_letters(name, error, response)
        if response.result is Result.FAIL:
            raise self._failed(name, error, record.key) from error
        self.task.record_dropped(name, "processing error")

    def guard(self, name: str, process: Process) -> Process:
        """Return process with a guard that calls the processing handler."""

        def guarded(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            try:
                process(key, value, timestamp, headers)
            except UNHANDLED:
                raise
            except Exception as error:  # noqa: BLE001 - the handler decides, and raises
                self._judge(name, Record(key, value, timestamp, headers), error)

        self.register(name, guarded)
        return guarded

    def guard_held(self, name: str, process: Process) -> Process:
        """Return process for records that a node has buffered; they are processed with their own record context.

        The source would handle an error too late: by then the task has the context of the current record.
        """
        judged = self.guard(name, process) if self.guards_nodes else process

        def guarded(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
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
            try:
                callback(timestamp)
            except (TaskMigratedError, TaskCorruptedError, BrokerUnavailableError):
                raise
            except FailedProcessingError as error:
                raise _punctuation_failed(name, error) from error
            except BaseException as error:
                if not isinstance(error, Exception):
                    raise_noted(error, _while_punctuating(self.failed_node(error) or name))
                response = self.processing(self._context(name, None, timestamp, None), None, error)
                self._send_dead_letters(name, error, response)
                if response.result is Result.FAIL:
                    raise _punctuation_failed(self.failed_node(error) or name, error) from error
                task.record_dropped(name, "punctuation error")

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
        self.task.record_dropped(name, "deserialization error")

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
        self.task.record_dropped(name, "serialization error")

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
        for record in response.dead_letter_queue_records:
            self.on_dead_letter(name, error, record.topic)
            self.task.send(record.topic, record.key, record.value, record.timestamp, record.headers, record.partition)

    def _failed(self, name: str, error: Exception, key: Any) -> FailedProcessingError:
        return FailedProcessingError(f"{self._where(name, key)}: {_text(error)}")

    def _where(self, name: str, key: Any) -> str:
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


def _runs(frame: FrameType, closure: Any) -> bool:
    """Return whether a frame runs this closure; other closures of the same function have different cells."""
    if hasattr(closure, "__self__"):
        return frame.f_locals.get("self") is closure.__self__
    names, cells = closure.__code__.co_freevars, closure.__closure__ or ()
    found = frame.f_locals
    return all(found.get(name, cell) is cell.cell_contents for name, cell in zip(names, cells, strict=True))


def _punctuation_failed(name: str, error: Exception) -> FailedProcessingError:
    return FailedProcessingError(f"{_while_punctuating(name)}: {_text(error)}")


def _while_punctuating(name: str) -> str:
    return f"Exception caught while punctuating processor '{name}'"


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
