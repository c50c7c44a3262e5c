"""Writes orders: ``python -m examples.enrichment.orders 10000``."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator

import orjson
from confluent_kafka import Producer

from examples.enrichment.prices import PRICES
from examples.enrichment.topology import ORDERS

SEED = 39
CUSTOMERS = 500


def orders(count: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield this many customers and their orders, always the same ones."""
    draw = random.Random(SEED)
    for number in range(count):
        customer = f"c{draw.randrange(CUSTOMERS)}"
        order = {"number": number, "product": draw.choice(sorted(PRICES)), "pieces": draw.randint(1, 9)}
        yield customer, {**order, "age_days": draw.randrange(1_500)}


def write(bootstrap_servers: str, count: int) -> None:
    """Write this many orders, keyed by customer."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "partitioner": "murmur2_random"})
    for customer, order in orders(count):
        producer.produce(ORDERS, orjson.dumps(order), customer)
        producer.poll(0)
    producer.flush()


if __name__ == "__main__":
    write(os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "localhost:9092"), int(sys.argv[1]))
