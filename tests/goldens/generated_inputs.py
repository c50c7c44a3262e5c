"""Random inputs for a case: records for its topics, given as (name, value serde), and steps of the clock."""

from __future__ import annotations

import base64
import random
from collections.abc import Sequence
from typing import Any

Op = dict[str, Any]

KEYS = ("a", "b", "c", "A", "bb")
STRINGS = ("a1", "b2", "bb", "xyz", "a b", "", "b:1")
LONGS = (-1, 0, 1, 2, 3, 4, 5, 10)


def inputs(randomness: random.Random, topics: Sequence[tuple[str, str]]) -> list[Op]:
    """Return records with mostly rising timestamps, some late, some null, and a few steps of the clock."""
    found: list[Op] = []
    time = 0
    for _ in range(randomness.randint(15, 40)):
        if randomness.random() < 0.05:
            found.append({"advance_wall_clock_ms": randomness.choice((10, 1000))})
            continue
        time += randomness.choice((0, 1, 4, 9))
        topic, value = randomness.choice(topics)
        late = randomness.choice((0, 0, 0, 3, 15)) if time > 15 else 0
        record: Op = {
            "topic": topic,
            "key": None if randomness.random() < 0.05 else encoded(randomness.choice(KEYS), "string"),
            "value": None
            if randomness.random() < 0.12
            else encoded(randomness.choice(STRINGS if value == "string" else LONGS), value),
            "timestamp": time - late,
        }
        if randomness.random() < 0.3:
            record["headers"] = [["h", base64.b64encode(b"%d" % randomness.randint(0, 9)).decode()]]
        found.append(record)
    return found


def encoded(value: Any, serde: str) -> Op:
    """Return a key or value in the form of the inputs."""
    data = value.encode() if serde == "string" else value.to_bytes(8, "big", signed=True)
    return {"json": value, "b64": base64.b64encode(data).decode()}
