"""Bounds what is said again and again, by librdkafka or because of those who connect: one line, then how often."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

#: The logger of all of librdkafka's lines: clients/librdkafka/making.py, which must not be imported here.
LIBRDKAFKA = "penstock.librdkafka"
#: How long a line like another is only counted. A broker that is away makes each client say so twice a second.
QUIET_SECONDS = 60.0
#: How many different lines are remembered.
LINES_MAX = 256
#: What differs between librdkafka's lines that say the same: client and thread in brackets, duration, how often.
_VARIES = re.compile(r"\[[^\]]*\]:? ?|\(after .*\)$|\b\d+ ?(ms|s)\b")

_NUMBERS = re.compile(r"\d+")


@dataclass(slots=True)
class _Said:
    at: float
    more: int = 0


class FloodGate:
    """Lets the first of several equal lines through, whichever process or client they come from.

    The next one that is let through says how many there were since. clock: monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._said: OrderedDict[tuple[int, str], _Said] = OrderedDict()

    def admits(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record; its message may have got the number of those that were not."""
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
    """Return what is equal in records that say the same."""
    if record.name == LIBRDKAFKA:
        return _VARIES.sub("", record.getMessage())
    # What anyone can cause may quote what they have sent: the message before its arguments, without addresses.
    return record.name + _NUMBERS.sub("", str(record.msg).partition("\n")[0])


class FloodFilter(logging.Filter):
    """Bounds what a logger says, of all threads, or of some: the user's program may log through it from others."""

    def __init__(self, *threads: str) -> None:
        super().__init__()
        self._threads = threads
        self._gate = FloodGate()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record."""
        return bool(self._threads and record.threadName not in self._threads) or self._gate.admits(record)


def bounded_logger(name: str) -> logging.Logger:
    """Return the logger of a module of ours that says what others can cause, as often as they like."""
    logger = logging.getLogger(name)
    logger.addFilter(FloodFilter())
    return logger
