"""What is measured: a topology, its settings, and the check of what it must answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from benchmarks.checks import Check, CountsCheck, LatestCheck, RowsCheck, RowSum, sum_of_rows
from benchmarks.data import Workload


@dataclass(frozen=True, slots=True)
class Scenario:
    """topology: a function of benchmarks.topologies and a case of the Java program; config: added to the common one.

    times: so many times the records, so that what is fast lasts long enough: commits are a second apart.
    """

    name: str
    title: str
    topology: str
    check: Callable[[Workload], Check]
    config: Mapping[str, str] = field(default_factory=dict, hash=False)
    times: int = 1


@cache
def _counts(workload: Workload) -> Mapping[bytes, int]:
    return workload.counts()


@cache
def _windowed_counts(workload: Workload) -> Mapping[bytes, int]:
    return workload.windowed_counts()


@cache
def _totals(workload: Workload) -> Mapping[bytes, bytes]:
    return workload.totals()


@cache
def _doubled_purchases(workload: Workload) -> RowSum:
    return sum_of_rows(workload.doubled_purchases())


@cache
def _located_purchases(workload: Workload) -> RowSum:
    return sum_of_rows(workload.located_purchases())


SCENARIOS = (
    Scenario("count", "count by key, cache", "count", lambda workload: CountsCheck(_counts(workload)), times=5),
    Scenario(
        "count-uncached",
        "count by key, no cache",
        "count",
        lambda workload: CountsCheck(_counts(workload), every_update=True),
        {"statestore.cache.max.bytes": "0"},
    ),
    Scenario(
        "exactly-once",
        "count by key, cache, exactly-once",
        "count",
        lambda workload: CountsCheck(_counts(workload)),
        {"processing.guarantee": "exactly_once_v2"},
        times=5,
    ),
    Scenario(
        "windowed-count",
        "count by 10 s window, cache",
        "windowed_count",
        lambda workload: CountsCheck(_windowed_counts(workload)),
    ),
    Scenario(
        "aggregate",
        "aggregate into a dict, cache",
        "aggregate",
        lambda workload: LatestCheck(_totals(workload)),
    ),
    Scenario(
        "map-filter",
        "JSON map and filter",
        "map_filter",
        lambda workload: RowsCheck(_doubled_purchases(workload)),
        times=3,
    ),
    Scenario("table-join", "stream-table join", "table_join", lambda workload: RowsCheck(_located_purchases(workload))),
)
