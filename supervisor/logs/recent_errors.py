"""The last errors that an application has logged, so that operators see them without searching the log."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass

from penstock.clients.clock import Clock
from penstock.clients.log_context import PrefixedLogger

#: The number of errors to keep, and their maximum length: the log has the rest.
ERRORS_MAX = 20
MESSAGE_MAX = 2_000


@dataclass(frozen=True, slots=True)
class LoggedError:
    """One error. time_ms: since 1970. logger: the logger's name. The message may be truncated."""

    time_ms: int
    logger: str
    message: str


class RecentErrors:
    """Log records of ERROR or above, of the supervisor and the stream threads. Any thread may use it."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = threading.Lock()
        self._errors: deque[LoggedError] = deque(maxlen=ERRORS_MAX)

    def note(self, time_ms: int, logger: str, message: str) -> None:
        """Keep an error; drops the oldest one."""
        with self._lock:
            self.total += 1
            self._errors.append(LoggedError(time_ms, logger, message[:MESSAGE_MAX]))

    def note_record(self, record: logging.LogRecord) -> None:
        """Keep a log record if it is an error."""
        if record.levelno >= logging.ERROR:
            self.note(int(record.created * 1000), record.name, record.getMessage())

    def all(self) -> list[LoggedError]:
        """Return them, the latest last."""
        with self._lock:
            return list(self._errors)


class NotingLogger(PrefixedLogger):
    """A logger that keeps its errors too."""

    def __init__(self, name: str, prefix: str, errors: RecentErrors, clock: Clock) -> None:
        super().__init__(name, prefix)
        self._errors = errors
        self._clock = clock

    def log(self, level: int, msg: object, *args: object, **kwargs: object) -> None:
        """Log a line with the prefix, and keep it if it is an error."""
        super().log(level, msg, *args, **kwargs)
        if level >= logging.ERROR:
            self._errors.note(self._clock.wall_clock_ms(), self.logger.name, str(msg) % args if args else str(msg))
