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

    times: so many times the records, so that what is fast lasts long enough, and what is slow does not take minutes:
    commits are a second apart. with_payments: it reads the payments too. repartition: an internal topic that it reads
    last, whose commits show its progress.
    """

    name: str
    title: str
    topology: str
    check: Callable[[Workload], Check]
    config: Mapping[str, str] = field(default_factory=dict, hash=False)
    times: float = 1
    with_payments: bool = False
    repartition: str | None = None

    def inputs(self, workload: Workload) -> dict[str, int]:
        """Return how many records there are to read, by topic."""
        payments = {workload.payments_topic: (workload.records + 1) // 2} if self.with_payments else {}
        return {workload.topic: workload.records, **payments}

    def progress(self, workload: Workload, application_id: str) -> dict[str, int]:
        """Return how many records are committed in the end, by topic."""
        if self.repartition is None:
            return self.inputs(workload)
        return {f"{application_id}-{self.repartition}-repartition": workload.records}

    def processed(self, workload: Workload) -> int:
        """Return how many records are processed in all, those of the repartition topic too."""
        return sum(self.inputs(workload).values()) + (workload.records if self.repartition is not None else 0)


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

#: What is slower, with a third of the records: 2 million by default. ``--only wide``.
WIDE_TIMES = 1 / 3
WIDE = (
    Scenario(
        "repartition",
        "count by another key, repartitioned",
        "repartition",
        lambda workload: CountsCheck(workload.repartitioned_counts()),
        times=WIDE_TIMES,
        repartition="by-user",
    ),
    Scenario(
        "processor",
        "processor: get, put, forward",
        "processor",
        lambda workload: RowsCheck(sum_of_rows(workload.running_totals())),
        times=WIDE_TIMES,
    ),
    Scenario(
        "window-suppress",
        "count by 10 s window, suppressed",
        "window_suppress",
        lambda workload: RowsCheck(sum_of_rows(workload.final_counts())),
        times=WIDE_TIMES,
    ),
    Scenario(
        "stream-join",
        "stream-stream join within 500 ms",
        "stream_join",
        lambda workload: RowsCheck(sum_of_rows(workload.paid_purchases())),
        times=WIDE_TIMES,
        with_payments=True,
    ),
    Scenario(
        "session",
        "count by session, gap of 500 ms",
        "session",
        lambda workload: CountsCheck(workload.session_counts()),
        times=WIDE_TIMES,
    ),
    Scenario(
        "hopping",
        "count by window of 10 s, every 2 s",
        "hopping",
        lambda workload: CountsCheck(workload.hopping_counts()),
        times=WIDE_TIMES,
    ),
)
