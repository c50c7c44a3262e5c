"""The flights example: its topology on real flights in the test driver, compared with plain Python."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from examples.flights import dataset, loader, topics
from examples.flights.topology import add_departure, build, no_departures, once, temperature_band
from examples.flights.verify import Verdict, compare, expected_answers
from penstock import Serdes
from penstock.testing import TopologyTestDriver

Row = dict[str, Any]
FLIGHTS = 10_000  # the first eleven days of January


@cache
def first_flights() -> list[Row]:
    return dataset.flights()[:FLIGHTS]


@pytest.mark.slow
def test_the_topology_gives_the_results_of_plain_python() -> None:
    expected = expected_answers(first_flights())
    with TopologyTestDriver(build()) as driver:
        for name in (topics.AIRLINES, topics.AIRPORTS, topics.PLANES, topics.WEATHER):
            pipe(driver, name, loader.SOURCES[name]())
        pipe(driver, topics.FLIGHTS, ((row["tailnum"], row, row["scheduled"]) for row in first_flights()))
        for topic, table in expected.items():
            output = driver.create_output_topic(topic, Serdes.string(), Serdes.json())
            assert compare(topic, table, output.read_key_values_to_map()) == Verdict(topic, len(table), (), (), ())


def pipe(driver: TopologyTestDriver, topic: str, records: Iterator[loader.Keyed] | Any) -> None:
    input_topic = driver.create_input_topic(topic, Serdes.string(), Serdes.json())
    for key, value, timestamp in records:
        input_topic.pipe_input(key, value, timestamp)


def test_the_data_set_is_complete_and_in_event_time_order() -> None:
    sizes = {name: len(list(source())) for name, source in loader.SOURCES.items() if name != topics.FLIGHTS}
    assert sizes == {name: rows for name, rows in dataset.ROWS.items() if name != topics.FLIGHTS}
    flights = dataset.flights()
    assert len(flights) == dataset.ROWS[topics.FLIGHTS]
    assert all(a["scheduled"] <= b["scheduled"] for a, b in itertools.pairwise(flights))
    assert sum(flight["dep_delay"] is None for flight in flights) == 8_255
    assert sum(flight["tailnum"] is None for flight in flights) == 2_512
    first = flights[0]
    assert (first["carrier"], first["hour"], first["scheduled"]) == ("UA", "2013-01-01T10:00:00Z", 1_357_035_300_000)


def test_a_verdict_names_the_differing_rows() -> None:
    verdict = compare("answer", {"a": {"n": 1}, "b": {"n": 1}, "c": {"n": 1}}, {"b": {"n": 2}, "c": {"n": 1}, "d": {}})
    assert not verdict.equal
    assert (verdict.missing, verdict.unexpected, verdict.different) == (("a",), ("d",), ("b",))
    assert str(verdict) == (
        "answer: NOT EQUAL (3 rows expected): 1 missing, e.g. a; 1 unexpected, e.g. d; 1 different, e.g. b"
    )


@pytest.mark.parametrize("seed", range(20))
def test_flights_that_are_sent_again_are_counted_once(seed: int) -> None:
    """Each input is replayed from earlier offsets, any number of times, interleaved with the others."""
    draw = random.Random(seed)
    ways = [
        [{"carrier": "UA", "dep_delay": draw.randrange(-9, 99), "way": way, "offset": offset} for offset in range(40)]
        for way in ("0", "1", "1/2")
    ]
    total = no_departures()
    add = once(add_departure)
    next_of = [0] * len(ways)
    while any(position < len(way) for position, way in zip(next_of, ways, strict=True)):
        number = draw.randrange(len(ways))
        if next_of[number] < len(ways[number]):
            total = add("UA", ways[number][next_of[number]], total)
            next_of[number] += 1
        if draw.random() < 0.1:
            next_of[number] = draw.randrange(next_of[number] + 1)  # a crash: back to the last commit
    everything = [flight for way in ways for flight in way]
    assert total["departures"] == len(everything)
    assert total["minutes"] == sum(int(flight["dep_delay"]) for flight in everything)


@pytest.mark.parametrize(
    ("temperature", "band"),
    [
        (None, "(no weather reported)"),
        (31.9, "below 32 °F"),
        (32.0, "32 to 50 °F"),
        (85.9, "68 to 86 °F"),
        (86.0, "86 °F and above"),
    ],
)
def test_temperature_bands(temperature: float | None, band: str) -> None:
    assert temperature_band(temperature) == band
