"""The soak test detects growth, and nothing else; a short one with real processes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.soak.figures import MIB, SAMPLES_MIN, Sample, faults, trend
from tests.soak.http_load import HttpLoad, compared
from tests.soak.run import FAULT_VARIABLE, soak

SECONDS = 600.0
#: Connections without a request are closed after ten, and so are idle threads of the server.
HTTP_SECONDS = 45.0


def run(rss: float = 0.0, handles: float = 0.0, threads: float = 0.0, process: str = "one") -> list[Sample]:
    """Return the samples of a process whose figures grow by this much in the run, with small variations."""
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


def test_variations_are_no_growth() -> None:
    assert list(faults(run(), SECONDS, {"one": 210 * MIB})) == []


@pytest.mark.parametrize(
    ("grown", "told"),
    [({"rss": 30}, "rss grew by"), ({"handles": 40}, "handles grew"), ({"threads": 9}, "threads grew")],
)
def test_growth_is_detected_in_its_process(grown: dict[str, float], told: str) -> None:
    samples = [*run(process="one"), *run(process="two", **grown)]
    (found,) = faults(samples, SECONDS, {})
    assert found.startswith(f"two: {told}")


def test_growth_during_the_warm_up_and_single_peaks_do_not_count() -> None:
    samples = run()
    warming = [Sample("one", 7, float(at), at * MIB, 10, 5) for at in range(0, 200, 10)]
    peak = Sample("one", 7, 595.0, 900 * MIB, 500, 200)
    assert list(faults([*warming, *samples[20:], peak], SECONDS, {})) == []


def test_a_process_above_its_share_or_replaced_is_reported() -> None:
    samples = run()
    other = Sample("one", 8, 599.0, 300 * MIB, 100, 20)
    assert list(faults([*samples, other], SECONDS, {"one": 250 * MIB})) == [
        "one was replaced",
        "one took 300 MiB, its share is 250 MiB",
    ]


def test_too_few_samples_give_no_trend() -> None:
    with pytest.raises(ValueError, match="are needed for a trend"):
        trend(run()[: SAMPLES_MIN - 1], "rss")


def load_of(**seen: Any) -> HttpLoad:
    """Return a load with all kinds of clients and some late probes, with these observations."""
    load = HttpLoad(port=1, begin=0, end=1)
    load.counts.update(silent=1, slow=1, malformed=1)
    load.waits = [0.01, 3.0, 3.0] * 9
    for name, value in seen.items():
        setattr(load, name, value)
    return load


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ({"counts": Counter(silent=1, malformed=1)}, "HTTP: there was no slow client"),
        ({"longest": 40.0}, "HTTP: a connection without a request was open for 40 s"),
        (
            {"waits": [0.01, 3.0, math.inf, 3.0, 0.01]},
            "HTTP: 3 probes in a row were late or not answered",
        ),
        ({"wrong": ["/health/live was answered b''"]}, "/health/live was answered b''"),
    ],
)
def test_a_server_that_fails_under_http_load_is_reported(seen: dict[str, Any], told: str) -> None:
    assert list(load_of().faults()) == []
    assert list(load_of(**seen).faults()) == [told]


@pytest.mark.parametrize(
    ("loaded_rate", "more", "left", "log_bytes", "told"),
    [
        (300, 0, 0, 0, None),
        (280, 0, 0, 0, "Processed without load 300 records/s, with load 280"),
        (300, 300, 0, 0, "supervisor: handles 40"),
        (300, 0, 40, 0, "supervisor: handles 14"),
        (300, 0, 0, 10 << 20, "the log has 10240 KiB"),
    ],
)
def test_an_application_that_slows_or_grows_under_http_load_is_reported(
    loaded_rate: int, more: int, left: int, log_bytes: int, told: str | None
) -> None:
    begin, end = 120.0, 300.0
    progress = [(at, int(300 * min(at, begin) + loaded_rate * max(0.0, at - begin))) for at in range(0, 601, 10)]
    extra = {True: more, False: 0}
    samples = [
        replace(one, handles=one.handles + extra[begin <= one.at < end] + left * (one.at >= end))
        for one in run(process="supervisor")
    ]
    _, wrong = compared(progress, samples, begin, end, log_bytes)
    assert [line.startswith(told or "") for line in wrong] == [True] * (told is not None), wrong


def test_threads_that_are_left_of_a_load_are_reported() -> None:
    progress = [(at, 300 * at) for at in range(0, 601, 10)]
    samples = [replace(one, threads=one.threads + 5 * (one.at >= 120.0)) for one in run(process="supervisor")]
    assert compared(progress, samples, 120.0, 300.0, 0)[1] == ["supervisor: threads 25 after it, allowed are 22"]


@pytest.mark.slow
@pytest.mark.broker
def test_http_load_does_not_change_the_processing_of_a_short_soak(tmp_path: Path, bootstrap_servers: str) -> None:
    outcome = soak(tmp_path, bootstrap_servers, seconds=HTTP_SECONDS, rate=300, http=True)
    # Stream threads are still filling their memtables.
    assert [fault for fault in outcome.faults if not fault.startswith("StreamThread-")] == [], outcome.lines()


@pytest.mark.slow
@pytest.mark.broker
def test_a_short_soak_detects_rows_that_do_not_end(
    tmp_path: Path, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAULT_VARIABLE, "no ttl")
    outcome = soak(tmp_path, bootstrap_servers, seconds=12.0, rate=500)
    assert any("visits are left" in fault for fault in outcome.faults), outcome.lines()


@pytest.mark.slow
@pytest.mark.broker
def test_a_short_soak_detects_a_functions_leak_and_nothing_else(
    tmp_path: Path, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAULT_VARIABLE, "leak")
    outcome = soak(tmp_path, bootstrap_servers, seconds=4.0, rate=1_000, records_min=4_000)
    assert outcome.records > 0
    assert any("rss grew by" in fault for fault in outcome.faults), outcome.lines()
    assert any("handles grew by" in fault for fault in outcome.faults), outcome.lines()
    assert all(fault.startswith("StreamThread-") and "grew" in fault for fault in outcome.faults), outcome.lines()
