"""Formats of log lines: for a terminal, for a JSON collector, for systemd's journal.

``penstock.log.format`` selects one; by default it is the journal's if stderr is connected to it, otherwise the
terminal's.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from penstock.statestore.view.spelling import printable_lines
from penstock.topology.config.streams_config import StreamsConfig

from .log_floods import LIBRDKAFKA
from .output_stream import OutputStream

#: For people.
PLAIN = "%(asctime)s %(levelname)-7s %(message)s (%(name)s)"
#: The journal keeps time and process itself.
JOURNAL = "%(message)s (%(name)s)"
#: Added by a worker's log handler to a record before it merges message and traceback.
MESSAGE, EXCEPTION = "penstock_message", "penstock_exception"
#: Attributes of each log record; all others are the user's fields.
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message", MESSAGE, EXCEPTION}


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields that ``extra=`` has added to a record."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD and name[:1] != "_"}


class JsonFormatter(logging.Formatter):
    """One JSON object in one line: time (UTC, ISO 8601 with ms), level, logger, message, process, pid, exception.

    Values of ``extra=`` are separate fields; a reserved name gets an underscore appended.

    fixed: further fields, the same in all lines. ascii_only: for a stream without Unicode.
    """

    def __init__(self, fixed: Mapping[str, object] | None = None, *, ascii_only: bool = False) -> None:
        super().__init__()
        self._fixed = dict(fixed or {})
        self._ascii_only = ascii_only

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": getattr(record, MESSAGE, None) or record.getMessage(),
            "process": record.processName,
            "pid": record.process,
            **self._fixed,
        }
        exception = getattr(record, EXCEPTION, None) or record.exc_text
        if record.exc_info and not exception:
            exception = self.formatException(record.exc_info)
        if exception:
            line["exception"] = exception
        for name, value in fields_of(record).items():
            line[f"{name}_" if name in line else name] = value
        return json.dumps(line, ensure_ascii=self._ascii_only, default=str)


class TextFormatter(logging.Formatter):
    """Text for people: control characters in quoted records must not reach their terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines."""
        return printable_lines(super().format(record))


class JournalFormatter(TextFormatter):
    """Lines with sd-daemon(3)'s priorities before them, so that ``journalctl -p err`` finds the errors.

    The journal takes each line as an entry: all lines of a traceback get its priority.
    """

    def __init__(self) -> None:
        super().__init__(JOURNAL)

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines."""
        priority = f"<{syslog_priority(record.levelno)}>"
        return "\n".join(priority + line for line in super().format(record).splitlines())


def syslog_priority(level: int) -> int:
    """Return the priority of syslog(3) for a level of logging."""
    levels = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
    return next((priority for lowest, priority in levels if level >= lowest), 7)


def formatter(
    name: str, fixed: Mapping[str, object], stderr: TextIO, environment: Mapping[str, str]
) -> logging.Formatter:
    """Return the formatter for a value of ``penstock.log.format``. fixed: fields of each JSON line."""
    if name == "auto":
        name = "journal" if is_the_journal(stderr, environment) else "plain"
    if name == "json":
        return JsonFormatter(fixed, ascii_only=not (stderr.encoding or "utf-8").lower().startswith("utf"))
    return JournalFormatter() if name == "journal" else TextFormatter(PLAIN)


def is_the_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether a stream is connected to systemd's journal (JOURNAL_STREAM in systemd.exec(5))."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # no file, or closed
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


class LogHandler(logging.Handler):
    """Writes log records to a stream without ever waiting for its reader; only the program's end waits, briefly."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.target = stream
        self.stream = OutputStream(
            lambda: stream,
            on_dropped=lambda count: logging.getLogger(__name__).warning(
                "%d lines of the log were dropped: stderr was not read", count
            ),
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Enqueue a record."""
        try:
            self.stream.write(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001  a record that cannot be formatted, as logging has it
            self.handleError(record)

    def flush(self) -> None:
        """Wait until the records are written, or their reader stops reading; logging calls it at the end."""
        self.stream.drain()


def set_up_logging(
    config: StreamsConfig, stderr: TextIO | None = None, environment: Mapping[str, str] | None = None
) -> None:
    """Configure logging of this process to stderr, by penstock.log.level and penstock.log.format."""
    stderr, environment = stderr or sys.stderr, os.environ if environment is None else environment
    handler = LogHandler(stderr)
    fixed = {"application": config["application.id"]}
    handler.setFormatter(formatter(config["penstock.log.format"], fixed, stderr, environment))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(config["penstock.log.level"])
    logging.captureWarnings(True)


#: Of an error's line, for the journal.
ERROR_PRIORITY = f"<{syslog_priority(logging.ERROR)}>"


def leave_client_logs_out() -> None:
    """Send librdkafka's lines to the log only, if there is one: a command reports its failure itself."""
    client = logging.getLogger(LIBRDKAFKA)
    if not client.handlers:  # otherwise Python writes warnings of loggers without a handler to stderr
        client.addHandler(logging.NullHandler())


def say_at_the_end(text: str) -> None:
    """Write the reason for the program's end; see write_error."""
    write_error(f"Error: {text}")


def write_error(text: str) -> None:
    """Write an error in the format of the log: plain for people, otherwise as a record.

    Before the log is set up, or if there is none, it goes to stderr; if stderr is systemd's journal, with its priority.
    """
    handlers = (handler for handler in logging.getLogger().handlers if isinstance(handler, LogHandler))
    ours = [handler for handler in handlers if handler.target is sys.stderr]
    text = printable_lines(text)
    if not ours:
        priority = ERROR_PRIORITY if is_the_journal(sys.stderr, os.environ) else ""
        print("\n".join(priority + line for line in text.split("\n")), file=sys.stderr, flush=True)
    elif isinstance(ours[0].formatter, JsonFormatter | JournalFormatter):
        logging.getLogger("penstock").error("%s", text)
    else:
        ours[0].stream.write(f"{text}\n")


def flush_log() -> None:
    """Flush the log, so that output by other means follows it."""
    for handler in logging.getLogger().handlers:
        handler.flush()
