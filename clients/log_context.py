"""Loggers that put a prefix before each line, e.g. ``stream-thread [app-StreamThread-1] `` (Kafka: LogContext)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, MutableMapping
from typing import Any

#: Kafka logs some lines at TRACE; Python's logging has no such level.
TRACE = 5
logging.addLevelName(TRACE, "TRACE")


class PrefixedLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines start with a prefix. The prefix may contain any character, including a percent sign."""

    def __init__(self, name: str, prefix: str) -> None:
        super().__init__(logging.getLogger(name), {})
        self.prefix = prefix

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, object]]:
        """Leave the message as it is: log() adds the prefix as an argument."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line with the prefix; all other methods of the adapter call this one."""
        if self.logger.isEnabledFor(level):
            self.logger.log(level, f"%s{msg}", self.prefix, *args, **kwargs)

    def trace(self, msg: str, *args: object) -> None:
        """Log a line at TRACE."""
        self.log(TRACE, msg, *args)


def listed(things: Iterable[Any]) -> str:
    """Return task ids or partitions as Kafka Streams' log lines show them: ``[0_0, 0_1]``."""
    return f"[{', '.join(map(str, sorted(things)))}]"
