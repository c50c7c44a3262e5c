"""Logging in the process of a stream thread: each record reaches the supervisor once, whatever is configured there.

The supervisor owns the console: it decides the format and writes whole lines. A user's module owns everything else,
e.g. files. So here the root logger has no handlers until that module adds some, records are sent before handlers see
them, and handlers that would write to the console do nothing. logging has no hook for that, so two of its methods are
wrapped. docs/logging.md describes the effect on the usual libraries.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from ..channels.channel import Channel
from .formats import EXCEPTION, MESSAGE, fields_of

#: Parent of all of Penstock's loggers.
OURS = "penstock"
#: Keys that structlog puts into an event for other processors, not for readers; a log record has them already.
_NOT_FIELDS = ("event", "level", "logger", "timestamp", "exc_info", "stack_info")


class PipeLogHandler(logging.handlers.QueueHandler):
    """Sends each log record to the supervisor, whose thread writes it: lines of two processes never mix."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Make a record picklable; message and traceback, which become one text, are kept apart for JSON too.

        Values of ``extra=`` become plain values: the supervisor must not need the user's classes.
        """
        event = record.msg if isinstance(record.msg, Mapping) and "event" in record.msg else None
        fields = fields_of(record)
        if event is not None:
            record, fields = _of_event(record, event)
        message = record.getMessage()
        prepared: logging.LogRecord = super().prepare(record)
        vars(prepared).update({name: plain(value) for name, value in fields.items()})
        setattr(prepared, EXCEPTION, prepared.message.removeprefix(message).lstrip("\n"))
        setattr(prepared, MESSAGE, message if event is None else str(event["event"]))
        return prepared

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a record that QueueHandler has made picklable."""
        channel: Channel = self.queue  # type: ignore[assignment]  # any object will do, says logging's documentation
        channel.send(record)


def plain(value: object) -> Any:
    """Return a value as JSON would hold it: other values become text."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    try:
        return json.loads(json.dumps(value, default=str))
    except (TypeError, ValueError):  # keys that are not strings, or a cycle
        return repr(value)


def _of_event(record: logging.LogRecord, event: Mapping[str, Any]) -> tuple[logging.LogRecord, dict[str, object]]:
    """Return a record for an event of structlog, a dict: its text for people, and its fields."""
    fields = {str(key): value for key, value in event.items() if key not in _NOT_FIELDS and not key.startswith("_")}
    text = " ".join([str(event["event"]), *(f"{key}={plain(value)}" for key, value in fields.items())])
    exception = event.get("exc_info") or record.exc_info
    if isinstance(exception, BaseException):
        exception = type(exception), exception, exception.__traceback__
    elif exception is True:
        exception = sys.exc_info()
    made = logging.LogRecord(record.name, record.levelno, record.pathname, record.lineno, "%s", (text,), exception)
    return made, fields


def _of_loguru(found: Mapping[str, Any]) -> logging.LogRecord:
    """Return the record for one of loguru's, a dict."""
    exception = tuple(found["exception"]) if found["exception"] else None
    name, level, path, line = found["name"] or "root", found["level"], found["file"].path, found["line"]
    record = logging.LogRecord(name, level.no, path, line, "%s", (found["message"],), exception, found["function"])
    record.levelname = level.name
    for key, value in found["extra"].items():
        vars(record).setdefault(key, value)
    return record


def set_up_logging(channel: Channel, level: str) -> None:
    """Send all records of this process from penstock.log.level on to the supervisor.

    Called before the user's module is imported. Handlers that exist by then are copies of the main program's, whose
    module this process has imported; the main program has them, and gets all records.
    """
    sender = PipeLogHandler(channel)  # type: ignore[arg-type]
    sender.setLevel(level)
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
    logging.root.setLevel(level)
    logging.getLogger(OURS).setLevel(level)
    logging.lastResort = logging.NullHandler()
    logging.captureWarnings(True)
    undo = [_wrap_loggers(sender), _wrap_stream_handlers()]
    undo += [_wrap_stream(stream, sender) for stream in (sys.__stdout__, sys.__stderr__) if stream is not None]
    os.register_at_fork(after_in_child=lambda: _leave_to_stderr(undo, level))


def _wrap_loggers(sender: PipeLogHandler) -> Callable[[], None]:
    call_handlers = logging.Logger.callHandlers

    def send_and_call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
        if record.levelno >= sender.level:
            sender.handle(record)
        call_handlers(logger, record)

    setattr(logging.Logger, "callHandlers", send_and_call_handlers)  # noqa: B010  a method, for mypy
    return lambda: setattr(logging.Logger, "callHandlers", call_handlers)


def _wrap_stream_handlers() -> Callable[[], None]:
    emit = logging.StreamHandler.emit

    def emit_elsewhere(handler: logging.StreamHandler[TextIO], record: logging.LogRecord) -> None:
        if handler.stream is not sys.__stdout__ and handler.stream is not sys.__stderr__:
            emit(handler, record)

    setattr(logging.StreamHandler, "emit", emit_elsewhere)  # noqa: B010
    return lambda: setattr(logging.StreamHandler, "emit", emit)


def _wrap_stream(stream: TextIO, sender: PipeLogHandler) -> Callable[[], None]:
    """Make a stream recognize loguru's output: strings that carry their record."""
    write = stream.write

    def write_or_send(text: str) -> int:
        found = getattr(text, "record", None)
        if found is None:
            return write(text)
        record = _of_loguru(found)
        if record.levelno >= sender.level:
            sender.handle(record)
        return len(text)

    setattr(stream, "write", write_or_send)  # noqa: B010
    return lambda: setattr(stream, "write", write)


def _leave_to_stderr(undo: list[Callable[[], None]], level: str) -> None:
    """Remove the pipe in a process that was forked from this one: records of two processes would mix in it."""
    for one in undo:
        one()
    logging.basicConfig(level=level, format="%(levelname)s %(message)s (%(name)s)")


def adopt_libraries() -> None:
    """Finish the set-up that is possible only once the user's module is imported.

    A dictConfig with its default, disable_existing_loggers, has disabled our loggers. An unconfigured structlog prints
    to stdout: then it is redirected to logging.
    """
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == OURS:
            logger.disabled = False
    structlog = sys.modules.get("structlog")
    if structlog is not None and not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.contextvars.merge_contextvars,
                structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=structlog.stdlib.LoggerFactory(),
        )
