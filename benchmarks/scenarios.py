"""The scenarios: a topology, its settings, and the check of its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from benchmarks.checks import Check, CountsCheck, LatestCheck, RowsCheck, RowSum, SumsCheck, sum_of_rows
from benchmarks.data import REPORT_EVERY_MS, Workload

#: By key, or rows in any order.
Expected = Mapping[bytes, Any] | Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """topology: a function of benchmarks.topologies and a case of the Java program; config: added to the common
    settings.

    expected: the expected output, from the generator; check_of: creates its check. times: factor of the number of
    records, so that fast scenarios last long enough and slow ones do not take minutes: commits are a second apart.
    with_payments: it reads the payments too. internal: the internal topics that records pass, in order, with their
    numbers of records; the commits of the last one show the progress. rows: the number of rows read from its stores for
    a number of processed records, if rows are measured.
    """

    name: str
    title: str
    topology: str
    expected: Callable[[Workload], Expected]
    check_of: Callable[[Any], Check]
    config: Mapping[str, str] = field(default_factory=dict, hash=False)
    times: float = 1
    with_payments: bool = False
    internal: Mapping[str, Callable[[Workload], int]] = field(default_factory=dict, hash=False)
    rows: Callable[[Workload, float], float] = lambda _workload, records: records

    def check(self, workload: Workload) -> Check:
        """Return a new check of an output."""
        return self.check_of(_expected(self.expected, workload))

    def inputs(self, workload: Workload) -> dict[str, int]:
        """Return the number of input records by topic."""
        payments = {workload.payments_topic: (workload.records + 1) // 2} if self.with_payments else {}
        return {workload.topic: workload.records, **payments}

    def progress(self, workload: Workload, application_id: str) -> dict[str, int]:
        """Return the number of finally committed records by topic."""
        internal = {f"{application_id}-{topic}": count(workload) for topic, count in self.internal.items()}
        return dict([internal.popitem()]) if internal else self.inputs(workload)

    def processed(self, workload: Workload) -> int:
        """Return the total number of processed records, including those of internal topics."""
        return sum(self.inputs(workload).values()) + sum(count(workload) for count in self.internal.values())


@lru_cache(maxsize=8)  # one scenario's systems are measured one after the other
def _expected(expected: Callable[[Workload], Expected], workload: Workload) -> Mapping[bytes, Any] | RowSum:
    found = expected(workload)
    return found if isinstance(found, Mapping) else sum_of_rows(found)


def _records(workload: Workload) -> int:
    return workload.records


def _page_changes(workload: Workload) -> int:
    return sum(1 for _ in workload.page_changes())


def _rows_of_users(workload: Workload, records: float) -> float:
    """Each record reads all of its user's rows so far, including its own."""
    return records * records / workload.keys / 2 + records


def _rows_of_reports(workload: Workload, records: float) -> float:
    """Each report reads all rows so far."""
    return records * records / (workload.records_per_second * REPORT_EVERY_MS / 1000) / 2


UNCACHED = {"statestore.cache.max.bytes": "0"}

SCENARIOS = (
    Scenario("count", "count by key, cache", "count", Workload.counts, CountsCheck, times=5),
    Scenario(
        "count-uncached",
        "count by key, no cache",
        "count",
        Workload.counts,
        partial(CountsCheck, every_update=True),
        UNCACHED,
    ),
    Scenario(
        "exactly-once",
        "count by key, cache, exactly-once",
        "count",
        Workload.counts,
        CountsCheck,
        {"processing.guarantee": "exactly_once_v2"},
        times=5,
    ),
    Scenario("windowed-count", "count by 10 s window, cache", "windowed_count", Workload.windowed_counts, CountsCheck),
    Scenario("aggregate", "aggregate into a dict, cache", "aggregate", Workload.totals, LatestCheck),
    Scenario("map-filter", "JSON map and filter", "map_filter", Workload.doubled_purchases, RowsCheck, times=3),
    Scenario("table-join", "stream-table join", "table_join", Workload.located_purchases, RowsCheck),
)

#: Slower scenarios, with a third of the records: 2 million by default. ``--only wide``.
_wide = partial(Scenario, times=1 / 3)
WIDE = (
    _wide(
        "repartition",
        "count by another key, repartitioned",
        "repartition",
        Workload.repartitioned_counts,
        CountsCheck,
        internal={"by-user-repartition": _records},
    ),
    _wide(
        "aggregates",
        "aggregate into a dict without functions, cache",
        "aggregates",
        Workload.totals,
        LatestCheck,
    ),
    _wide("processor", "processor: get, put, forward", "processor", Workload.running_totals, RowsCheck),
    _wide(
        "two-stores",
        "processor with two stores",
        "two_stores",
        Workload.running_totals_and_pages,
        RowsCheck,
    ),
    _wide(
        "prefix-scan",
        "rows of prefix scans, 10 each",
        "prefix_scan",
        Workload.running_totals,
        RowsCheck,
        rows=_rows_of_users,
    ),
    _wide(
        "range-scan",
        "rows of range scans, 10 each",
        "range_scan",
        Workload.running_totals,
        RowsCheck,
        rows=_rows_of_users,
    ),
    _wide(
        "punctuator",
        "rows of a punctuator's full scans",
        "punctuator",
        Workload.reports,
        SumsCheck,
        rows=_rows_of_reports,
    ),
    _wide(
        "window-suppress",
        "count by 10 s window, suppressed",
        "window_suppress",
        Workload.final_counts,
        RowsCheck,
    ),
    _wide(
        "stream-join",
        "stream-stream join within 500 ms",
        "stream_join",
        Workload.paid_purchases,
        RowsCheck,
        with_payments=True,
    ),
    _wide("session", "count by session, gap of 500 ms", "session", Workload.session_counts, CountsCheck),
    _wide("hopping", "count by window of 10 s, every 2 s", "hopping", Workload.hopping_counts, CountsCheck),
    _wide(
        "table-table-join",
        "table-table join",
        "table_table_join",
        Workload.last_paid_purchases,
        LatestCheck,
        with_payments=True,
    ),
    _wide(
        "foreign-key-join",
        "foreign-key join, no cache",
        "foreign_key_join",
        Workload.last_located_purchases,
        LatestCheck,
        UNCACHED,
        internal={"city-subscription-registration-topic": _records, "city-subscription-response-topic": _records},
    ),
    _wide(
        "retraction",
        "sum of a table by another key, no cache",
        "retraction",
        Workload.sums_by_page,
        CountsCheck,
        UNCACHED,
        internal={"by-page-repartition": _page_changes},
    ),
    _wide(
        "versioned",
        "stream-table join, versioned table",
        "versioned",
        Workload.purchases_as_paid_before,
        RowsCheck,
        with_payments=True,
    ),
)
