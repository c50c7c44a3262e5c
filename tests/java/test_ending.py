"""Rows with a ttl and timers of keys beside a Java processor that looks at all rows for each record: the same results.

Kafka Streams has neither; this is what its users write. Java's driver and Penstock's get the same commands.
"""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock import Materialized, Processor, Punctuation, Record, Serdes, Stores, StreamsBuilder, Topology, Ttl
from penstock.testing import TopologyTestDriver
from tests.java.conftest import driver_program

pytestmark = pytest.mark.slow

CLOCKS = {"stream": Punctuation.STREAM_TIME, "wall": Punctuation.WALL_CLOCK_TIME}
TEXTS: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


class Alarms(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        clock, _, at = record.value.partition("_")
        if clock == "cancel":
            self.context.cancel_timer(record.key)
        elif clock in CLOCKS:
            self.context.timer(record.key, int(at), CLOCKS[clock])
        self.context.forward(record)

    def on_timer(self, key: str, at: int) -> None:
        self.context.forward(Record(key, f"fired {at}", at))


def topology(what: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS)
    if what == "timers":
        supplier = Stores.persistent_key_value_store("alarms")
        builder.add_state_store(Stores.timer_store_builder(supplier, Serdes.string()))
        stream.process(Alarms, stores=["alarms"]).to("out", **TEXTS)
    else:
        _, clock, ttl_ms = what.split()
        kept = Materialized("counts", ttl=Ttl(int(ttl_ms), CLOCKS[clock]))
        counts = stream.group_by_key().count(store=kept).to_stream()
        counts.to("out", key_serde=Serdes.string(), value_serde=Serdes.int64())
    return builder.build()


def commands(what: str, seed: int) -> list[str]:
    """Return records that are up to 60 ms late, and advances of the wall clock between them."""
    rng, found = random.Random(seed), []
    for number in range(400):
        if rng.random() < 0.2:
            found.append(f"advance {rng.randint(1, 30)}")
            continue
        timestamp = max(0, number * 5 - rng.randint(0, 60))
        alarm = f"{rng.choice(('stream', 'wall'))}_{max(0, number * 5 + rng.randint(-40, 80))}"
        value = rng.choice((alarm, alarm, "cancel", "nothing")) if what == "timers" else "x"
        found.append(f"{rng.choice('abcdefgh')} {value} {timestamp}")
    return found


def by_penstock(what: str, given: list[str]) -> list[str]:
    with TopologyTestDriver(topology(what), {"application.id": "app"}) as driver:
        source = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        for command in given:
            first, *rest = command.split()
            if first == "advance":
                driver.advance_wall_clock_time(int(rest[0]))
            else:
                source.pipe_input(first, rest[0], int(rest[1]))
        topics = ["out"] if what == "timers" else ["app-counts-changelog", "out"]
        return [line for topic in topics for line in written(driver, topic)]


def written(driver: TopologyTestDriver, topic: str) -> list[str]:
    found = driver.create_output_topic(topic, Serdes.bytes(), Serdes.bytes()).read_records_to_list()
    at = topic == "out"
    return [
        f"{topic} {(one.key or b'').hex()} {'null' if one.value is None else one.value.hex()}"
        + (f" {one.timestamp}" if at else "")
        for one in found
    ]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Compile the program, and return its command; skips the test where there is no JDK."""
    return driver_program(Path(__file__).with_name("EndingProgram.java"), tmp_path_factory.mktemp("classes"))


@pytest.mark.parametrize("what", ["counts stream 40", "counts wall 70", "timers"])
@pytest.mark.parametrize("seed", range(3))
def test_java_has_the_same_results(program: list[str], what: str, seed: int, tmp_path: Path) -> None:
    given = commands(what, seed)
    file = tmp_path / "commands"
    file.write_text("".join(f"{line}\n" for line in given))
    run = subprocess.run([*program, what, str(file), str(tmp_path / "state")], capture_output=True, check=True)
    expected = run.stdout.decode().splitlines()
    assert by_penstock(what, given) == expected
    assert sum(" null" in line or "6669726564" in line for line in expected) > 20, "many have ended"
