"""Rare branches that the simulation cannot reach: reasons, each with prefixes of branch names.

Any other branch that no schedule has reached is a gap of the simulation.
"""

from __future__ import annotations

GAPS: dict[str, tuple[str, ...]] = {
    "a fault of the code that calls it, which no application can cause": (
        "stream_thread.StreamThread.poll_time_ms: ",
        "task_manager.TaskManager.create_tasks: ",
        "stream_task.StreamTask._running: raise StreamsError",
        "global_state.GlobalTask.",
        "global_state.NoGlobalState.",
    ),
    "the loop of StreamThread.run is Process._live here": ("stream_thread.StreamThread.run: ",),
    "input topics lose no records": ("global_state.GlobalState._poll: except InvalidOffsetError",),
    "no topic is missing, and all processes have the same version": (
        "rebalance_listener.RebalanceListener.on_partitions_assigned: ",
        "rebalancer.Rebalancer._handle: raise event.error",
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
        "record_collector.RecordCollector._write_letter: ",
        "record_collector.RecordCollector._leave_out: ",
        "stream_task.StreamTask.record_dropped: ",
    ),
    "no producer fails for good": (
        "streams_producer.StreamsProducer._serve: ",
        "streams_producer.StreamsProducer.close: ",
    ),
    "no request is refused": ("changelog_bounds.ChangelogBounds._on_error: raise StreamsError",),
    "global stores are in memory": (
        "stream_thread.StreamThread.run_once_guarded: raise again",
        "global_state.GlobalState._take_checkpoint: ",
    ),
    "damage is found when a store is opened or restored, later in tests/workers/test_damaged_state.py": (
        "processor_state_manager.ProcessorStateManager.restore: except Exception",
        "processor_state_manager.ProcessorStateManager.raise_if_corrupted: raise error",
    ),
    "no checkpoint file is damaged: tests/workers/test_damaged_state.py": (
        "processor_state_manager.checkpointed_offsets: ",
    ),
    "no code of an application fails, and disks fail in commits only: tests/workers/test_assigned_tasks.py": (
        "task_manager.TaskManager.suspend_tasks_and_state: except Exception",
        "assigned_tasks.AssignedTasks._suspend: ",
        "assigned_tasks.AssignedTasks.apply_to_running_tasks: except Exception",
        "assigned_tasks.AssignedTasks.on_failed: ",
    ),
    "a close that is not clean raises nothing": (
        "assigned_tasks.AssignedTasks._close: ",
        "assigned_tasks.AssignedTasks.close_zombie_task: ",
        "assigned_tasks.AssignedTasks.remove_zombie: raise failure",
    ),
    "what is suspended is closed in the same rebalance": (
        "assigned_tasks.AssignedTasks.maybe_resume_suspended_task: ",
    ),
    "between a close and the next call no other thread runs here": ("task_manager.TaskManager._recreate: ",),
    "the settings are right": (
        "streams_producer.StreamsProducer._judge_initialization: raise ConfigError",
        "streams_producer.StreamsProducer._judge_initialization: raise StreamsError",
        "streams_producer.StreamsProducer._attempt: raise StreamsError",
    ),
    "nothing is handed over to Spark": (
        "stream_task.StreamTask._initialize_processor_metadata: raise HandedOverError",
    ),
}
