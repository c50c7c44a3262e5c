"""The types of a status as JSON has it: what Administration returns, HTTP sends and the commands show.

Times in seconds unless the name ends in _ms (those since 1970), memory in bytes, lag and restores in records, CPU in
percent of one core. Unknown values are None.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict


class PartitionJson(TypedDict):
    """An input partition of a task."""

    topic: str
    partition: int
    lag: int | None


class SinkJson(TypedDict):
    """A sink outside of Kafka; see SinkStatus. lag: the task's, with the records that wait in the sink."""

    name: str
    lag: int | None
    waiting: int
    rows_per_second: float
    batch_ms: float
    retries: int


class CheckpointJson(TypedDict):
    """The checkpoints of a task; see CheckpointStatus."""

    age_seconds: float | None
    uploads: int
    bytes: int
    upload_seconds: float
    failures: int
    loading_bytes: int | None
    loading_total_bytes: int


class TaskJson(TypedDict):
    """A task; see TaskStatus. lag: of an active task whose partitions' lags are all known.

    sinks, checkpoint: missing in the status of an older version.
    """

    task_id: str
    kind: str
    state: str
    lag: int | None
    buffered: int
    waiting: int
    restore_remaining: int
    restore_total: int
    restore_rate: float
    restore_eta_seconds: float | None
    partitions: list[PartitionJson]
    sinks: NotRequired[list[SinkJson]]
    checkpoint: NotRequired[CheckpointJson | None]


class TaskOfThreadJson(TaskJson):
    """A task and the name of its stream thread."""

    thread: str


class ThreadJson(TypedDict):
    """A stream thread; see ThreadStatus. waits: missing in the status of an older version."""

    name: str
    number: int
    pid: int
    state: str
    records_processed: int
    records_per_second: float
    lag: int
    restore_remaining: int
    restore_total: int
    restore_rate: float
    rss_bytes: int
    memory_share_bytes: int | None
    over_memory_share: bool
    cpu_percent: float
    uptime_seconds: float
    restarts: int
    waits: NotRequired[list[str]]
    tasks: list[TaskJson]


class TotalsJson(TypedDict):
    """Sums over all stream threads."""

    threads: int
    tasks: int
    standby_tasks: int
    records_processed: int
    records_per_second: float
    lag: int
    restore_remaining: int
    rss_bytes: int
    cpu_percent: float


class ProcessJson(TypedDict):
    """The supervisor's process."""

    pid: int
    rss_bytes: int
    cpu_seconds: float


class ErrorJson(TypedDict):
    """A logged error."""

    time_ms: int
    logger: str
    message: str


class ApplicationJson(TypedDict):
    """An application. errors: the latest ones."""

    application_id: str
    client_id: str
    bootstrap_servers: str
    state: str
    reason: str | None
    paused: bool
    version: str
    processing_guarantee: str
    state_dir: str
    uptime_seconds: float
    supervisor: ProcessJson
    threads: list[ThreadJson]
    totals: TotalsJson
    memory_budget_bytes: int | None
    failed_stream_threads: int
    errors_total: int
    errors: list[ErrorJson]


class LagJson(TypedDict):
    """An input partition with its task and stream thread. buffered: of the task, over all its partitions."""

    topic: str
    partition: int
    lag: int | None
    buffered: int
    task_id: str
    task_state: str
    thread: str
