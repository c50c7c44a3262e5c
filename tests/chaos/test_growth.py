"""Growth in a long run is detected, and the replacement of processes does not count as growth."""

from __future__ import annotations

import pytest

from tests.chaos.growth import ALLOWANCES, MINUTES_MIN, SAMPLE_SECONDS, Growth
from tests.soak.figures import MIB, Sample

SECONDS = 60 * MINUTES_MIN
FIELDS = [allowance.field for allowance in ALLOWANCES]


def growth(field: str = "", factor: float = 1.0, seconds: float = SECONDS) -> Growth:
    """Return samples of processes that live for a minute each; one field is higher in the second half."""
    made = Growth()
    for number in range(int(seconds / SAMPLE_SECONDS)):
        at = number * SAMPLE_SECONDS
        usage = {"rss": 100.0 * MIB, "handles": 100.0, "threads": 20.0}
        if field and at > seconds / 2:
            usage[field] *= factor
        made._samples.append(Sample("worker", int(at // 60), at, *(int(usage[name]) for name in FIELDS)))
    return made


def test_steady_processes_do_not_grow() -> None:
    assert growth().faults(SECONDS) == []
    assert [line.split()[:2] for line in growth().table(SECONDS)] == [["worker", field] for field in FIELDS]


@pytest.mark.parametrize("field", FIELDS)
def test_each_kind_of_growth_is_detected(field: str) -> None:
    (fault,) = growth(field, 2.0).faults(SECONDS)
    assert fault.startswith(f"worker: {field} grew from ")
    assert growth(field, 1.1).faults(SECONDS) == [], "within what is allowed"


def test_a_short_run_is_not_judged() -> None:
    assert growth("rss", 9.0, SECONDS / 2).faults(SECONDS / 2) == []
