"""Four questions about the flights, each answered by an aggregation that a replay after a crash does not change.

At-least-once processing reads some records a second time after a crash. A plain count would count them twice. Here each
aggregate keeps, for every path on which records reach it, the offset of the last one (``once`` below).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from examples.flights import topics
from penstock import (
    FixedKeyProcessor,
    GlobalKTable,
    KStream,
    KTable,
    Record,
    Serdes,
    StreamsBuilder,
    TimeWindows,
    Topology,
    Windowed,
)

Row = dict[str, Any]
#: A table of names by code.
Lookup = GlobalKTable[Any, Row] | KTable[Any, Row]

TEXT = Serdes.string()
JSON = Serdes.json()

HOUR = timedelta(hours=1)
#: A year is read in seconds, each partition at its own pace, so one may be months of event time ahead of another. With
#: a shorter grace period the windows of those behind would be closed already, and their flights dropped as late.
GRACE = timedelta(days=366)

ASKED_FOR = ("carrier", "tailnum", "origin", "dest", "dep_delay", "hour")

UNKNOWN_PLANE = "(plane not registered)"
NO_TAIL_NUMBER = "(no tail number)"
NO_WEATHER = "(no weather reported)"
#: Upper bounds (°F) and the names of the bands below them; warmer than the last is HOT.
TEMPERATURE_BANDS = ((32.0, "below 32 °F"), (50.0, "32 to 50 °F"), (68.0, "50 to 68 °F"), (86.0, "68 to 86 °F"))
HOT = "86 °F and above"


class RememberWay(FixedKeyProcessor[Any, Row, Row]):
    """Adds the origin of a flight's record: the offset in its first topic, and the partitions it has passed.

    On one path (the same partitions) flights arrive in the order of their offsets, also when they are sent again.
    """

    def process(self, record: Record[Any, Row]) -> None:
        """Forward the flight with ``offset`` and ``way``."""
        source = self.context.record_metadata()
        if source is None:
            raise ValueError("a flight without a source: RememberWay must not run in a punctuation")
        flight = record.value
        way = f"{flight['way']}/{source.partition}" if "way" in flight else str(source.partition)
        self.context.forward(record.with_value({"offset": source.offset, **flight, "way": way}))


def once(update: Callable[[Row, Row], Row]) -> Callable[[Any, Row, Row], Row]:
    """Make an aggregator of ``update(flight, aggregate) -> aggregate`` that skips records it has seen before."""

    def aggregator(_key: Any, flight: Row, aggregate: Row) -> Row:
        seen, way, offset = aggregate["seen"], flight["way"], flight["offset"]
        if offset <= seen.get(way, -1):
            return aggregate
        return {**update(flight, aggregate), "seen": {**seen, way: offset}}

    return aggregator


def build() -> Topology:
    """Return the topology: ``penstock run examples.flights.topology:build``."""
    return _build(global_tables=True)


def build_for_both() -> Topology:
    """Return the topology that Spark can run too, where tasks have no global tables: two more repartition topics."""
    return _build(global_tables=False)


def _build(global_tables: bool) -> Topology:
    builder = StreamsBuilder()
    flights = (
        builder.stream(topics.FLIGHTS, key_serde=TEXT, value_serde=JSON)
        .map_values(what_is_asked_for)
        .process_values(RememberWay)
    )
    planes = builder.table(topics.PLANES, key_serde=TEXT, value_serde=JSON, store="planes")
    weather = builder.table(topics.WEATHER, key_serde=TEXT, value_serde=JSON, store="weather")
    lookup = builder.global_table if global_tables else builder.table
    airlines = lookup(topics.AIRLINES, key_serde=TEXT, value_serde=JSON, store="airlines")
    airports = lookup(topics.AIRPORTS, key_serde=TEXT, value_serde=JSON, store="airports")
    answer(average_delays(flights, airlines), topics.DELAYS)
    answer(busiest_routes(flights, airports), topics.ROUTES)
    answer(by_manufacturer(flights, planes), topics.MANUFACTURERS)
    answer(by_temperature(flights, weather), topics.TEMPERATURES)
    return builder.build()


def what_is_asked_for(flight: Row) -> Row:
    """Return a flight with only the fields that the questions need: each flight passes four repartition topics."""
    return {column: flight[column] for column in ASKED_FOR}


def answer(rows: KStream[Any, Row], topic: str) -> None:
    """Write an answer's rows, without the offsets that ``once`` keeps."""
    rows.map_values(without_memory).to(topic, key_serde=TEXT, value_serde=JSON)


def without_memory(aggregate: Row) -> Row:
    """Return the row without the fields that only the aggregation needs."""
    return {column: value for column, value in aggregate.items() if column != "seen"}


def average_delays(flights: KStream[Any, Row], airlines: Lookup) -> KStream[Any, Row]:
    """Departures that took place, by carrier and hour: how many, and how late on average (minutes)."""
    delays = (
        flights.filter(lambda _, flight: flight["dep_delay"] is not None)
        .group_by(lambda _, flight: flight["carrier"], name="by-carrier", key_serde=TEXT, value_serde=JSON)
        .windowed_by(TimeWindows(HOUR, grace=GRACE))
        .aggregate(no_departures, once(add_departure), store="delays", key_serde=TEXT, value_serde=JSON)
    )
    return named(delays.to_stream(lambda window, row: window_name(window)), airlines, "carrier", with_airline)


