"""The topologies that the tests run, as a user's module; topic names come from the environment."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from penstock import KStream, Serdes, StreamsBuilder, Topology

#: The file in the application's folder to which ``slow`` writes each value before it processes it.
BEGUN = Path("begun")
SOURCE_VARIABLE, SINK_VARIABLE = "CLIENTS_SOURCE", "CLIENTS_SINK"


def _source(builder: StreamsBuilder, value_serde: Any) -> KStream[Any, Any]:
    topics = os.environ[SOURCE_VARIABLE].split(",")
    return builder.stream(topics, key_serde=Serdes.string(), value_serde=value_serde)


def copy() -> Topology:
    """Copy records."""
    builder = StreamsBuilder()
    _source(builder, Serdes.string()).to(os.environ[SINK_VARIABLE], value_serde=Serdes.string())
    return builder.build()


def slow() -> Topology:
    """Copy records, each after the number of seconds at the start of its value: "2.5 x" takes 2.5 s."""
    builder = StreamsBuilder()
    worked = _source(builder, Serdes.string()).map_values(_work)
    worked.to(os.environ[SINK_VARIABLE], value_serde=Serdes.string())
    return builder.build()


def counts() -> Topology:
    """Count equal values, through a repartition topic and a store; write each count: "a 3" after the third "a"."""
    builder = StreamsBuilder()
    counted = _source(builder, Serdes.string()).group_by(lambda _, value: value, key_serde=Serdes.string()).count()
    told = counted.to_stream().map_values(lambda value, count: f"{value} {count}", with_key=True)
    told.to(os.environ[SINK_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.string())
    return builder.build()


def sizes() -> Topology:
    """Write the length of each value."""
    builder = StreamsBuilder()
    measured = _source(builder, Serdes.bytes()).map_values(lambda value: str(len(value)))
    measured.to(os.environ[SINK_VARIABLE], value_serde=Serdes.string())
    return builder.build()


def _work(value: str) -> str:
    with BEGUN.open("a") as file:
        file.write(f"{value}\n")
    time.sleep(float(value.split()[0]))
    return value
