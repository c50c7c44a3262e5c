"""The waits and the throttle times of a stream thread's clients, as metrics."""

from __future__ import annotations

from penstock.clients.throttle import Health, ThrottleTimes
from penstock.workers.metrics.client_health import ClientHealth
from penstock.workers.metrics.sensors import ThreadMetrics


def test_throttle_times_are_averaged_and_summed_over_all_responses() -> None:
    reads = [Health(("Fetch by broker 1 is throttled: a quota",), ThrottleTimes(4, 800, 500)), Health()]
    health = ClientHealth(
        "app-StreamThread-1",
        {"consumer": lambda: reads.pop(0), "restore-consumer": Health},
        lambda: Health(("Produce to out-0 is retried: NOT_ENOUGH_REPLICAS from broker 1",)),
        (lambda: ("JoinGroup is retried: NOT_COORDINATOR",), tuple),
        ThreadMetrics(),
    )
    assert health.look(1_000) == (
        "Fetch by broker 1 is throttled: a quota",
        "Produce to out-0 is retried: NOT_ENOUGH_REPLICAS from broker 1",
        "JoinGroup is retried: NOT_COORDINATOR",
    )
    health.look(2_000)
    found = {group.tags["client-id"]: (group.group, dict(group.values)) for group in health.groups(2_000)}
    times = {"fetch-throttle-time-avg": 200.0, "fetch-throttle-time-max": 500.0, "fetch-throttle-time-total": 800.0}
    assert found["app-StreamThread-1-consumer"] == ("consumer-fetch-manager-metrics", times)
    assert found["app-StreamThread-1-restore-consumer"][1] == dict.fromkeys(times, 0.0)
    assert found["app-StreamThread-1-producer"][1]["produce-throttle-time-total"] == 0.0
