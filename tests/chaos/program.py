"""The topology under test: copies of records, a tally for each key, and one for each group after a repartition."""

from __future__ import annotations

import asyncio
import json
import os
import time
from enum import StrEnum
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from penstock import KStream, Retries, Serdes, StreamsBuilder, Topology

NUMBERS, COPIES, TALLIES, GROUP_TALLIES = "numbers", "copies", "tallies", "group-tallies"
APPLICATION_ID = "chaos"
#: The token of hosts that others can ask.
HTTP_TOKEN = "chaos"
#: What the names of branches begin with, and so those of all of their topics.
BRANCHES = f"{APPLICATION_ID}-next-"
#: Their changelogs are chaos-<store>-changelog.
TALLY_STORE, GROUP_STORE, LAST_STORE = "per-key", "per-group", "last"
#: Keys k0 … k<KEYS - 1>; key kN belongs to group gM with M = N modulo GROUPS.
KEYS, GROUPS = 48, 12
#: Environment variable of the program: planted faults, values of ``Fault``, which a test expects a checker to detect.
FAULT_VARIABLE = "CHAOS_FAULT"
#: Environment variable of the program: the broker's address, for a fault that needs it.
ADDRESS_VARIABLE = "CHAOS_BOOTSTRAP_SERVERS"
#: Environment variable of the program: the number of groups, by default GROUPS.
GROUPS_VARIABLE = "CHAOS_GROUPS"
#: Environment variable of the program and the feeder: duration of the slowest record, in seconds.
SLOWEST_VARIABLE = "CHAOS_SLOWEST_SECONDS"
#: Environment variable of the program: a file; while it exists, no records are refused.
MENDED_VARIABLE = "CHAOS_MENDED"
_PAD = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-"

Tally = dict[str, Any]


class Fault(StrEnum):
    """Planted faults of the program."""

    DROP = "drop"  # one record
    DOUBLE = "double"  # one record
    OUTSIDE = "outside"  # write one copy with its own producer, so that it is in no transaction
    AHEAD = "ahead"  # send an output that the store does not contain
    UNCOMMITTED = "uncommitted"  # read uncommitted records; this is a setting, so the workload does it
    WINDOW = "window"  # count in windows of another size
    PADDING = "padding"  # change a record's padding


def topology() -> Topology:
    """Return the topology."""
    builder = StreamsBuilder()
    _count(_numbers(builder))
    return builder.build()


def slow() -> Topology:
    """Return a topology that takes as long for a record as its value says (``sleep``, in seconds)."""
    builder = StreamsBuilder()
    _count(_numbers(builder).peek(lambda _key, value: time.sleep(value.get("sleep", 0))))
    return builder.build()


def asking() -> Topology:
    """Return a topology that first calls a service for each record; records of other keys do not wait for it."""
    builder = StreamsBuilder()
    answered = _numbers(builder).map_values_async(
        _ask, ordered_by="key", max_in_flight=256, retries=Retries(3, wait_initial=10), timeout=5_000
    )
    _count(answered)
    return builder.build()


def large() -> Topology:
    """Return a topology that also keeps the last record of each key, including its padding."""
    builder = StreamsBuilder()
    numbers = _numbers(builder)
    _count(numbers)
    numbers.to_table(store=LAST_STORE, key_serde=Serdes.string(), value_serde=Serdes.json())
    return builder.build()


def dead_letters() -> Topology:
    """Return a topology that copies and counts, and refuses some records until the code is fixed."""
    builder = StreamsBuilder()
    copies = _numbers(builder).map_values(_refuse_poison)
    copies.to(COPIES, key_serde=Serdes.string(), value_serde=Serdes.json())
    copies.group_by_key().aggregate(
        new_tally, tally, store=TALLY_STORE, key_serde=Serdes.string(), value_serde=Serdes.json()
    )
    return builder.build()


