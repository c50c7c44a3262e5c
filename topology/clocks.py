"""The two clocks of a task."""

from __future__ import annotations

from enum import Enum


class Punctuation(Enum):
    """The clock of a punctuation, a timer or a ttl (Kafka Streams: PunctuationType)."""

    STREAM_TIME = "stream_time"
    WALL_CLOCK_TIME = "wall_clock_time"
