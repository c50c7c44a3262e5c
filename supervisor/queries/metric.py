"""The metrics of an application, as Kafka Streams has them: name, group and tags (KafkaStreams.metrics)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import psutil

from penstock.topology.config.streams_config import StreamsConfig
from penstock.workers.control.messages import Measure
from penstock.workers.metrics.sensors import Metric, MetricGroup
from penstock_distribution import version

from ..application_state import ApplicationState
from ..processes.worker import ThreadStatus
from ..supervisor import Supervisor
from .queries import Answers

CLIENT_GROUP = "stream-metrics"
THREAD_GROUP = "stream-thread-metrics"
#: Penstock's own: memory and CPU of each process.
PROCESS_GROUP = "penstock-process-metrics"
#: Penstock's own: the file system of state.dir.
DISK_GROUP = "penstock-disk-metrics"
#: Time limit for stream threads; one that is busy longer shows the values of its last report.
MEASURE_SECONDS = 2.0


def metrics(supervisor: Supervisor, config: StreamsConfig) -> list[Metric]:
    """Return all current metrics: of the client, its stream threads with tasks and stores, and the processes."""
    threads = supervisor.thread_status()
    groups = [
        *client_metrics(supervisor, config["application.id"]),
        *_measured(supervisor),
        *_of_processes(threads),
        *_of_disk(config["state.dir"]),
    ]
    texts = {"application-id": config["application.id"], "state": supervisor.states.state.name, "version": version()}
    client = {"client-id": supervisor.client_id}
    return [
        *(Metric(name, CLIENT_GROUP, client, text) for name, text in texts.items()),
        *(Metric(name, group.group, group.tags, value) for group in groups for name, value in group.values.items()),
    ]


def client_metrics(supervisor: Supervisor, application_id: str) -> tuple[MetricGroup, ...]:
    """Return the metrics of the application itself, without texts; does not wait for the supervisor's loop."""
    tags = {"client-id": supervisor.client_id}
    counts = {
        "alive-stream-threads": float(supervisor.alive_stream_threads),
        "failed-stream-threads": float(supervisor.failed_stream_threads),
    }
    # KIP-1091: a number, for systems that cannot show text
    state = {"client-state": float(list(ApplicationState).index(supervisor.states.state))}
    process = {"process-id": supervisor.process_id} if supervisor.process_id else {}
    of_state = {**tags, **process, "application-id": application_id}
    return MetricGroup(CLIENT_GROUP, tags, counts), MetricGroup(CLIENT_GROUP, of_state, state)


def _measured(supervisor: Supervisor) -> Iterator[MetricGroup]:
    answered = set()
    answers = Answers()
    with suppress(TimeoutError):
        supervisor.ask(Measure, answers, MEASURE_SECONDS)
    for result in list(answers.results):
        groups: tuple[MetricGroup, ...] = result.value or ()
        yield from groups
        answered |= {group.tags["thread-id"] for group in groups if group.group == THREAD_GROUP}
    for name, values in supervisor.metrics().items():
        if name not in answered:
            yield MetricGroup(THREAD_GROUP, {"thread-id": name}, values)


def _of_processes(threads: list[ThreadStatus]) -> Iterator[MetricGroup]:
    own = psutil.Process()
    with own.oneshot():
        rss, times = own.memory_info().rss, own.cpu_times()
    values = {"rss-bytes": float(rss), "cpu-seconds-total": times.user + times.system}
    yield MetricGroup(PROCESS_GROUP, {"process": "supervisor", "pid": str(os.getpid())}, values)
    for thread in threads:
        tags = {"process": thread.name, "pid": str(thread.pid)}
        values = {
            "rss-bytes": float(thread.rss_bytes),
            "memory-share-bytes": float(thread.memory_share_bytes or 0),
            "over-memory-share": float(thread.is_over_memory_share),
            "cpu-percent": thread.cpu_percent,
            "uptime-seconds": thread.uptime_seconds,
            "restarts-total": float(thread.restarts),
            "records-per-second": thread.records_per_second,
            "lag": float(thread.lag),
        }
        yield MetricGroup(PROCESS_GROUP, tags, values)


def _of_disk(state_dir: str) -> Iterator[MetricGroup]:
    with suppress(FileNotFoundError):  # removed while the application runs, which says so itself
        usage = psutil.disk_usage(state_dir)
        values = {"free-bytes": float(usage.free), "size-bytes": float(usage.total)}
        yield MetricGroup(DISK_GROUP, {"state-dir": state_dir}, values)


def by_name(found: list[Metric], name: str, **tags: object) -> list[float | str]:
    """Return the values of the metrics of a name that have these tags (``task_id`` for ``task-id``)."""
    wanted = {key.replace("_", "-"): str(value) for key, value in tags.items()}
    return [metric.value for metric in found if metric.name == name and wanted.items() <= metric.tags.items()]
