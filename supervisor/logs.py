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

#: For people.
PLAIN = "%(asctime)s %(levelname)-7s %(message)s (%(name)s)"
#: The journal keeps time and process itself.
JOURNAL = "%(message)s (%(name)s)"
#: What a worker's log handler adds to a record before it makes one text of message and traceback.
MESSAGE, EXCEPTION = "penstock_message", "penstock_exception"


class JsonFormatter(logging.Formatter):
    """One JSON object in one line: time (UTC, ISO 8601 with ms), level, logger, message, process, pid, exception.

    fixed: further fields that are the same in all lines.
    """

    def __init__(self, fixed: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._fixed = dict(fixed or {})

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
        return json.dumps(line, ensure_ascii=False, default=str)


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
        return JsonFormatter(fixed)
    return JournalFormatter() if name == "journal" else TextFormatter(PLAIN)


def is_the_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether a stream is connected to systemd's journal (JOURNAL_STREAM in systemd.exec(5))."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # no file, or closed
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def set_up_logging(
    config: Mapping[str, Any], stderr: TextIO | None = None, environment: Mapping[str, str] | None = None
) -> None:
    """Have this process log to stderr, as penstock.log.level and penstock.log.format say."""
    stderr, environment = stderr or sys.stderr, os.environ if environment is None else environment
    handler = logging.StreamHandler(stderr)
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
    formatters = [type(handler.formatter) for handler in logging.getLogger().handlers]
    if {JsonFormatter, JournalFormatter}.isdisjoint(formatters):
        print(f"Error: {printable_lines(text)}", file=sys.stderr, flush=True)
    else:
        logging.getLogger("penstock").error("Error: %s", text)
