"""The benchmark's topologies in Quix Streams: topology, the file with the properties, the number of the process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from quixstreams import Application, State


def count(application: Application) -> None:
    """Count the purchases of each user, and give the count as Kafka's LongSerializer writes it."""

    def counted(_purchase: bytes, state: State) -> bytes:
        total: int = state.get("count", 0) + 1
        state.set("count", total)
        return total.to_bytes(8, "big")

    purchases = application.topic(os.environ["BENCHMARK_INPUT"], key_deserializer="bytes", value_deserializer="bytes")
    counts = application.topic(os.environ["BENCHMARK_OUTPUT"], key_serializer="bytes", value_serializer="bytes")
    application.dataframe(purchases).apply(counted, stateful=True).to_topic(counts)


def map_filter(application: Application) -> None:
    """Keep the purchases of an odd amount and add its double."""

    def with_double(purchase: dict[str, Any]) -> dict[str, Any]:
        return {**purchase, "x": purchase["amount"] * 2}

    purchases = application.topic(os.environ["BENCHMARK_INPUT"], key_deserializer="bytes", value_deserializer="json")
    doubled = application.topic(os.environ["BENCHMARK_OUTPUT"], key_serializer="bytes", value_serializer="json")
    odd = application.dataframe(purchases).filter(lambda purchase: purchase["amount"] % 2 != 0)
    odd.apply(with_double).to_topic(doubled)


def main(topology: str, properties: Path, number: str) -> None:
    """Run until SIGTERM, with Quix Streams' defaults but for what all systems are given."""
    config = dict(line.split("=", 1) for line in properties.read_text("utf-8").splitlines())
    application = Application(
        broker_address=config["bootstrap.servers"],
        consumer_group=config["application.id"],
        auto_offset_reset="earliest",
        commit_interval=int(config["commit.interval.ms"]) / 1000,
        state_dir=f"{config['state.dir']}-{number}",
        producer_extra_config={"linger.ms": 50, "compression.type": "lz4", "batch.size": 262_144},
        loglevel="WARNING",
    )
    {"count": count, "map_filter": map_filter}[topology](application)
    application.run()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
