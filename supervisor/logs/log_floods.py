"""Limits repeated log lines, of librdkafka or caused by connections: one line, then the number of repetitions."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

#: The logger of all of librdkafka's lines, of clients/librdkafka/making.py, which must not be imported here.
LIBRDKAFKA = "penstock.librdkafka"
#: How long similar lines are only counted. If a broker is away, each client reports it twice a second.
QUIET_SECONDS = 60.0
#: Maximum number of different lines to remember.
LINES_MAX = 256
#: The differences between librdkafka's lines of the same meaning: client and thread in brackets, duration, count.
_VARIES = re.compile(r"\[[^\]]*\]:? ?|\(after .*\)$|\b\d+ ?(ms|s)\b")

_NUMBERS = re.compile(r"\d+")


@dataclass(slots=True)
class _Said:
    at: float
    more: int = 0


class FloodGate:
    """Passes the first of several equal lines, from any process or client.

    The next one that passes has the number of lines since. clock: monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._said: OrderedDict[tuple[int, str], _Said] = OrderedDict()

    def admits(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record; may add the number of suppressed records to its message."""
        now = self._clock()
        key = record.levelno, _alike(record)
        said = self._said.get(key)
        if said is not None and now - said.at < QUIET_SECONDS:
            said.more += 1
            return False
        if said is not None and said.more:
            record.msg = f"{record.getMessage()} (and {said.more} more like it in the last {now - said.at:.0f} s)"
            record.args = None
        self._said[key] = _Said(now)
        self._said.move_to_end(key)
        if len(self._said) > LINES_MAX:
            self._said.popitem(last=False)
        return True


def _alike(record: logging.LogRecord) -> str:
    """Return the common part of records with the same meaning."""
    if record.name == LIBRDKAFKA:
        return _VARIES.sub("", record.getMessage())
    # Lines that a client can cause may quote its data: use the message without arguments and addresses.
    return record.name + _NUMBERS.sub("", str(record.msg).partition("\n")[0])


class FloodFilter(logging.Filter):
    """Limits the lines of a logger, of all threads, or of some: the user's program may use the logger from others."""

    def __init__(self, *threads: str) -> None:
        super().__init__()
        self._threads = threads
        self._gate = FloodGate()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record."""
        return bool(self._threads and record.threadName not in self._threads) or self._gate.admits(record)


def bounded_logger(name: str) -> logging.Logger:
    """Return the rate-limited logger of a module whose lines outside clients can cause."""
    logger = logging.getLogger(name)
    logger.addFilter(FloodFilter())
    return logger
