"""The check of Spark's executors before the first micro-batch; tests/differential/test_clusters.py has real ones."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

import penstock_distribution
from penstock.pipeline.session.executors import ExecutorError, require_penstock_on_executors


class Context:
    """A SparkContext whose only executor is this process; ``local[2]``: its executors share the driver's."""

    defaultParallelism = 1  # noqa: N815 - Spark's name

    def __init__(self, master: str) -> None:
        self.master = master
        self.sparkContext = self
        self.found: list[Any] | None = None

    def parallelize(self, items: Iterable[int], _partitions: int) -> Context:
        return self

    def mapPartitions(self, probe: Callable[[Iterable[Any]], Iterator[Any]]) -> Context:  # noqa: N802 - Spark's name
        self.found = list(probe([]))
        return self

    def collect(self) -> list[Any]:
        return self.found or []


def ask(context: Any) -> None:
    require_penstock_on_executors(context)


@pytest.fixture
def without_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the next import of the kernel fail for one of its modules."""
    find = importlib.util.find_spec
    monkeypatch.delitem(sys.modules, "penstock.kernel")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "penstock.kernel.rows" else find(name, *rest)
    )


def test_an_executor_like_the_driver_is_accepted() -> None:
    context = Context("spark://host:7077")
    ask(context)
    ((_, version, why),) = context.found or []
    assert (version, why) == (penstock_distribution.version(), "")


@pytest.mark.usefixtures("without_kernel")
def test_the_error_for_an_executor_without_the_kernel_says_what_to_do() -> None:
    says = (
        r"An executor on .+ cannot import Penstock \(MissingKernelError: Penstock's compiled kernel is not built for "
    )
    with pytest.raises(ExecutorError, match=says) as caught:
        ask(Context("spark://host:7077"))
    assert "see docs/installation.md" in str(caught.value)


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = iter(["0.0.1", "0.0.2"])  # the executor's, the driver's
    monkeypatch.setattr(penstock_distribution, "version", lambda: next(versions))
    with pytest.raises(ExecutorError, match=r"has Penstock 0\.0\.1, but the driver 0\.0\.2"):
        ask(Context("yarn"))


def test_executors_in_the_drivers_process_are_not_checked() -> None:
    context = Context("local[2]")
    ask(context)
    assert context.found is None
