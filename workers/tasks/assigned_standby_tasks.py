"""The registry of standby tasks (Kafka Streams 2.x: AssignedStandbyTasks)."""

from __future__ import annotations

from penstock.clients.log_context import PrefixedLogger

from .assigned_tasks import AssignedTasks
from .standby_task import StandbyTask


class AssignedStandbyTasks(AssignedTasks[StandbyTask]):
    """Standby tasks: they run, that is follow their changelogs, as soon as their stores are open."""

    def __init__(self, log: PrefixedLogger) -> None:
        super().__init__("standby task", log)
