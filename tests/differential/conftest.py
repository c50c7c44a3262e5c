"""Without pyspark or a JDK for it, these tests are left out, and the last lines of the run say so."""

from __future__ import annotations

from typing import Any

from penstock import PenstockError
from penstock.spark import require_jdk, require_pyspark


def missing() -> str | None:
    """Return why Spark cannot run here, None if it can."""
    try:
        require_pyspark()
        require_jdk()
    except PenstockError as error:
        return str(error)
    return None


WHY = missing()
collect_ignore = [] if WHY is None else ["test_on_spark.py", "test_handover.py", "test_kill.py"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was left out."""
    if WHY is not None:
        terminalreporter.write_line(f"SKIPPED the tests on Spark: {WHY}")
