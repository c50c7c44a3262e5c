"""Without pyspark and pyarrow, tests that need them are skipped, and the last lines of the run report that."""

from __future__ import annotations

import importlib.util
from typing import Any

NEED_SPARK = [
    "test_alarm.py",
    "test_changelogs.py",
    "test_failures.py",
    "test_session.py",
    "test_settings_and_records.py",
    "test_wake_up.py",
]
collect_ignore = [] if all(map(importlib.util.find_spec, ("pyspark", "pyarrow"))) else NEED_SPARK


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report skipped tests."""
    if collect_ignore:
        terminalreporter.write_line(
            f"SKIPPED for want of pyspark and pyarrow (pip install 'penstock-streams[spark]'): {collect_ignore}"
        )