def busiest_routes(flights: KStream[Any, Row], airports: Lookup) -> KStream[Any, Row]:
    """Flights by route, and how many of them were cancelled (no departure delay)."""
    routes = flights.group_by(route, name="by-route", key_serde=TEXT, value_serde=JSON).aggregate(
        no_flights, once(add_to_route), store="routes", key_serde=TEXT, value_serde=JSON
    )
    return named(routes.to_stream(), airports, "dest", with_airport)


def named(
    rows: KStream[Any, Row], names: Lookup, column: str, joiner: Callable[[Row, Row | None], Row]
) -> KStream[Any, Row]:
    """Join rows with the names of a column's codes: directly with a global table, otherwise through a repartition
    topic.
    """
    if isinstance(names, GlobalKTable):
        return rows.left_join(names, lambda _, row: row[column], joiner)
    return (
        rows.map(lambda key, row: (row[column], {**row, "key": key}))
        .left_join(names, joiner, name=f"with-name-of-{column}", key_serde=TEXT, value_serde=JSON)
        .map(lambda _, row: (row["key"], {name: value for name, value in row.items() if name != "key"}))
    )


def by_manufacturer(flights: KStream[Any, Row], planes: KTable[Any, Row]) -> KStream[Any, Row]:
    """Flights by manufacturer of the plane: a join with the table of planes by tail number."""
    return (
        flights.left_join(planes, with_manufacturer)
        .group_by(lambda _, flight: flight["manufacturer"], name="by-manufacturer", key_serde=TEXT, value_serde=JSON)
        .aggregate(no_flights, once(add_flight), store="manufacturers", key_serde=TEXT, value_serde=JSON)
        .to_stream()
    )


def by_temperature(flights: KStream[Any, Row], weather: KTable[Any, Row]) -> KStream[Any, Row]:
    """Departures by the temperature at the airport in the hour of departure: a join with the weather by airport and
    hour.
    """
    return (
        flights.filter(lambda _, flight: flight["dep_delay"] is not None)
        .select_key(lambda _, flight: f"{flight['origin']}@{flight['hour']}")
        .left_join(weather, with_temperature, name="with-weather", key_serde=TEXT, value_serde=JSON)
        # The second repartition topic follows: by then, flights of one partition have passed several tasks.
        .process_values(RememberWay)
        .group_by(lambda _, flight: flight["band"], name="by-temperature", key_serde=TEXT, value_serde=JSON)
        .aggregate(no_departures, once(add_departure), store="temperatures", key_serde=TEXT, value_serde=JSON)
        .to_stream()
    )


def window_name(window: Windowed) -> str:
    """Return the key of a carrier's hour: ``UA@1357034400000``, with the hour's start in milliseconds."""
    return f"{window.key}@{window.start}"


def route(_key: str, flight: Row) -> str:
    """Return the key of a flight's route."""
    return f"{flight['origin']}-{flight['dest']}"


def temperature_band(temperature: float | None) -> str:
    """Return the name of the band that a temperature (°F) is in."""
    if temperature is None:
        return NO_WEATHER
    return next((name for bound, name in TEMPERATURE_BANDS if temperature < bound), HOT)


def no_departures() -> Row:
    """Return the aggregate of no departures; minutes are summed, because sums of ints are exact in any order."""
    return {"departures": 0, "minutes": 0, "seen": {}}


def add_departure(flight: Row, total: Row) -> Row:
    """Add a departure and its delay in minutes (negative: early)."""
    departures, minutes = total["departures"] + 1, total["minutes"] + flight["dep_delay"]
    row = {"departures": departures, "minutes": minutes, "average": minutes / departures}
    return {**row, "band": flight["band"]} if "band" in flight else {**row, "carrier": flight["carrier"]}


def no_flights() -> Row:
    """Return the aggregate of no flights."""
    return {"flights": 0, "cancelled": 0, "seen": {}}


def add_flight(flight: Row, total: Row) -> Row:
    """Add a flight, which may have been cancelled."""
    cancelled = total["cancelled"] + (flight["dep_delay"] is None)
    return {"flights": total["flights"] + 1, "cancelled": cancelled}


def add_to_route(flight: Row, total: Row) -> Row:
    """Add a flight to its route."""
    return {**add_flight(flight, total), "origin": flight["origin"], "dest": flight["dest"]}


def with_manufacturer(flight: Row, plane: Row | None) -> Row:
    """Join a flight with its plane; some have no tail number, and some planes are not registered."""
    if flight["tailnum"] is None:
        return {**flight, "manufacturer": NO_TAIL_NUMBER}
    return {**flight, "manufacturer": UNKNOWN_PLANE if plane is None else plane["manufacturer"]}


def with_temperature(flight: Row, weather: Row | None) -> Row:
    """Join a flight with the weather of its airport and hour; some hours were not reported."""
    return {**flight, "band": temperature_band(weather["temp"] if weather else None)}


def with_airline(row: Row, airline: Row | None) -> Row:
    """Add the airline's name."""
    return {**row, "airline": airline["name"] if airline else None}


def with_airport(row: Row, airport: Row | None) -> Row:
    """Add the name of the destination; airports outside the USA's states have no name here."""
    return {**row, "airport": airport["name"] if airport else None}
