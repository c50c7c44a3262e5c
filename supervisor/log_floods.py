"""Bounds what librdkafka says again and again: one line, then how often."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

#: The logger of all of librdkafka's lines: workers/client_supplier.py, which must not be imported here.
LIBRDKAFKA = "penstock.librdkafka"
#: How long a line like another is only counted. A broker that is away makes each client say so twice a second.
QUIET_SECONDS = 60.0
#: How many different lines are remembered.
LINES_MAX = 256
#: What differs between lines that say the same: client and thread in brackets, how long it took, how often.
_VARIES = re.compile(r"\[[^\]]*\]:? ?|\(after .*\)$|\b\d+ ?(ms|s)\b")


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
        if record.name != LIBRDKAFKA:
            return True
        now = self._clock()
        key = record.levelno, _VARIES.sub("", record.getMessage())
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
