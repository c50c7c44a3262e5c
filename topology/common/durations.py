"""Durations and moments as users pass them: ``timedelta``, ``datetime``, or int milliseconds."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from ..errors import TopologyError

#: A duration: ``timedelta``, or an int of milliseconds.
Duration = timedelta | int
#: A moment: a datetime with a time zone, or an int of milliseconds since the epoch.
Moment = datetime | int

#: A duration in a configuration, in the format of Java's Duration.parse (days to seconds), without signs.
ISO_8601_DURATION = r"P(?=\d|T\d)(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,9})?)S)?)?"

_MILLISECOND = timedelta(milliseconds=1)


def to_millis(duration: Duration, what: str) -> int:
    """Return a duration in whole milliseconds. what: its name in errors.

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


def epoch_millis(moment: Moment, what: str) -> int:
    """Return a moment in milliseconds since the epoch. what: its name in errors.

    Raises TypeError for other types, and TopologyError for a datetime without a time zone or a negative number.
    """
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise TopologyError(f"{what} needs a time zone, got {moment!r}: datetime(..., tzinfo=UTC)")
        millis = int(moment.timestamp() * 1000)
    elif isinstance(moment, int) and not isinstance(moment, bool):
        millis = moment
    else:
        raise TypeError(f"{what} must be a datetime or an int of milliseconds since the epoch, got {moment!r}")
    if millis < 0:
        raise TopologyError(f"{what} must not be before 1970, got {moment!r}")
    return millis


def non_negative_millis(duration: Duration, what: str) -> int:
    """Return a duration in milliseconds; raises TopologyError if it is negative."""
    millis = to_millis(duration, what)
    if millis < 0:
        raise TopologyError(f"{what} must not be negative, got {millis} ms")
    return millis


def iso_8601_millis(text: str) -> int:
    """Return the milliseconds of a duration such as ``P1DT12H`` or ``PT0.5S``; raises ValueError for any other text."""
    found = re.fullmatch(ISO_8601_DURATION, text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration: write it as P1DT12H, PT30M or PT0.5S")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) // _MILLISECOND
