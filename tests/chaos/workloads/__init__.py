"""Workloads for chaos runs: topologies, their input, and the expected outputs.

``python -m tests.chaos --workload NAME``; each class describes itself and why its outcome is deterministic.
"""

from __future__ import annotations

from tests.chaos.workloads.dead_letters import DeadLetters
from tests.chaos.workloads.numbers import (
    AsyncFunctions,
    HotKeys,
    LargeRecords,
    ManyKeys,
    Numbers,
    Queried,
    SlowFunction,
)
from tests.chaos.workloads.recorded import Recorded
from tests.chaos.workloads.workload import BUDGET_SECONDS, Setting, Workload

__all__ = ["BUDGET_SECONDS", "WORKLOADS", "Setting", "Workload"]

WORKLOADS: dict[str, type[Workload]] = {
    workload.name: workload
    for workload in (
        Numbers,
        HotKeys,
        ManyKeys,
        SlowFunction,
        AsyncFunctions,
        LargeRecords,
        Queried,
        Recorded,
        DeadLetters,
    )
}