def slowest_seconds() -> float:
    """Return the duration of the slowest record."""
    return float(os.environ.get(SLOWEST_VARIABLE, "5"))


def padding(size: int) -> str:
    """Return size characters, each of which differs from its neighbors."""
    return (_PAD * (size // len(_PAD) + 1))[:size]


def _numbers(builder: StreamsBuilder) -> KStream[str, Tally]:
    return builder.stream(NUMBERS, key_serde=Serdes.string(), value_serde=Serdes.json())


def _count(numbers: KStream[str, Tally]) -> None:
    """Copy the records, and keep the tallies."""
    copied = numbers.flat_map_values(_faulty) if faults() else numbers
    copied.to(COPIES, key_serde=Serdes.string(), value_serde=Serdes.json())
    per_key = numbers.group_by_key().aggregate(
        new_tally, tally, store=TALLY_STORE, key_serde=Serdes.string(), value_serde=Serdes.json()
    )
    tallies = per_key.to_stream()
    if Fault.AHEAD in faults():
        tallies = tallies.map_values(lambda value: value | {"last": value["last"] + 1})
    tallies.to(TALLIES, key_serde=Serdes.string(), value_serde=Serdes.json())
    per_group = numbers.group_by(
        lambda key, _value: group_of(key), key_serde=Serdes.string(), value_serde=Serdes.json(), name="groups"
    ).aggregate(new_group_tally, group_tally, store=GROUP_STORE, key_serde=Serdes.string(), value_serde=Serdes.json())
    per_group.to_stream().to(GROUP_TALLIES, key_serde=Serdes.string(), value_serde=Serdes.json())


def faults() -> list[str]:
    """Return the intended faults."""
    return os.environ.get(FAULT_VARIABLE, "").split()


def group_of(key: str) -> str:
    """Return the group of a key."""
    return f"g{int(key[1:]) % int(os.environ.get(GROUPS_VARIABLE, GROUPS))}"


def new_tally() -> Tally:
    """Return the tally of a key without records."""
    return {"records": 0, "sum": 0, "last": 0, "breaks": 0}


def tally(_key: str, value: Tally, seen: Tally) -> Tally:
    """Count one record. breaks: how often a number did not follow the previous one."""
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
    """Add one record to a group's tally. last: the last number by key; breaks: numbers that did not follow it."""
    key, number = value["key"], value["n"]
    return {
        "records": seen["records"] + 1,
        "sum": seen["sum"] + number,
        "last": seen["last"] | {key: number},
        "breaks": seen["breaks"] + (number != seen["last"].get(key, 0) + 1),
    }


async def _ask(value: Tally) -> Tally:
    """Respond as late as the record says (``answer``, in seconds), or refuse the first call (``refused``)."""
    await asyncio.sleep(value["answer"])
    if value["refused"] and (value["key"], value["n"]) not in _refused:
        _refused.add((value["key"], value["n"]))
        raise ConnectionError("not now")
    return value


#: Records that this process's service has refused.
_refused: set[tuple[str, int]] = set()


def _refuse_poison(value: Tally) -> Tally:
    if value.get("poison") and not Path(os.environ[MENDED_VARIABLE]).exists():
        raise ValueError(f"number {value['n']} of {value['key']} is refused")
    return value


def _faulty(value: Tally) -> list[Tally]:
    """Return the copies of a record: a single correct one, except for the record with the planted fault."""
    if value["key"] != "k1" or value["n"] != 1:
        return [value]
    if Fault.DROP in faults():
        return []
    if Fault.DOUBLE in faults():
        return [value, value]
    if Fault.OUTSIDE in faults():
        producer = Producer({"bootstrap.servers": os.environ[ADDRESS_VARIABLE], "partitioner": "murmur2_random"})
        producer.produce(COPIES, json.dumps(value), value["key"])
        producer.flush()
        return []
    return [value | {"pad": f"{value['pad']}+"}] if Fault.PADDING in faults() else [value]
