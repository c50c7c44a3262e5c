"""The registry of standby tasks (Kafka Streams 2.x: AssignedStandbyTasks)."""

from __future__ import annotations

from .assigned_tasks import AssignedTasks
from .standby_task import StandbyTask


class AssignedStandbyTasks(AssignedTasks[StandbyTask]):
    """Standby tasks. They run as soon as their stores are open."""

    task_type_name = "standby task"
