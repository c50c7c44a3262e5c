"""A client asks for its subscription, and pushes metrics (KIP-714). Its broker's answers are chosen by the tests."""

from __future__ import annotations

import gzip
import logging
import random
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from penstock.clients.errors import BrokerError, ErrorCode, UnreachableError
from penstock.clients.protocol.schema import Request
from penstock.clients.protocol.telemetry_messages import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from penstock.clients.telemetry.client_telemetry import (
    DEFAULT_PUSH_INTERVAL_MS,
    INITIAL_PUSH_JITTER,
    UNREACHABLE_MS,
    ClientTelemetry,
)
from penstock.clients.telemetry.client_telemetry_state import ClientTelemetryState
from penstock.clients.telemetry.telemetry_collector import (
    TelemetryCollector,
    TelemetryPoint,
    is_subscribed,
    telemetry_attributes,
    telemetry_name,
)
from tests.manual_clock import ManualClock

S = ClientTelemetryState
ID = UUID("0123456789abcdef0123456789abcdef")
INTERVAL_MS = 10_000
NAME = "org.apache.kafka.stream.thread.process.total"


class ChosenAnswers:
    """The brokers of a client, whose requests a test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[Request, Future[SimpleNamespace]]] = []

    def ask_any(self, request: Request) -> Future[SimpleNamespace]:
        self.asked.append((request, Future()))
        return self.asked[-1][1]

    def request(self, api: Any) -> dict[str, Any]:
        """Return the fields of the only request without an answer, which is of this kind."""
        (request,) = [request for request, answer in self.asked if not answer.done()]
        assert request.api is api
        request.encode(0, 1, "client")
        return dict(request.body)

    def answer(self, **fields: Any) -> None:
        self.asked[-1][1].set_result(SimpleNamespace(error_code=0, **fields))

    def refuse(self, code: ErrorCode) -> None:
        self.asked[-1][1].set_result(SimpleNamespace(error_code=int(code)))

    def fail(self, error: Exception) -> None:
        self.asked[-1][1].set_exception(error)


@dataclass
class Stage:
    brokers: ChosenAnswers = field(default_factory=ChosenAnswers)
    clock: ManualClock = field(default_factory=ManualClock)
    values: dict[str, float] = field(default_factory=lambda: {NAME: 5.0})

    def __post_init__(self) -> None:
        self.telemetry = ClientTelemetry("c", self.brokers, {"group_id": "g"}, self.clock, random.Random(1))

    def measure(self) -> Iterable[TelemetryPoint]:
        return [TelemetryPoint(name, {"thread_id": "t"}, value, True) for name, value in self.values.items()]

    def advance(self, ms: int = 0) -> None:
        self.clock.advance(ms)
        self.telemetry.advance(self.measure)

    def subscribe(self, metrics: Iterable[str] = ("org.apache.kafka.",), **fields: Any) -> None:
        """Send the request that is due, and answer it."""
        self.advance()
        self.brokers.request(GET_TELEMETRY_SUBSCRIPTIONS)
        self.brokers.answer(
            **{
                "client_instance_id": ID.bytes,
                "subscription_id": 7,
                "accepted_compression_types": [4, 3, 1, 2],
                "push_interval_ms": INTERVAL_MS,
                "telemetry_max_bytes": 1_000_000,
                "delta_temporality": False,
                "requested_metrics": list(metrics),
            }
            | fields
        )
        self.advance()

    def pushed(self, answered: bool = True) -> float:
        """Push once it is due, and return the value of the metric."""
        self.advance(2 * INTERVAL_MS)
        (metric,) = metrics_of(self.brokers.request(PUSH_TELEMETRY))
        if answered:
            self.brokers.answer()
            self.advance()
        return float(metric.sum.data_points[0].as_double)


def metrics_of(push: dict[str, Any]) -> list[Any]:
    """Return the metrics of a push whose codec is gzip or none."""
    data = push["metrics"]
    message = MetricsData.FromString(gzip.decompress(data) if push["compression_type"] == 1 else data)
    (of_client,) = message.resource_metrics
    (scope,) = of_client.scope_metrics
    return list(scope.metrics)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_the_first_request_has_no_id_and_later_ones_have_the_broker_s(stage: Stage) -> None:
    stage.advance()
    assert stage.brokers.request(GET_TELEMETRY_SUBSCRIPTIONS) == {"client_instance_id": bytes(16)}
    assert stage.telemetry.state is S.SUBSCRIPTION_IN_PROGRESS
    assert stage.telemetry.client_instance_id is None
    stage.brokers.fail(UnreachableError("gone"))
    stage.advance()
    stage.advance(UNREACHABLE_MS)
    stage.subscribe([])
    assert stage.telemetry.client_instance_id == ID
    stage.advance(INTERVAL_MS)
    assert stage.brokers.request(GET_TELEMETRY_SUBSCRIPTIONS) == {"client_instance_id": ID.bytes}


def test_without_subscribed_metrics_it_asks_again_after_the_interval(stage: Stage) -> None:
    stage.subscribe([])
    assert stage.telemetry.state is S.SUBSCRIPTION_NEEDED
    stage.advance(INTERVAL_MS - 1)
    assert stage.telemetry.response is None
    stage.clock.advance(1)
    stage.subscribe([], client_instance_id=bytes(16))
    assert stage.telemetry.client_instance_id == ID


def test_the_first_push_is_spread_and_the_next_ones_keep_the_interval(stage: Stage) -> None:
    stage.subscribe(accepted_compression_types=[1, 4])
    assert stage.telemetry.state is S.PUSH_NEEDED
    first = stage.telemetry.due_in_seconds()
    assert first is not None
    low, high = INITIAL_PUSH_JITTER
    assert low * INTERVAL_MS <= first * 1000 <= high * INTERVAL_MS
    assert first * 1000 != INTERVAL_MS
    assert stage.pushed() == 5
    assert stage.telemetry.due_in_seconds() == INTERVAL_MS / 1000


def test_a_push_names_the_subscription_and_describes_the_client(stage: Stage) -> None:
    stage.subscribe(accepted_compression_types=[])
    stage.values["org.apache.kafka.other"] = 1.0
    stage.advance(2 * INTERVAL_MS)
    push = stage.brokers.request(PUSH_TELEMETRY)
    assert {key: value for key, value in push.items() if key != "metrics"} == {
        "client_instance_id": ID.bytes,
        "subscription_id": 7,
        "terminating": False,
        "compression_type": 0,
    }
    message = MetricsData.FromString(push["metrics"])
    (label,) = message.resource_metrics[0].resource.attributes
    assert (label.key, label.value.string_value) == ("group_id", "g")
    metric, _ = metrics_of(push)
    (point,) = metric.sum.data_points
    assert [(each.key, each.value.string_value) for each in point.attributes] == [("thread_id", "t")]
    assert point.time_unix_nano == stage.clock.wall_clock_ms() * 1_000_000


@pytest.mark.parametrize(
    ("accepted", "used"), [([4, 3], 4), ([3], 3), ([2, 1], 2), ([1], 1), ([], 0), ([99, 1], 1), ([99], 0)]
)
def test_the_first_known_codec_is_used(stage: Stage, accepted: list[int], used: int) -> None:
    stage.subscribe(accepted_compression_types=accepted)
    stage.advance(2 * INTERVAL_MS)
    assert stage.brokers.request(PUSH_TELEMETRY)["compression_type"] == used


def test_only_subscribed_metrics_are_pushed(stage: Stage) -> None:
    stage.values = {"org.apache.kafka.a.b": 1, "org.apache.kafka.ab": 2, "penstock.a": 3}
    stage.subscribe(["org.apache.kafka.a.", "penstock"], accepted_compression_types=[1])
    stage.advance(2 * INTERVAL_MS)
    pushed = metrics_of(stage.brokers.request(PUSH_TELEMETRY))
    assert [metric.name for metric in pushed] == ["org.apache.kafka.a.b", "penstock.a"]
    assert is_subscribed("anything", ["*"])
    assert is_subscribed("anything", [""])


def test_totals_and_differences(stage: Stage) -> None:
    stage.subscribe(accepted_compression_types=[])
    assert stage.pushed() == 5
    stage.values[NAME] = 12
    assert stage.pushed() == 12
    stage.advance(INTERVAL_MS)
    stage.brokers.refuse(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
    stage.advance()
    stage.subscribe(accepted_compression_types=[], delta_temporality=True)
    assert stage.pushed() == 12  # the first one has nothing before it
    stage.values[NAME] = 20
    assert stage.pushed() == 8
    stage.values[NAME] = 3  # the total of a task that has returned
    assert stage.pushed() == 3


def test_a_difference_is_not_lost_with_a_push(stage: Stage) -> None:
    stage.subscribe(accepted_compression_types=[], delta_temporality=True)
    stage.pushed()
    stage.values[NAME] = 7
    assert stage.pushed(answered=False) == 2
    stage.brokers.fail(UnreachableError("gone"))
    stage.advance()
    stage.advance(UNREACHABLE_MS)
    stage.subscribe(accepted_compression_types=[], delta_temporality=True)
    assert stage.pushed() == 2


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE])
def test_a_changed_subscription_is_asked_for_at_once(stage: Stage, code: ErrorCode) -> None:
    stage.subscribe()
    stage.advance(2 * INTERVAL_MS)
    stage.brokers.refuse(code)
    stage.advance()
    stage.advance()
    stage.brokers.request(GET_TELEMETRY_SUBSCRIPTIONS)


@pytest.mark.parametrize(
    ("code", "is_told"), [(ErrorCode.TELEMETRY_TOO_LARGE, True), (ErrorCode.THROTTLING_QUOTA_EXCEEDED, False)]
)
def test_a_refused_push_waits_for_the_interval(
    stage: Stage, code: ErrorCode, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stage.subscribe()
    stage.advance(2 * INTERVAL_MS)
    stage.brokers.refuse(code)
    stage.advance()
    assert stage.telemetry.due_in_seconds() == INTERVAL_MS / 1000
    stage.advance(INTERVAL_MS)
    stage.brokers.request(GET_TELEMETRY_SUBSCRIPTIONS)
    assert any(record.levelno == logging.WARNING for record in caplog.records) is is_told


@pytest.mark.parametrize(
    "code",
    [
        *(ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD, ErrorCode.UNSUPPORTED_VERSION),
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ],
)
def test_an_error_that_remains_ends_the_pushes(stage: Stage, code: ErrorCode, caplog: pytest.LogCaptureFixture) -> None:
    stage.subscribe()
    stage.advance(2 * INTERVAL_MS)
    stage.brokers.refuse(code)
    stage.advance()
    assert not stage.telemetry.enabled
    assert stage.telemetry.due_in_seconds() is None
    asked = len(stage.brokers.asked)
    stage.advance(DEFAULT_PUSH_INTERVAL_MS)
    assert len(stage.brokers.asked) == asked
    assert code.name in caplog.text


def test_a_broker_without_a_plugin_is_asked_again_much_later(stage: Stage) -> None:
    stage.advance()
    stage.brokers.fail(BrokerError(ErrorCode.UNSUPPORTED_VERSION))
    stage.advance()
    stage.advance(DEFAULT_PUSH_INTERVAL_MS - 1)
    assert stage.telemetry.response is None
    stage.advance(1)
    stage.brokers.request(GET_TELEMETRY_SUBSCRIPTIONS)


def test_more_than_the_broker_takes_is_not_sent(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.subscribe(telemetry_max_bytes=10)
    for _ in range(3):
        stage.advance(2 * INTERVAL_MS)
        assert stage.telemetry.state is S.PUSH_NEEDED
    assert len(stage.brokers.asked) == 1
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "the broker takes 10 (telemetry.max.bytes)" in warning.getMessage()


def test_an_interval_that_is_not_valid_is_replaced(stage: Stage) -> None:
    stage.subscribe([], push_interval_ms=0)
    assert stage.telemetry.due_in_seconds() == DEFAULT_PUSH_INTERVAL_MS / 1000


def closed(stage: Stage) -> list[dict[str, Any]]:
    """Close the telemetry; return the pushes that follow."""
    asked = len(stage.brokers.asked)
    stage.telemetry.begin_close(stage.measure)
    stage.telemetry.finish_close(0)
    assert stage.telemetry.state is S.TERMINATED
    return [dict(request.body) for request, _ in stage.brokers.asked[asked:]]


@pytest.fixture(params=["pushed before", "a push is in progress", "subscribed"])
def subscribed(stage: Stage, request: pytest.FixtureRequest) -> Stage:
    stage.subscribe(accepted_compression_types=[])
    if request.param != "subscribed":
        stage.pushed(answered=request.param == "pushed before")
    return stage


def test_the_last_push_is_terminating(subscribed: Stage) -> None:
    subscribed.values[NAME] = 9
    (last,) = closed(subscribed)
    assert last["terminating"] is True
    (metric,) = metrics_of(last)
    assert metric.sum.data_points[0].as_double == 9
    subscribed.telemetry.finish_close(0)  # a second call does nothing
    subscribed.telemetry.advance(subscribed.measure)


def test_the_last_push_does_not_count_again_what_is_on_its_way(stage: Stage) -> None:
    stage.subscribe(accepted_compression_types=[], delta_temporality=True)
    assert stage.pushed(answered=False) == 5
    stage.values[NAME] = 7
    (last,) = closed(stage)
    assert metrics_of(last)[0].sum.data_points[0].as_double == 2


def test_a_client_without_a_subscription_pushes_nothing_at_its_end(stage: Stage) -> None:
    stage.subscribe([])
    assert closed(stage) == []


def test_a_client_that_waits_for_its_first_subscription_pushes_nothing_at_its_end(stage: Stage) -> None:
    stage.advance()
    assert closed(stage) == []


def test_closed_connections_are_an_error_like_lost_ones(stage: Stage) -> None:
    stage.advance()
    assert stage.brokers.asked[-1][1].cancel()
    stage.advance()
    stage.advance(UNREACHABLE_MS)
    stage.subscribe()
    stage.telemetry.begin_close(stage.measure)
    assert stage.brokers.asked[-1][1].cancel()
    stage.telemetry.finish_close(60)
    assert stage.telemetry.state is S.TERMINATED


def test_the_end_waits_for_the_answer(stage: Stage) -> None:
    stage.subscribe()
    stage.telemetry.begin_close(stage.measure)
    stage.brokers.fail(UnreachableError("the broker is gone"))
    stage.telemetry.finish_close(60)
    assert stage.telemetry.state is S.TERMINATED


@pytest.mark.parametrize(
    ("group", "name", "expected"),
    [
        ("stream-thread-metrics", "process-rate", "org.apache.kafka.stream.thread.process.rate"),
        ("stream-metrics", "client-state", "org.apache.kafka.stream.client.state"),
        ("consumer-fetch-manager-metrics", "records-lag", "org.apache.kafka.consumer.fetch.manager.records.lag"),
        ("penstock-node-metrics", "time-ratio", "penstock.node.time.ratio"),
        ("Geo", "Length-Max", "org.apache.kafka.geo.length.max"),
    ],
)
def test_names(group: str, name: str, expected: str) -> None:
    assert telemetry_name(group, name) == expected


def test_attributes_leave_out_the_client_id_which_the_broker_knows() -> None:
    assert telemetry_attributes({"client-id": "c", "thread-id": "t", "topic": "In-1"}) == {
        "thread_id": "t",
        "topic": "In-1",
    }


def test_a_point_s_time_begins_where_it_was_not_there_yet() -> None:
    collector = TelemetryCollector(100)

    def starts(now_ns: int, *names: str) -> list[int]:
        points = [TelemetryPoint(name, {}, 1.0, True) for name in names]
        message = MetricsData.FromString(collector.payload(points, ["*"], {}, now_ns, False))
        metrics = message.resource_metrics[0].scope_metrics[0].metrics
        return [metric.sum.data_points[0].start_time_unix_nano for metric in metrics]

    assert starts(200, "a") == [100]
    assert starts(300, "a", "b") == [100, 200]
    assert starts(400, "b") == [200]
    assert starts(500, "a", "b") == [400, 200]


def test_numbers_keep_their_kind() -> None:
    points = [TelemetryPoint("a", {}, 1, False), TelemetryPoint("b", {}, 1.0, False)]
    message = MetricsData.FromString(TelemetryCollector(0).payload(points, ["*"], {}, 1, False))
    kinds = [m.gauge.data_points[0].WhichOneof("value") for m in message.resource_metrics[0].scope_metrics[0].metrics]
    assert kinds == ["as_int", "as_double"]
