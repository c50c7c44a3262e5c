"""A status that barely fits: no number is cut, important parts are on top, and memory above its share is marked."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from penstock.cli.status_view import status_view

MIB = 1 << 20


def task(number: int) -> dict[str, Any]:
    values = {"task_id": f"0_{number}", "kind": "active", "state": "RUNNING", "lag": 0, "buffered": 0, "waiting": 0}
    return {**values, "restore_remaining": 0}


def status(**thread: Any) -> dict[str, Any]:
    one = {
        "number": 1,
        "pid": 1_234_567,
        "state": "RUNNING",
        "tasks": [task(number) for number in range(20)],
        "records_per_second": 98_765.0,
        "lag": 7_654_321,
        "rss_bytes": 300 * MIB,
        "memory_share_bytes": 400 * MIB,
        "over_memory_share": False,
        "cpu_percent": 99.0,
        "restarts": 3,
        "waits": [],
        **thread,
    }
    totals = {"threads": 1, "tasks": 20, "standby_tasks": 0, "records_per_second": 98_765.0, "lag": 7_654_321}
    return {
        "application_id": "delays",
        "state": "RUNNING",
        "paused": False,
        "reason": None,
        "uptime_seconds": 61.0,
        "supervisor": {"pid": 99, "rss_bytes": 30 * MIB},
        "state_dir": "state",
        "totals": totals,
        "threads": [one],
        "errors_total": 1,
        "errors": [{"time_ms": 0, "logger": "x", "message": "a stream thread died"}],
    }


def shown(found: Any, width: int = 80, **options: bool) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(status_view(found, **options))
    return out.getvalue()


@pytest.mark.parametrize(("width", "left_out"), [(80, ()), (64, ("restarts",)), (48, ("restarts", "CPU", "pid"))])
def test_a_narrow_terminal_omits_columns_and_cuts_no_number(width: int, left_out: tuple[str, ...]) -> None:
    lines = shown(status(), width).splitlines()
    header, _, row = lines[lines.index("") + 1 :][:3]
    assert {column for column in ("restarts", "CPU", "pid") if column not in header} >= set(left_out)
    assert all(column in header for column in ("thread", "state", "records/s", "behind", "memory"))
    assert all(figure in row for figure in ("98,765", "7,654,321", "300 MiB"))
    assert ("1234567" in row) is ("pid" in header)


@pytest.mark.parametrize("width", [47, 40, 30, 20])
def test_a_very_narrow_screen_shows_text_instead_of_a_table(width: int) -> None:
    restoring = task(0) | {"restore_remaining": 1_234_567, "restore_total": 7_000_000, "restore_rate": 5_000.0}
    found = status(tasks=[restoring | {"restore_eta_seconds": 60.0}, task(1)])
    text = shown(found, width, with_tasks=True, live=True)
    assert max(map(len, text.splitlines())) <= width
    assert all(figure in text for figure in ("98,765", "7,654,321", "1,234,567", "RUNNING", "0_1"))
    assert "300 MiB" in " ".join(text.split())
    assert not set(text) & set("…")


def test_a_paused_application_shows_its_waiting_records() -> None:
    assert "PAUSED" in shown(status() | {"paused": True})
    restoring = shown(status(state="PARTITIONS_ASSIGNED") | {"paused": True, "state": "REBALANCING"})
    assert "REBALANCING" in restoring
    assert "tasks that are not restored yet wait for `penstock resume`" in restoring


def test_memory_over_its_share_is_shown_with_it() -> None:
    assert "450 MiB of 400 MiB" in shown(status(rss_bytes=450 * MIB, over_memory_share=True))
    assert "of 400 MiB" not in shown(status())


def test_a_live_screen_has_errors_first_and_a_complete_listing_at_its_end() -> None:
    live, listed = (shown(status(), with_tasks=True, live=live) for live in (True, False))
    assert live.index("a stream thread died") < live.index("0_19")
    assert listed.index("a stream thread died") > listed.index("0_19")


def test_sinks_and_checkpoints_are_listed_with_the_tasks() -> None:
    figures = {"lag": 310, "waiting": 10, "rows_per_second": 1_204.0, "batch_ms": 12.34, "retries": 2}
    sink = {"name": "orders-sink", **figures}
    uploaded = {"age_seconds": 312.0, "uploads": 3, "bytes": 400 * MIB, "upload_seconds": 14.9, "failures": 1}
    loading = {"age_seconds": None, "uploads": 0, "bytes": 0, "upload_seconds": 0.0, "failures": 0}
    tasks = [
        task(0) | {"sinks": [sink], "checkpoint": None},
        task(1) | {"sinks": [], "checkpoint": uploaded | {"loading_bytes": None, "loading_total_bytes": 0}},
        task(2) | {"sinks": [], "checkpoint": loading | {"loading_bytes": 3 * MIB, "loading_total_bytes": 9 * MIB}},
        task(3),  # of an older version
    ]
    text = shown(status(tasks=tasks), with_tasks=True)
    rows = [line.split() for line in text.splitlines()]
    assert ["orders-sink", "0_0", "310", "10", "1,204", "12.3", "ms", "2"] in rows
    assert ["0_1", "5", "min", "12", "s", "400", "MiB", "15", "s", "1"] in rows
    assert ["0_2", "-", "-", "-", "0", "3", "MiB", "of", "9", "MiB"] in rows
    plain = shown(status(), with_tasks=True)
    assert "sink" not in plain
    assert "checkpoint" not in plain
