"""Listeners in the process of a stream thread forward each call to the supervisor."""

from __future__ import annotations

from collections.abc import Callable

from penstock.topology.records import TopicPartition
from penstock.workers.control.messages import Command, ListenerCall, Report
from penstock.workers.restore.listeners import StandbyUpdateListener, StateRestoreListener, SuspendReason
from penstock.workers.restore.reporting_listeners import reporting

PARTITION = TopicPartition("app-store-changelog", 0)


class Reports:
    """A control that keeps the reports."""

    def __init__(self) -> None:
        self.all: list[Report] = []

    def poll_commands(self) -> list[Command]:
        return []

    def wakes_by(self, wake: Callable[[], None]) -> None:
        pass

    def report(self, report: Report) -> None:
        self.all.append(report)


def test_each_call_is_reported_with_its_arguments() -> None:
    reports = Reports()
    restore = reporting(StateRestoreListener(), "restore", reports)
    standby = reporting(StandbyUpdateListener(), "standby", reports)
    restore.on_restore_start(PARTITION, "store", 0, 7)
    standby.on_update_suspended(PARTITION, "store", 3, None, SuspendReason.PROMOTED)
    assert reports.all == [
        ListenerCall("restore", "on_restore_start", (PARTITION, "store", 0, 7)),
        ListenerCall("standby", "on_update_suspended", (PARTITION, "store", 3, None, SuspendReason.PROMOTED)),
    ]


def test_every_method_of_both_listeners_is_reported() -> None:
    restore, standby = StateRestoreListener(), StandbyUpdateListener()
    for given, made in (
        (restore, reporting(restore, "any", Reports())),
        (standby, reporting(standby, "any", Reports())),
    ):
        methods = {name for name in vars(type(given)) if name.startswith("on_")}
        assert methods
        assert methods <= vars(made).keys()
