"""The benchmark's topologies in Faust (faust-streaming): topology, file with the properties, number of the process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import faust

topology, properties, number = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
config = dict(line.split("=", 1) for line in properties.read_text("utf-8").splitlines())
WINDOW_SECONDS = 10

app = faust.App(
    config["application.id"],
    broker=f"kafka://{config['bootstrap.servers']}",
    store="rocksdb://?driver=rocksdict",
    datadir=f"{config['state.dir']}-{number}",
    consumer_auto_offset_reset="earliest",
    broker_commit_interval=int(config["commit.interval.ms"]) / 1000,
    producer_linger=0.05,
    producer_compression_type="lz4",
    topic_partitions=4,
    topic_replication_factor=1,
    web_enabled=False,
)
purchases, results = os.environ["BENCHMARK_INPUT"], os.environ["BENCHMARK_OUTPUT"]

if topology == "count":
    counts = app.topic(results, key_type=bytes, value_type=bytes, value_serializer="raw")
    table = app.Table("counts", default=int, key_type=bytes, partitions=4)

    @app.agent(app.topic(purchases, key_type=bytes, value_type=bytes, value_serializer="raw"))
    async def count(stream: faust.StreamT[bytes]) -> None:
        """Count, and send the count as Kafka's LongSerializer writes it."""
        async for key, _ in stream.items():
            table[key] += 1
            await counts.send(key=key, value=table[key].to_bytes(8, "big"))

elif topology == "windowed_count":
    counts = app.topic(results, key_type=bytes, value_type=bytes, value_serializer="raw")
    windows = app.Table("counts", default=int, partitions=4).tumbling(WINDOW_SECONDS)
    by_time = windows.relative_to_stream()

    @app.agent(app.topic(purchases, key_type=bytes, value_type=bytes, value_serializer="raw"))
    async def windowed_count(stream: faust.StreamT[bytes]) -> None:
        """Count by user and window; the key of a count ends with its window's start."""
        async for event in stream.events():
            user = event.key.decode()  # its tables write keys of windows as JSON
            by_time[user] += 1
            start = int(event.message.timestamp) // WINDOW_SECONDS * WINDOW_SECONDS * 1000
            total = by_time[user].value()
            await counts.send(key=event.key + start.to_bytes(8, "big"), value=total.to_bytes(8, "big"))

else:
    doubled = app.topic(results, key_type=bytes, value_serializer="json")

    @app.agent(app.topic(purchases, key_type=bytes, value_serializer="json"))
    async def map_filter(stream: faust.StreamT[dict[str, Any]]) -> None:
        """Keep the purchases of an odd amount and add its double."""
        async for key, purchase in stream.items():
            if purchase["amount"] % 2 != 0:
                await doubled.send(key=key, value={**purchase, "x": purchase["amount"] * 2})


if __name__ == "__main__":
    app.worker_init()
    faust.Worker(app, loglevel="warning").execute_from_commandline()
