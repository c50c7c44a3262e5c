"""The benchmark's topologies in Quix Streams: topology, the file with the properties, the number of the process."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from quixstreams import Application, State
from quixstreams.models import Serializer

WINDOW = timedelta(seconds=10)


def count(application: Application) -> None:
    """Count the purchases of each user, and give the count as Kafka's LongSerializer writes it."""

    def counted(_purchase: bytes, state: State) -> bytes:
        total: int = state.get("count", 0) + 1
        state.set("count", total)
        return total.to_bytes(8, "big")

    purchases = application.topic(os.environ["BENCHMARK_INPUT"], key_deserializer="bytes", value_deserializer="bytes")
    counts = application.topic(os.environ["BENCHMARK_OUTPUT"], key_serializer="bytes", value_serializer="bytes")
    application.dataframe(purchases).apply(counted, stateful=True).to_topic(counts)


class WindowCount(Serializer):
    """Writes the result of a window in the form of Kafka's LongSerializer."""

    def __call__(self, value: dict[str, Any], ctx: object) -> bytes:
        return int(value["value"]).to_bytes(8, "big")


def windowed_count(application: Application) -> None:
    """Count the purchases of each user in every ten seconds; the key of a count ends with its window's start."""

    def with_key(window: dict[str, Any], key: bytes, _timestamp: int, _headers: object) -> dict[str, Any]:
        return {**window, "key": key + window["start"].to_bytes(8, "big")}

    purchases = application.topic(os.environ["BENCHMARK_INPUT"], key_deserializer="bytes", value_deserializer="bytes")
    counts = application.topic(os.environ["BENCHMARK_OUTPUT"], key_serializer="bytes", value_serializer=WindowCount())
    windows = application.dataframe(purchases).tumbling_window(WINDOW).count().current()
    windows.apply(with_key, metadata=True).to_topic(counts, key=lambda window: window["key"])


def map_filter(application: Application) -> None:
    """Keep the purchases of an odd amount and add its double."""

    def with_double(purchase: dict[str, Any]) -> dict[str, Any]:
        return {**purchase, "x": purchase["amount"] * 2}

    purchases = application.topic(os.environ["BENCHMARK_INPUT"], key_deserializer="bytes", value_deserializer="json")
    doubled = application.topic(os.environ["BENCHMARK_OUTPUT"], key_serializer="bytes", value_serializer="json")
    odd = application.dataframe(purchases).filter(lambda purchase: purchase["amount"] % 2 != 0)
    odd.apply(with_double).to_topic(doubled)


def map_filter_columns(application: Application) -> None:
    """Do the same with columns, which the documentation recommends first for dict values; it takes more time."""
    purchases = application.topic(os.environ["BENCHMARK_INPUT"], key_deserializer="bytes", value_deserializer="json")
    doubled = application.topic(os.environ["BENCHMARK_OUTPUT"], key_serializer="bytes", value_serializer="json")
    rows = application.dataframe(purchases)
    rows = rows[rows["amount"] % 2 != 0]
    rows["x"] = rows["amount"] * 2
    rows.to_topic(doubled)


def table_join(application: Application) -> None:
    """Add to each purchase the city of its user."""

    def with_city(purchase: dict[str, Any], user: dict[str, Any]) -> dict[str, Any]:
        return {**purchase, "city": user["city"]}

    purchases = application.topic(os.environ["BENCHMARK_INPUT"], key_deserializer="bytes", value_deserializer="json")
    users = application.topic(os.environ["BENCHMARK_TABLE"], key_deserializer="bytes", value_deserializer="json")
    located = application.topic(os.environ["BENCHMARK_OUTPUT"], key_serializer="bytes", value_serializer="json")
    rows = application.dataframe(users)
    application.dataframe(purchases).join_asof(rows, on_merge=with_city).to_topic(located)


def ask(application: Application) -> None:
    """Add to each purchase a service's result for its amount; functions are called one after the other."""
    client = httpx.Client(base_url=os.environ["BENCHMARK_SERVICE"])

    def asked(purchase: dict[str, Any]) -> dict[str, Any]:
        return {**purchase, "x": client.get(f"/{purchase['amount']}").json()["double"]}

    purchases = application.topic(os.environ["BENCHMARK_INPUT"], key_deserializer="bytes", value_deserializer="json")
    answers = application.topic(os.environ["BENCHMARK_OUTPUT"], key_serializer="bytes", value_serializer="json")
    application.dataframe(purchases).apply(asked).to_topic(answers)


TOPOLOGIES = {
    "ask": ask,
    "count": count,
    "windowed_count": windowed_count,
    "map_filter": map_filter,
    "map_filter_columns": map_filter_columns,
    "table_join": table_join,
}
GUARANTEES = {"at_least_once": "at-least-once", "exactly_once_v2": "exactly-once"}


def main(topology: str, properties: Path, number: str) -> None:
    """Run until SIGTERM with Quix Streams' defaults, except for the settings that all systems get."""
    config = dict(line.split("=", 1) for line in properties.read_text("utf-8").splitlines())
    application = Application(
        broker_address=config["bootstrap.servers"],
        consumer_group=config["application.id"],
        auto_offset_reset="earliest",
        commit_interval=int(config["commit.interval.ms"]) / 1000,
        state_dir=f"{config['state.dir']}-{number}",
        producer_extra_config={"linger.ms": 50, "compression.type": "lz4", "batch.size": 262_144},
        processing_guarantee=GUARANTEES[config.get("processing.guarantee", "at_least_once")],
        loglevel="WARNING",
    )
    TOPOLOGIES[topology](application)
    application.run()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
