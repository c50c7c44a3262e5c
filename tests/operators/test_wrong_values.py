"""A processor that puts the values of another kind of store."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    AggregationWithHeaders,
    Processor,
    Record,
    Serdes,
    StoreBuilder,
    Stores,
    StreamsBuilder,
    StreamsError,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    Windowed,
)
from penstock.testing import TopologyTestDriver

TEXT = Serdes.string()
HEADERS = [("h", b"1")]
VALUES: dict[str, Any] = {
    "value": "v",
    "ValueAndTimestamp": ValueAndTimestamp("v", 5),
    "ValueTimestampHeaders": ValueTimestampHeaders("v", 5, HEADERS),
    "AggregationWithHeaders": AggregationWithHeaders("v", HEADERS),
}
PLAIN = Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), TEXT, TEXT)
MEMORY = Stores.in_memory_key_value_store("s")
TIMED = Stores.timestamped_key_value_store_builder(Stores.persistent_timestamped_key_value_store("s"), TEXT, TEXT)
OVER_PLAIN = Stores.timestamped_key_value_store_builder(Stores.persistent_key_value_store("s"), TEXT, TEXT)
WITH_HEADERS = Stores.timestamped_key_value_store_with_headers_builder(
    Stores.persistent_timestamped_key_value_store_with_headers("s"), TEXT, TEXT
)
WINDOWS = Stores.persistent_window_store("s", 60_000, 1_000)
TIMED_WINDOWS = Stores.timestamped_window_store_builder(
    Stores.persistent_timestamped_window_store("s", 60_000, 1_000), TEXT, TEXT
)
SESSIONS = Stores.session_store_builder(Stores.persistent_session_store("s", 60_000), TEXT, TEXT)
VERSIONS = Stores.versioned_key_value_store_builder(
    Stores.persistent_versioned_key_value_store("s", 60_000), TEXT, TEXT
)
PLAIN_TEXT = ("value", "plain values: put the value alone")
TIMED_TEXT = (
    "ValueAndTimestamp",
    r"values with timestamps, without headers: put ValueAndTimestamp\(value, timestamp\)",
)
HEADERS_TEXT = (
    "ValueTimestampHeaders",
    r"values with timestamps and headers: put ValueTimestampHeaders\(value, timestamp, headers\)",
)
STORES: dict[str, tuple[Any, tuple[str, str]]] = {
    "plain": (PLAIN, PLAIN_TEXT),
    "plain, cached": (PLAIN.with_caching_enabled(), PLAIN_TEXT),
    "plain, in memory": (Stores.key_value_store_builder(MEMORY, TEXT, TEXT), PLAIN_TEXT),
    "timestamps": (TIMED, TIMED_TEXT),
    "timestamps, cached": (TIMED.with_caching_enabled(), TIMED_TEXT),
    "timestamps, unlogged": (TIMED.with_logging_disabled(), TIMED_TEXT),
    "timestamps over plain": (OVER_PLAIN, TIMED_TEXT),
    "headers": (WITH_HEADERS, HEADERS_TEXT),
    "headers, cached": (WITH_HEADERS.with_caching_enabled(), HEADERS_TEXT),
    "windows": (Stores.window_store_builder(WINDOWS, TEXT, TEXT), PLAIN_TEXT),
    "windows, cached": (Stores.window_store_builder(WINDOWS, TEXT, TEXT).with_caching_enabled(), PLAIN_TEXT),
    "windows, timestamps": (TIMED_WINDOWS, TIMED_TEXT),
    "windows, timestamps, cached": (TIMED_WINDOWS.with_caching_enabled(), TIMED_TEXT),
    "sessions": (SESSIONS, PLAIN_TEXT),
    "sessions, cached": (SESSIONS.with_caching_enabled(), PLAIN_TEXT),
    "versions": (VERSIONS, PLAIN_TEXT),
}


def put(name: str, store: Any, key: str, value: object) -> None:
    if name.startswith("windows"):
        store.put(key, value, 0)
    elif name.startswith("sessions"):
        store.put(Windowed(key, 0, 5), value)
    elif name == "versions":
        store.put(key, value, 5)
    else:
        store.put(key, value)


def run(name: str, builder: StoreBuilder[Any], value: object) -> None:
    class Putting(Processor[str, str, str, str]):
        def process(self, record: Record[str, str]) -> None:
            put(name, self.context.get_state_store("s"), record.key, value)

    declared = StreamsBuilder()
    declared.add_state_store(builder)
    declared.stream("in", key_serde=TEXT, value_serde=TEXT).process(Putting, "s")
    with TopologyTestDriver(declared.build()) as driver:
        driver.create_input_topic("in").pipe_input("k", "v")


@pytest.mark.parametrize("given", VALUES)
@pytest.mark.parametrize("name", STORES)
def test_the_error_says_what_the_store_keeps(name: str, given: str) -> None:
    builder, (fitting, text) = STORES[name]
    if given == fitting:
        run(name, builder, VALUES[given])
        return
    kind = type(VALUES[given]).__name__
    with pytest.raises(StreamsError, match=f"The store s keeps {text}, not {kind}"):
        run(name, builder, VALUES[given])


def test_a_value_of_the_right_kind_that_cannot_be_written_keeps_its_error() -> None:
    with pytest.raises(StreamsError, match=r"SerializationError: Serdes\.string.* cannot write a value of type int"):
        run("plain", PLAIN, 5)
    with pytest.raises(StreamsError, match=r"SerializationError: Serdes\.string.* cannot write a value of type int"):
        run("timestamps", TIMED, ValueAndTimestamp(5, 5))
