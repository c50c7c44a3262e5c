"""How log lines look: for a terminal, for a collector that reads JSON, for systemd's journal.

``penstock.log.format`` says which; by itself it is the journal's where stderr is connected to it, else the terminal's.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from penstock.statestore.spelling import printable_lines

from .log_floods import LIBRDKAFKA
from .output_stream import OutputStream

#: For people.
PLAIN = "%(asctime)s %(levelname)-7s %(message)s (%(name)s)"
#: The journal keeps time and process itself.
JOURNAL = "%(message)s (%(name)s)"
#: What a worker's log handler adds to a record before it makes one text of message and traceback.
MESSAGE, EXCEPTION = "penstock_message", "penstock_exception"
#: What each log record has; all else are the user's fields.
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message", MESSAGE, EXCEPTION}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return what ``extra=`` has added to a record."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD and name[:1] != "_"}


class JsonFormatter(logging.Formatter):
    """One JSON object in one line: time (UTC, ISO 8601 with ms), level, logger, message, process, pid, exception.

    What ``extra=`` adds has its own fields; a name of ours gets an underscore behind it.

    fixed: further fields that are the same in all lines. ascii_only: for a stream that takes no Unicode.
    """

    def __init__(self, fixed: Mapping[str, Any] | None = None, *, ascii_only: bool = False) -> None:
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
    """Text for people: what a message quotes of a record must not reach their terminal as control characters."""

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


def formatter(name: str, fixed: Mapping[str, Any], stderr: TextIO, environment: Mapping[str, str]) -> logging.Formatter:
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
    """Writes log records to a stream without ever waiting for its reader; the end of the program does, for a moment."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = OutputStream(
            lambda: stream,
            on_dropped=lambda count: logging.getLogger(__name__).warning(
                "%d lines of the log were dropped: stderr was not read", count
            ),
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record written."""
        try:
            self.stream.write(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001  a record that cannot be formatted, as logging has it
            self.handleError(record)

    def flush(self) -> None:
        """Wait until the records are written, or their reader takes no more; logging calls it at the end."""
        self.stream.drain()


def set_up_logging(
    config: Mapping[str, Any], stderr: TextIO | None = None, environment: Mapping[str, str] | None = None
) -> None:
    """Have this process log to stderr, as penstock.log.level and penstock.log.format say."""
    stderr, environment = stderr or sys.stderr, os.environ if environment is None else environment
    handler = LogHandler(stderr)
    fixed = {"application": config["application.id"]}
    handler.setFormatter(formatter(config["penstock.log.format"], fixed, stderr, environment))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(config["penstock.log.level"])
    logging.captureWarnings(True)


def leave_client_logs_out() -> None:
    """Have librdkafka's lines go to the log only, where there is one: a command says itself what has failed."""
    client = logging.getLogger(LIBRDKAFKA)
    if not client.handlers:  # else Python writes warnings of loggers without a handler to stderr
        client.addHandler(logging.NullHandler())


def say_at_the_end(text: str) -> None:
    """Write why the program ends, in the format of the log: plainly for people, else as one more record."""
    ours = [handler for handler in logging.getLogger().handlers if isinstance(handler, LogHandler)]
    if not ours:
        print(f"Error: {printable_lines(text)}", file=sys.stderr, flush=True)
    elif isinstance(ours[0].formatter, JsonFormatter | JournalFormatter):
        logging.getLogger("penstock").error("Error: %s", text)
    else:
        ours[0].stream.write(f"Error: {printable_lines(text)}\n")


def flush_log() -> None:
    """Have all that was logged written, so that what is written by other means follows it."""
    for handler in logging.getLogger().handlers:
        handler.flush()
