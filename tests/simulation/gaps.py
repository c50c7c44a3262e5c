"""Why some rare branches are not reached here: by reason, how the names of the branches begin.

A branch that is not in here and that no schedule has reached is a gap in what the simulation shows.
"""

from __future__ import annotations

GAPS: dict[str, tuple[str, ...]] = {
    "a fault of the code that calls it, which no application can cause": (
        "stream_thread.StreamThread.poll_time_ms: ",
        "task_manager.TaskManager._adopt: ",
        "task_manager.TaskManager._add_stream_tasks: ",
        "stream_task.StreamTask._partition_group: raise StreamsError",
        "stream_task.StreamTask.prepare_commit: raise StreamsError",
        "global_state.GlobalTask.",
        "global_state.NoGlobalState.",
    ),
    "the loop of StreamThread.run is Process._live here": ("stream_thread.StreamThread.run: ",),
    "input topics lose no records": (
        "stream_thread.StreamThread.poll_requests: except InvalidOffsetError",
        "global_state.GlobalState._poll: except InvalidOffsetError",
    ),
    "no topic is missing, and all processes have the same version": (
        "rebalance_listener.RebalanceListener.on_partitions_assigned: ",
        "streams_group.StreamsGroup._handle: raise event.error",
        "changelog_bounds.ChangelogBounds._on_error: raise missing_changelog",
        "record_collector.RecordCollector.check_changelogs: ",
    ),
    "no schedule is longer than task.timeout.ms": (
        "task_timeouts.TaskTimeouts.failed: raise TaskTimeoutError",
        "changelog_bounds.ChangelogBounds._on_error: raise BrokerUnavailableError",
        "streams_producer.StreamsProducer._judge_initialization: raise BrokerUnavailableError",
    ),
    "no record is refused, and no handler continues without one: tests/workers and tests with a broker": (
        "streams_producer.StreamsProducer.refused: ",
        "record_collector.RecordCollector.refused: ",
        "record_collector.RecordCollector._may_go_on: ",
        "record_collector.RecordCollector._leave_out: ",
        "stream_task.StreamTask.record_dropped: ",
    ),
    "no producer fails for good": ("streams_producer.StreamsProducer._serve: ",),
    "no application has a partitioner of its own": (),
    "the settings are right": (
        "streams_producer.StreamsProducer._judge_initialization: raise ConfigError",
        "streams_producer.StreamsProducer._judge_initialization: raise StreamsError",
        "streams_producer.StreamsProducer._attempt: raise StreamsError",
    ),
    "nothing is handed over to Spark": (
        "stream_task.StreamTask._initialize_processor_metadata: raise HandedOverError",
    ),
}
