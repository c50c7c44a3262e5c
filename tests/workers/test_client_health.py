"""The waits and the throttle times of a stream thread's clients, as metrics."""

from __future__ import annotations

from penstock.clients.throttle import Health, Times
from penstock.clients.traffic import Traffic
from penstock.workers.metrics.client_health import ClientHealth
from penstock.workers.metrics.sensors import ThreadMetrics


def test_throttle_times_are_averaged_and_summed_over_all_responses() -> None:
    reads = [Health(("Fetch by broker 1 is throttled: a quota",), Times(4, 800, 500)), Health()]
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
    found = {(group.tags["client-id"], group.group): dict(group.values) for group in health.groups(2_000)}
    times = {"fetch-throttle-time-avg": 200.0, "fetch-throttle-time-max": 500.0, "fetch-throttle-time-total": 800.0}
    read = found["app-StreamThread-1-consumer", "consumer-fetch-manager-metrics"]
    assert {name: value for name, value in read.items() if name in times} == times
    restored = found["app-StreamThread-1-restore-consumer", "consumer-fetch-manager-metrics"]
    assert set(restored.values()) == {0.0}
    assert found["app-StreamThread-1-producer", "producer-metrics"]["produce-throttle-time-total"] == 0.0


def test_traffic_and_latencies_are_those_between_two_looks() -> None:
    one = Traffic(
        2, 3, 1, 2, 1, requests=10, responses=9, bytes_out=1_000, bytes_in=500, operations=20, largest_request=400
    )
    two = one._replace(connections=1, closed=2, requests=14, responses=14, bytes_out=1_200, largest_request=70)
    reads = [Health(latencies=Times(2, 30, 20), traffic=one), Health(latencies=Times(1, 6, 6), traffic=two)]
    reader = lambda: reads.pop(0)  # noqa: E731
    health = ClientHealth("t", {"consumer": reader}, Health, (), ThreadMetrics(window_ms=1_000, samples=2))
    for now_ms in (1_000, 2_000):
        health.look(now_ms)
    found = {
        group.group: dict(group.values) for group in health.groups(2_000) if group.tags["client-id"] == "t-consumer"
    }
    fetches, connections = found["consumer-fetch-manager-metrics"], found["consumer-metrics"]
    assert [fetches[f"fetch-{name}"] for name in ("latency-avg", "latency-max", "total")] == [12.0, 20.0, 3.0]
    assert {name: connections[f"{name}-total"] for name in ("connection-creation", "connection-close", "request")} == {
        "connection-creation": 3.0,
        "connection-close": 2.0,
        "request": 14.0,
    }
    assert (connections["connection-count"], connections["failed-authentication-total"]) == (1.0, 1.0)
    assert (connections["request-size-avg"], connections["request-size-max"]) == (1_200 / 14, 400.0)
    assert connections["response-rate"] == 14.0, "in a second"
