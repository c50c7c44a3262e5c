"""Without pyspark or a JDK for it, these tests are skipped, and the last lines of the run report that."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import PenstockError
from penstock.pipeline.session.spark_session import require_jdk, require_pyspark, spark_session
from tests.waiting import PATIENCE_SECONDS


def missing() -> str | None:
    """Return why Spark cannot run here, None if it can."""
    try:
        require_pyspark()
        require_jdk()
    except PenstockError as error:
        return str(error)
    return None


WHY = missing()
collect_ignore_glob = [] if WHY is None else ["test_*.py"]


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One session for all: its start takes as long as several tests, and a process can have one Java only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark's own, of sockets and deprecated modules
        session = spark_session("tests", "local[2]")
        yield session
        process = session.sparkContext._gateway.proc  # type: ignore[union-attr]
        session.stop()
        process.stdin.close()  # Spark's Java ends when it sees that its Python has
        process.wait(PATIENCE_SECONDS)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report skipped tests."""
    if WHY is not None:
        terminalreporter.write_line(f"SKIPPED the tests on Spark: {WHY}")
