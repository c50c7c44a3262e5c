"""Listeners in the process of a stream thread forward each call to the supervisor."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from penstock.topology.records import TopicPartition
from penstock.workers.control.messages import Command, ListenerCall, Report
from penstock.workers.restore.listeners import StandbyUpdateListener, StateRestoreListener, SuspendReason
from penstock.workers.restore.reporting_listeners import ReportingRestoreListener, ReportingUpdateListener

PARTITION = TopicPartition("app-store-changelog", 0)


class Reports:
    """A control that keeps the reports."""

    def __init__(self) -> None:
        self.all: list[Report] = []

    def poll_commands(self) -> list[Command]:
        return []

    def watched_by(self, watch: Callable[[int], None]) -> None:
        pass

    def report(self, report: Report) -> None:
        self.all.append(report)


def test_each_call_is_reported_with_its_arguments() -> None:
    reports = Reports()
    ReportingRestoreListener(reports).on_restore_start(PARTITION, "store", 0, 7)
    ReportingUpdateListener(reports).on_update_suspended(PARTITION, "store", 3, None, SuspendReason.PROMOTED)
    assert reports.all == [
        ListenerCall("restore", "on_restore_start", (PARTITION, "store", 0, 7)),
        ListenerCall("standby", "on_update_suspended", (PARTITION, "store", 3, None, SuspendReason.PROMOTED)),
    ]


def test_every_method_of_both_listeners_is_reported() -> None:
    """With all arguments, in the order in which the supervisor passes them to the user's listener."""
    for base, name, listener in (
        (StateRestoreListener, "restore", ReportingRestoreListener(reports := Reports())),
        (StandbyUpdateListener, "standby", ReportingUpdateListener(reports)),
    ):
        for method in [method for method in vars(base) if method.startswith("on_")]:
            count = len(inspect.signature(getattr(listener, method)).parameters)
            getattr(listener, method)(*range(count))
            assert reports.all[-1] == ListenerCall(name, method, tuple(range(count)))
    assert len(reports.all) == 7
