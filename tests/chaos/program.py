"""The topology that is killed: copies of records, a tally for each key, and one for each group behind a repartition."""

from __future__ import annotations

import os
from typing import Any

from penstock import Serdes, StreamsBuilder, Topology

NUMBERS, COPIES, TALLIES, GROUP_TALLIES = "numbers", "copies", "tallies", "group-tallies"
APPLICATION_ID = "chaos"
#: Their changelogs are chaos-<store>-changelog.
TALLY_STORE, GROUP_STORE = "per-key", "per-group"
#: Keys k0 … k<KEYS - 1>; key kN belongs to group gM with M = N modulo GROUPS.
KEYS, GROUPS = 48, 12
#: Set where the program runs: has it drop or double one record, so that a test sees the checker find it.
FAULT_VARIABLE = "CHAOS_FAULT"

Tally = dict[str, Any]


def topology() -> Topology:
    """Return the topology."""
    builder = StreamsBuilder()
    numbers = builder.stream(NUMBERS, key_serde=Serdes.string(), value_serde=Serdes.json())
    copied = numbers.flat_map_values(_faulty) if os.environ.get(FAULT_VARIABLE) else numbers
    copied.to(COPIES, key_serde=Serdes.string(), value_serde=Serdes.json())
    per_key = numbers.group_by_key().aggregate(
        new_tally, tally, store=TALLY_STORE, key_serde=Serdes.string(), value_serde=Serdes.json()
    )
    per_key.to_stream().to(TALLIES, key_serde=Serdes.string(), value_serde=Serdes.json())
    per_group = numbers.group_by(
        lambda key, _value: group_of(key), key_serde=Serdes.string(), value_serde=Serdes.json(), name="groups"
    ).aggregate(new_group_tally, group_tally, store=GROUP_STORE, key_serde=Serdes.string(), value_serde=Serdes.json())
    per_group.to_stream().to(GROUP_TALLIES, key_serde=Serdes.string(), value_serde=Serdes.json())
    return builder.build()


def group_of(key: str) -> str:
    """Return the group of a key."""
    return f"g{int(key[1:]) % GROUPS}"


def new_tally() -> Tally:
    """Return the tally of a key without records."""
    return {"records": 0, "sum": 0, "last": 0, "breaks": 0}


def tally(_key: str, value: Tally, seen: Tally) -> Tally:
    """Count one record. breaks: how often a number was not the one after the last."""
    number = value["n"]
    return {
        "records": seen["records"] + 1,
        "sum": seen["sum"] + number,
        "last": number,
        "breaks": seen["breaks"] + (number != seen["last"] + 1),
    }


def new_group_tally() -> Tally:
    """Return the tally of a group without records."""
    return {"records": 0, "sum": 0, "last": {}, "breaks": 0}


def group_tally(_group: str, value: Tally, seen: Tally) -> Tally:
    """Count one record of a group; last and breaks go by key."""
    key, number = value["key"], value["n"]
    return {
        "records": seen["records"] + 1,
        "sum": seen["sum"] + number,
        "last": seen["last"] | {key: number},
        "breaks": seen["breaks"] + (number != seen["last"].get(key, 0) + 1),
    }


def _faulty(value: Tally) -> list[Tally]:
    hit = value["key"] == "k1" and value["n"] == 1
    return [value] * ({"drop": 0, "double": 2}[os.environ[FAULT_VARIABLE]] if hit else 1)
