"""The part of a task that processors, transformers and stores of users see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.streams_config import settings_with_prefix
from ..context.task_context import TaskContext
from ..processor_api import StreamsMetrics
from ..records import RecordMetadata, TaskId
from ..serdes.serdes import Serde, resolve_serde
from .record_context import record_metadata


class UserContext:
    """The common members of ProcessingContext and StateStoreContext. owner: the node or store, for errors."""

    def __init__(self, task: TaskContext, owner: str) -> None:
        self._task = task
        self._owner = owner

    @property
    def application_id(self) -> str:
        """The application's id."""
        return self._task.application_id

    @property
    def task_id(self) -> TaskId:
        """The task."""
        return self._task.task_id

    @property
    def app_configs(self) -> Mapping[str, Any]:
        """The application's effective configuration."""
        return self._task.config

    def app_configs_with_prefix(self, prefix: str) -> Mapping[str, object]:
        """Return the settings whose names begin with a prefix, by the rest of their names."""
        return settings_with_prefix(self._task.config, prefix)

    @property
    def key_serde(self) -> Serde:
        """The default serde of keys; raises ConfigError if there is none."""
        return resolve_serde(None, self._task.config, True, self._owner)

    @property
    def value_serde(self) -> Serde:
        """The default serde of values; raises ConfigError if there is none."""
        return resolve_serde(None, self._task.config, False, self._owner)

    @property
    def metrics(self) -> StreamsMetrics:
        """The registry for custom metrics."""
        return self._task.streams_metrics

    def record_metadata(self) -> RecordMetadata | None:
        """Return topic, partition and offset of the input record; None in a punctuation."""
        return record_metadata(self._task)
