"""Counts purchases by user with Faust (faust-streaming): the file with the properties, the number of the process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import faust

properties, number = Path(sys.argv[1]), sys.argv[2]
config = dict(line.split("=", 1) for line in properties.read_text("utf-8").splitlines())

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
purchases = app.topic(os.environ["BENCHMARK_INPUT"], key_type=bytes, value_type=bytes, value_serializer="raw")
counts = app.topic(os.environ["BENCHMARK_OUTPUT"], key_type=bytes, value_type=bytes, value_serializer="raw")
table = app.Table("counts", default=int, key_type=bytes, partitions=4)


@app.agent(purchases)
async def count(stream: faust.StreamT[bytes]) -> None:
    """Count, and send the count as Kafka's LongSerializer writes it."""
    async for key, _ in stream.items():
        table[key] += 1
        await counts.send(key=key, value=table[key].to_bytes(8, "big"))


if __name__ == "__main__":
    app.worker_init()
    faust.Worker(app, loglevel="warning").execute_from_commandline()
