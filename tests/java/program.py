"""TakeoverProgram's topology in Python, and a program that runs it: ``python -m tests.java.program FILE``."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock import KafkaStreams, Serdes, StreamsBuilder, StreamsMetadata, Suppressed, TimeWindows, Topology
from penstock.topology.errors import InvalidStateStoreError


@dataclass(frozen=True)
class Topics:
    """The application's input and output topics; the outputs belong to one application of the test.

    people: "" for a topology without them.
    """

    orders: str
    products: str
    counts: str
    final: str
    joined: str
    people: str = ""

    def properties(self) -> dict[str, str]:
        return {f"takeover.{name}": getattr(self, name) for name in self.__dataclass_fields__}


def topology(topics: Topics) -> Topology:
    """TakeoverProgram's topology."""
    builder = StreamsBuilder()
    string, int64 = Serdes.string(), Serdes.int64()
    products = builder.table(topics.products, key_serde=string, value_serde=string, store="products")
    orders = builder.stream(topics.orders, key_serde=string, value_serde=string)
    orders.group_by_key(key_serde=string, value_serde=string).count(store="counts").to_stream().to(
        topics.counts, key_serde=string, value_serde=int64
    )
    (
        orders.group_by_key(key_serde=string, value_serde=string)
        .windowed_by(TimeWindows.of_size_and_grace(10_000, 5_000))
        .count(store="windowed-counts")
        .suppress(Suppressed.until_window_closes())
        .to_stream(lambda windowed, count: f"{windowed.key}@{windowed.window.start}")
        .to(topics.final, key_serde=string, value_serde=int64)
    )
    (
        orders.select_key(lambda customer, product: product)
        .join(products, lambda order, product: f"{order}={product}", key_serde=string, value_serde=string)
        .to(topics.joined, key_serde=string, value_serde=string)
    )
    if topics.people:
        people = builder.table(topics.people, key_serde=string, value_serde=string, store="people")
        grouped = people.group_by(
            lambda person, value: (product_of(value), value), key_serde=string, value_serde=string
        )
        grouped.count(store="popularity")
        people.join(
            products,
            lambda favourite, name: f"{favourite}={name}",
            foreign_key=product_of,
            store="favourites",
            key_serde=string,
            value_serde=string,
        )
    return builder.build()


def product_of(favourite: str) -> str:
    """Return the product of a person's favourite: ``product/number``."""
    return favourite.partition("/")[0]


#: Names the properties file for `penstock run` and `penstock plan`, which take no arguments for a topology.
VARIABLE = "TAKEOVER_PROPERTIES"


def settings(file: Path) -> tuple[Topics, dict[str, str]]:
    """Return the contents of a properties file: the topics, and the rest."""
    found = dict(line.split("=", 1) for line in file.read_text().splitlines())
    return Topics(**{name: found.pop(f"takeover.{name}") for name in Topics.__dataclass_fields__}), found


def fitting() -> Topology:
    """Return the topology for the properties file in $TAKEOVER_PROPERTIES."""
    return topology(settings(Path(os.environ[VARIABLE]))[0])


def other() -> Topology:
    """Return one whose first sub-topology reads the topic of TakeoverProgram's second one."""
    topics = settings(Path(os.environ[VARIABLE]))[0]
    builder = StreamsBuilder()
    builder.table(topics.products, store="products")
    builder.stream(topics.orders).group_by_key().count(store="counts")
    return builder.build()


def watch_hosts(streams: KafkaStreams) -> None:
    """Write a line with each host's tasks whenever they change."""
    written = ""
    while True:
        time.sleep(0.1)
        with suppress(InvalidStateStoreError):
            hosts = "; ".join(sorted(map(host, streams.metadata_for_all_streams_clients())))
            if hosts != written:
                print("HOSTS", hosts, flush=True)
                written = hosts


def host(found: StreamsMetadata) -> str:
    """Return one host's tasks in TakeoverProgram's form."""
    active, standby = (
        " ".join(sorted(f"{topic}-{partition}" for topic, partition in partitions))
        for partitions in (found.topic_partitions, found.standby_topic_partitions)
    )
    return f"{found.host_info.host}:{found.host_info.port} active {active} standby {standby}"


def main() -> int:
    """Run the application with the settings in a properties file until SIGTERM; write its log, states and hosts."""
    logging.basicConfig(level=logging.INFO)
    topics, config = settings(Path(sys.argv[1]))
    streams = KafkaStreams(topology(topics), config)
    streams.set_state_listener(lambda now, before: print(now.name, flush=True))
    if "application.server" in config:
        threading.Thread(target=watch_hosts, args=[streams], daemon=True).start()
    return int(streams.run())


if __name__ == "__main__":
    sys.exit(main())
