"""A stateful task moves between Java and Penstock only after a warm-up has its state, whichever of them leads."""

from __future__ import annotations

import pytest

from tests.java.conftest import MakeHandover
from tests.java.handover import Handover, Placed, assert_as_one_uninterrupted_run, kind_of
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]

WARM_UPS = 2
#: Enough for the changelogs of each task to have more records than a caught-up copy may lack.
ROUNDS, ACCEPTABLE_LAG = 12, 5
#: The shortest that both accept.
PROBING_MS = 60_000
TASKS = 6


def warms_up(application: Handover, owner: str, newcomer: str) -> None:
    """Wait until the newcomer has the maximum number of warm-ups, while all tasks are still in their places."""

    def is_warming() -> bool:
        placed = application.placed(kind_of)
        return bool(placed) and len(placed[newcomer].standby) == WARM_UPS

    eventually(is_warming, lambda: application.placed(kind_of), PATIENCE_SECONDS)
    found = application.placed(kind_of)
    assert len(found[owner].active) == TASKS
    assert found[newcomer].active == frozenset()
    assert found[newcomer].standby <= found[owner].active


def moves(application: Handover, newcomer: str) -> None:
    """Wait until the newcomer has its half: the first warm-ups, then the next ones."""

    def has_its_half() -> bool:
        placed = application.placed(kind_of)
        return bool(placed) and all(
            found == Placed(found.active) and len(found.active) == TASKS / 2 for found in placed.values()
        )

    eventually(has_its_half, lambda: application.placed(kind_of), PATIENCE_SECONDS + 3 * PROBING_MS / 1_000)


def test_each_kind_warms_up_tasks_of_the_other_kind(handover: MakeHandover) -> None:
    config = {
        "max_warmup_replicas": str(WARM_UPS),
        "acceptable_recovery_lag": str(ACCEPTABLE_LAG),
        "probing_rebalance_interval_ms": str(PROBING_MS),
    }
    application = handover("warmed", **config)
    java = application.start_java("java")
    for _ in range(ROUNDS):
        application.feed()
    application.settle()
    penstock = application.start_penstock("penstock")
    warms_up(application, "java", "penstock")
    application.feed()
    moves(application, "penstock")
    application.settle()
    java.stop()
    eventually(lambda: application.members().get("java") == 0, application.members, PATIENCE_SECONDS)
    application.feed()
    application.settle()
    java = application.start_java("java-again")
    warms_up(application, "penstock", "java")
    assert penstock.has_logged("Leading generation")
    application.feed()
    moves(application, "java")
    application.settle()
    penstock.stop()
    application.feed()
    application.settle()
    java.stop()
    assert_as_one_uninterrupted_run(application, handover("uninterrupted", **config))
