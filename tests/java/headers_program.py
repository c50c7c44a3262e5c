"""HeadersProgram's topology in Python, and a program that runs it: ``python -m tests.java.headers_program FILE``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from penstock import (
    AggregationWithHeaders,
    KafkaStreams,
    Processor,
    Record,
    Serdes,
    StoreBuilder,
    Stores,
    Topology,
    ValueTimestampHeaders,
    Windowed,
)
from penstock.testing import TopologyTestDriver

RETENTION = timedelta(hours=24)
LAST = 2**63 - 1
#: Header names and values of a command.
Pairs = list[tuple[str, bytes | None]]


def settings(file: Path) -> dict[str, str]:
    """Return the contents of a properties file."""
    return dict(line.split("=", 1) for line in file.read_text().splitlines())


def without_ours(config: dict[str, str]) -> dict[str, str]:
    """Return the settings that are Kafka Streams'."""
    return {name: value for name, value in config.items() if not name.startswith("headers.")}


def store_builders(caching: bool) -> list[StoreBuilder[Any]]:
    """Return the stores, on disk and in memory."""
    rows = Stores.timestamped_key_value_store_with_headers_builder
    windows = Stores.timestamped_window_store_with_headers_builder
    sessions = Stores.session_store_with_headers_builder
    on_disk = Stores.persistent_timestamped_window_store_with_headers("windows-disk", RETENTION, 10)
    text = Serdes.string()
    builders: list[StoreBuilder[Any]] = [
        rows(Stores.persistent_timestamped_key_value_store_with_headers("rows-disk"), text, text),
        rows(Stores.in_memory_key_value_store("rows-memory"), text, text),
        windows(on_disk, text, text),
        windows(Stores.in_memory_window_store("windows-memory", RETENTION, 10), text, text),
        sessions(Stores.persistent_session_store_with_headers("sessions-disk", RETENTION), text, text),
        sessions(Stores.in_memory_session_store("sessions-memory", RETENTION), text, text),
    ]
    return [builder.with_caching_enabled() if caching else builder for builder in builders]


def topology(config: dict[str, str]) -> Topology:
    """Return HeadersProgram's topology."""
    text = Serdes.string()
    made = Topology()
    made.add_source("source", config["headers.input"], key_serde=text, value_serde=text)
    made.add_processor("processor", Commands, "source")
    for builder in store_builders(config["headers.caching"] == "true"):
        made.add_state_store(builder, "processor")
    made.add_sink("sink", config["headers.output"], "processor", key_serde=text, value_serde=text)
    return made


class Commands(Processor[str, str, str, str]):
    """Does to each store what the value of a record says, and forwards what the stores then have."""

    def process(self, record: Record[str, str]) -> None:
        text = ""
        for where in ("disk", "memory"):
            text += self.rows(self.context.get_state_store(f"rows-{where}"), record)
            text += self.windows(self.context.get_state_store(f"windows-{where}"), record)
            text += self.sessions(self.context.get_state_store(f"sessions-{where}"), record)
        self.context.forward(record.with_value(text))

    def rows(self, store: Any, record: Record[str, str]) -> str:
        key, text = record.key, ""
        match record.value:
            case "read":
                pass
            case "delete":
                text = shown(store.delete(key))
            case "null":
                store.put(key, None)
            case "absent":
                text = shown(store.put_if_absent(key, value_of(record)))
            case _:
                store.put(key, value_of(record))
        rows = "".join(f" {key}={shown(value)}" for key, value in store.all())
        return text + shown(store.get(key)) + rows

    def windows(self, store: Any, record: Record[str, str]) -> str:
        key, start = record.key, record.timestamp // 10 * 10
        if record.value in ("delete", "null"):
            store.put(key, None, start)
        elif record.value != "read":
            store.put(key, value_of(record), start)
        rows = "".join(f" {start}={shown(value)}" for start, value in store.fetch_range(key, 0, LAST))
        return ";" + shown(store.fetch(key, start)) + rows

    def sessions(self, store: Any, record: Record[str, str]) -> str:
        key, start = record.key, record.timestamp // 10 * 10
        session = Windowed(key, start, start + 5)
        match record.value:
            case "read":
                pass
            case "delete":
                store.remove(session)
            case "null":
                store.put(session, None)
            case _:
                store.put(session, AggregationWithHeaders(record.value, record.headers))
        rows = "".join(f" {found.start}={shown(value)}" for found, value in store.find_sessions(key, 0, LAST))
        return ";" + shown(store.fetch_session(key, start, start + 5)) + rows + "\n"


def value_of(record: Record[str, str]) -> ValueTimestampHeaders[str]:
    """Return a value with its own time and headers, to tell them from those of the record."""
    headers = list(record.headers or ())
    if record.value.startswith("more"):
        headers.append(("more", "é".encode()))
    return ValueTimestampHeaders(record.value, record.timestamp + 1, headers)


def shown(found: ValueTimestampHeaders[str] | AggregationWithHeaders[str] | None) -> str:
    if found is None:
        return "-"
    time = f"@{found.timestamp}" if isinstance(found, ValueTimestampHeaders) else ""
    return f"{found[0]}{time}{shown_headers(found.headers)}"


def shown_headers(headers: Sequence[tuple[str, bytes | None]] | None) -> str:
    return "[" + ",".join(f"{name}:{hexadecimal(value)}" for name, value in headers or ()) + "]"


def hexadecimal(data: bytes | None) -> str:
    return "null" if data is None else data.hex()


def parsed(line: str) -> tuple[str, str, int, Pairs]:
    """Return key, value, timestamp and headers of a command: see HeadersProgram."""
    key, value, timestamp, *headers = line.split(" ")
    pairs = (header.partition("=") for header in headers)
    return key, value, int(timestamp), [(name, bytes.fromhex(data) if has else None) for name, has, data in pairs]


def record(config: dict[str, str], commands: list[str]) -> list[str]:
    """Run commands in a TopologyTestDriver; return what each record has produced, as HeadersProgram writes it."""
    produced = []
    raw = Serdes.bytes()
    with TopologyTestDriver(topology(config), without_ours(config)) as driver:
        source = driver.create_input_topic(config["headers.input"], Serdes.string(), Serdes.string())
        for command in commands:
            key, value, timestamp, headers = parsed(command)
            source.pipe_input(key, value, timestamp, headers=headers)
            for topic in sorted(driver.produced_topic_names()):
                for found in driver.create_output_topic(topic, raw, raw).read_records_to_list():
                    data = f"{hexadecimal(found.key)} {hexadecimal(found.value)} {found.timestamp}"
                    produced.append(f"{topic} {data} {shown_headers(found.headers)}")
    return produced


def main() -> int:
    """Run the application with the settings in a properties file until SIGTERM; write its log and states."""
    logging.basicConfig(level=logging.INFO)
    config = settings(Path(sys.argv[1]))
    streams = KafkaStreams(topology(config), without_ours(config))
    streams.set_state_listener(lambda now, before: print(now.name, flush=True))
    return int(streams.run())


if __name__ == "__main__":
    sys.exit(main())
