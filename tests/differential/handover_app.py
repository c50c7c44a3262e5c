"""The topology of the handover tests: every kind of store that an aggregation, a join or a buffer uses.

$HANDOVER_TOPICS is the prefix of its topics: stream threads are separate processes and import this.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from penstock import BufferConfig, Serdes, SessionWindows, StreamsBuilder, Suppressed, TimeWindows, Windowed

VARIABLE = "HANDOVER_TOPICS"
STRINGS: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
NUMBERS: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.int64()}
WINDOW = timedelta(seconds=60)
GAP = timedelta(seconds=30)
INPUTS = ("words", "names")
OUTPUTS = ("counts", "windows", "finals", "sessions", "named")


def window_name(window: Windowed, _value: Any = None) -> str:
    """Return a window's key in an output topic."""
    return f"{window.key}@{window.start}"


def session_name(window: Windowed, _value: Any = None) -> str:
    """Return a session's key in an output topic."""
    return f"{window.key}@{window.start}-{window.end}"


def topology() -> StreamsBuilder:
    """Count words in five ways; name them by a table."""
    mark = os.environ[VARIABLE]
    builder = StreamsBuilder()
    words = builder.stream(f"{mark}words", **STRINGS)
    names = builder.table(f"{mark}names", store="names", **STRINGS)
    words.group_by(lambda _key, word: word, name="by-word", **STRINGS).count(store="counts").to_stream().to(
        f"{mark}counts", **NUMBERS
    )
    keyed = words.group_by_key(**STRINGS)
    windowed = keyed.windowed_by(TimeWindows(WINDOW, grace=timedelta(0))).count(store="windows")
    windowed.to_stream(window_name).to(f"{mark}windows", **NUMBERS)
    closed = windowed.suppress(Suppressed.until_window_closes(BufferConfig.unbounded(), name="finals"))
    closed.to_stream(window_name).to(f"{mark}finals", **NUMBERS)
    sessions = keyed.windowed_by(SessionWindows(GAP, grace=timedelta(0))).count(store="sessions")
    sessions.to_stream(session_name).to(f"{mark}sessions", **NUMBERS)
    words.left_join(names, lambda word, name: f"{word} of {name}").to(f"{mark}named", **STRINGS)
    return builder
