"""The soak finds what grows, and only that; a short one of real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from .figures import MIB, SAMPLES_MIN, Sample, faults, trend
from .run import FAULT_VARIABLE, soak

SECONDS = 600.0


def run(rss: float = 0.0, handles: float = 0.0, threads: float = 0.0, process: str = "one") -> list[Sample]:
    """Return the samples of a process whose figures grow by so much in the run, and go up and down by a little."""
    return [
        Sample(
            process,
            7,
            at,
            int(200 * MIB + rss * MIB * at / SECONDS + (number % 7) * MIB),
            int(100 + handles * at / SECONDS + number % 5),
            int(20 + threads * at / SECONDS),
        )
        for number, at in enumerate(range(0, int(SECONDS), 10))
    ]


def test_what_goes_up_and_down_has_not_grown() -> None:
    assert list(faults(run(), SECONDS, {"one": 210 * MIB})) == []


@pytest.mark.parametrize(
    ("grown", "told"),
    [({"rss": 30}, "rss grew by"), ({"handles": 40}, "handles grew"), ({"threads": 9}, "threads grew")],
)
def test_what_grows_is_found_in_its_process(grown: dict[str, float], told: str) -> None:
    samples = [*run(process="one"), *run(process="two", **grown)]
    (found,) = faults(samples, SECONDS, {})
    assert found.startswith(f"two: {told}")


def test_growth_during_the_warm_up_and_single_peaks_do_not_count() -> None:
    samples = run()
    warming = [Sample("one", 7, float(at), at * MIB, 10, 5) for at in range(0, 200, 10)]
    peak = Sample("one", 7, 595.0, 900 * MIB, 500, 200)
    assert list(faults([*warming, *samples[20:], peak], SECONDS, {})) == []


def test_a_process_over_its_share_or_replaced_is_told() -> None:
    samples = run()
    other = Sample("one", 8, 599.0, 300 * MIB, 100, 20)
    assert list(faults([*samples, other], SECONDS, {"one": 250 * MIB})) == [
        "one was replaced",
        "one took 300 MiB, its share is 250 MiB",
    ]


def test_too_few_samples_are_no_trend() -> None:
    with pytest.raises(ValueError, match="are needed for a trend"):
        trend(run()[: SAMPLES_MIN - 1], "rss")


@pytest.mark.broker
def test_a_short_soak_finds_the_leak_of_a_function_and_nothing_else(
    tmp_path: Path, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAULT_VARIABLE, "leak")
    outcome = soak(tmp_path, bootstrap_servers, seconds=4.0, rate=1_000, records_min=4_000)
    assert outcome.records > 0
    assert any("rss grew by" in fault for fault in outcome.faults), outcome.lines()
    assert any("handles grew by" in fault for fault in outcome.faults), outcome.lines()
    assert all(fault.startswith("StreamThread-") and "grew" in fault for fault in outcome.faults), outcome.lines()
