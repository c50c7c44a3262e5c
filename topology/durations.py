"""Durations as users give them: ``timedelta`` or int milliseconds."""

from __future__ import annotations

from datetime import timedelta

from .errors import TopologyError

#: A duration: ``timedelta``, or an int of milliseconds.
Duration = timedelta | int

_MILLISECOND = timedelta(milliseconds=1)


def to_millis(duration: Duration, what: str) -> int:
    """Return a duration in whole milliseconds; what names it in errors.

    Raises TypeError for other types (a bare float would hide whether seconds or milliseconds are meant), and
    TopologyError for a timedelta that is not a whole number of milliseconds.
    """
    if isinstance(duration, timedelta):
        millis, rest = divmod(duration, _MILLISECOND)
        if rest:
            raise TopologyError(f"{what} must be whole milliseconds, got {duration!r}")
        return millis
    if isinstance(duration, int) and not isinstance(duration, bool):
        return duration
    raise TypeError(f"{what} must be a timedelta or an int of milliseconds, got {duration!r}")


def non_negative_millis(duration: Duration, what: str) -> int:
    """Return a duration in milliseconds; raises TopologyError if it is negative."""
    millis = to_millis(duration, what)
    if millis < 0:
        raise TopologyError(f"{what} must not be negative, got {millis} ms")
    return millis
