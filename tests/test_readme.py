"""The README's first app does what the README says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from penstock import Serdes, Topology
from penstock.testing import TopologyTestDriver

from .markdown import Page

README = Page(Path(__file__).resolve().parent.parent / "README.md")
HOUR_MS = 3_600_000


@pytest.fixture
def first_app(tmp_path: Path) -> Topology:
    """The topology of my_app.py, as a user who copied it has it."""
    README.write_files(tmp_path)
    spec = importlib.util.spec_from_file_location("my_app", tmp_path / "my_app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    topology = module.topology()
    assert isinstance(topology, Topology)
    return topology


def test_the_first_app_counts_flights_by_carrier_and_hour(first_app: Topology) -> None:
    with TopologyTestDriver(first_app) as driver:
        flights = driver.create_input_topic("flights")
        departed = {"carrier": "UA", "dep_delay": 7}
        flights.pipe_input("JFK", departed, 0)
        flights.pipe_input("EWR", {"carrier": "UA", "dep_delay": None}, 1)
        flights.pipe_input("LGA", departed, HOUR_MS - 1)
        flights.pipe_input("LGA", {"carrier": "AA", "dep_delay": 0}, HOUR_MS)
        flights.pipe_input("JFK", departed, 5)  # late, within the grace of five minutes
        flights.pipe_input("JFK", departed, HOUR_MS + 301_000)
        flights.pipe_input("JFK", departed, 6)  # too late
        counts = driver.create_output_topic("flights-by-hour", Serdes.string(), Serdes.int64())
        assert counts.read_key_values_to_list() == [("UA", 1), ("UA", 2), ("AA", 1), ("UA", 3), ("UA", 1)]
        (dropped,) = driver.dropped_records().items()
        assert dropped == (("KSTREAM-AGGREGATE-0000000003", "expired window"), 1)


def test_the_readme_says_how_to_try_it() -> None:
    assert README.commands("penstock describe my_app:topology")
    assert README.commands("penstock run my_app:topology")
