"""The topics of the example: five that the loader fills, four that the topology answers into."""

from __future__ import annotations

from dataclasses import dataclass

FLIGHTS = "flights"
WEATHER = "weather"
PLANES = "planes"
AIRPORTS = "airports"
AIRLINES = "airlines"

DELAYS = "delays-by-carrier-and-hour"
ROUTES = "busiest-routes"
MANUFACTURERS = "flights-by-manufacturer"
TEMPERATURES = "delays-by-temperature"

#: The records are of 2013, and a topic that keeps a week by default would drop them.
KEEP_FOR_EVER = {"retention.ms": "-1"}
#: Each record replaces the one before it with the same key.
KEEP_LATEST = {**KEEP_FOR_EVER, "cleanup.policy": "compact"}


@dataclass(frozen=True, slots=True)
class Topic:
    """How a topic is created. flights and planes are joined by tail number, so they need equally many partitions."""

    name: str
    partitions: int
    config: dict[str, str]


INPUTS = (
    Topic(FLIGHTS, 4, KEEP_FOR_EVER),
    Topic(WEATHER, 4, KEEP_LATEST),
    Topic(PLANES, 4, KEEP_LATEST),
    Topic(AIRPORTS, 2, KEEP_LATEST),
    Topic(AIRLINES, 2, KEEP_LATEST),
)
ANSWERS = tuple(Topic(name, 2, KEEP_LATEST) for name in (DELAYS, ROUTES, MANUFACTURERS, TEMPERATURES))
