"""Counts purchases by user with Quix Streams: the file with the properties, the number of the process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from quixstreams import Application, State


def count(value: bytes, state: State) -> bytes:
    """Count, and give the count as Kafka's LongSerializer writes it."""
    total: int = state.get("count", 0) + 1
    state.set("count", total)
    return total.to_bytes(8, "big")


def main(properties: Path, number: str) -> None:
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
    purchases = application.topic(os.environ["BENCHMARK_INPUT"], key_deserializer="bytes", value_deserializer="bytes")
    counts = application.topic(os.environ["BENCHMARK_OUTPUT"], key_serializer="bytes", value_serializer="bytes")
    application.dataframe(purchases).apply(count, stateful=True).to_topic(counts)
    application.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
