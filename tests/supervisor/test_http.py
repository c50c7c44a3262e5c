"""Permissions and limits of HTTP requests; without a broker."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import worker_targets
from http_client import HttpClient
from stage import Conductor, until

from penstock.supervisor.application_state import ApplicationState as State
from penstock.supervisor.http.prometheus import exposition, metric_name
from penstock.supervisor.http.security import is_loopback
from penstock.supervisor.http.server import NICENESS, THREAD
from penstock.supervisor.kafka_streams import KafkaStreams
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.errors import ConfigError
from penstock.workers.metrics.sensors import Metric

TOKEN = "geheim"


@pytest.fixture
def config(tmp_path: Path, conductor: Conductor) -> dict[str, Any]:
    return {
        "application.id": "app",
        "client.id": "me",
        "bootstrap.servers": "unused:9092",
        "state.dir": str(tmp_path / "state"),
        "penstock.worker.beat.interval.ms": 20,
        "penstock.http.port": 0,
        worker_targets.CONDUCTOR: str(conductor.path),
    }


def make(config: dict[str, Any]) -> KafkaStreams:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    return KafkaStreams(builder.build(), config, worker_target=worker_targets.puppet)


@pytest.fixture
def free(config: dict[str, Any], conductor: Conductor) -> Iterator[HttpClient]:
    """An application without a token, at a loopback address."""
    with make(config) as streams:
        streams.start()
        conductor.running(1)
        until(lambda: streams.state is State.RUNNING)
        yield HttpClient.of(streams)


@pytest.fixture
def guarded(config: dict[str, Any], conductor: Conductor) -> Iterator[HttpClient]:
    """An application with a token."""
    with make(config | {"penstock.http.token": TOKEN}) as streams:
        streams.start()
        conductor.running(1)
        until(lambda: streams.state is State.RUNNING)
        yield HttpClient.of(streams)


def test_an_address_reachable_by_others_needs_a_token(config: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"penstock\.http\.host=0\.0\.0\.0 can be reached .*set penstock\.http\.token"
    ):
        make(config | {"penstock.http.host": "0.0.0.0"})
    make(config | {"penstock.http.host": "0.0.0.0", "penstock.http.token": TOKEN})


@pytest.mark.parametrize(
    ("host", "own"), [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
                      ("192.168.1.2", False), ("::", False), ("example.org", False)]
)  # fmt: skip
def test_which_addresses_are_local(host: str, own: bool) -> None:
    assert is_loopback(host) is own


def test_a_port_in_use_is_a_configuration_error(config: dict[str, Any]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        streams = make(config | {"penstock.http.port": port})
        with pytest.raises(
            ConfigError, match=rf"HTTP cannot be served at 127\.0\.0\.1:{port}: .*Set penstock\.http\.port"
        ):
            streams.start()
    with make(config | {"penstock.http.port": None}) as again:  # no lock is left behind
        again.start()
        assert again.http_port is None


def test_without_a_token_reading_is_allowed_and_writing_is_not(free: HttpClient) -> None:
    assert free.get("/status")["state"] == "RUNNING"
    for path in ("/pause", "/resume", "/threads/1/restart"):
        answer = free.post(path)
        assert (answer.status, answer.error["code"]) == (403, "TOKEN_NEEDED")
    assert free.get("/status")["paused"] is False


def test_a_request_with_a_foreign_host_name_is_refused(free: HttpClient) -> None:
    answer = free.ask("/status", Host="evil.example:80")
    assert (answer.status, answer.error["code"]) == (421, "WRONG_HOST")
    assert free.ask("/status", Host=f"localhost:{free.port}").status == 200


def test_with_a_token_every_request_needs_it(guarded: HttpClient) -> None:
    for path in ("/status", "/metrics", "/stores", "/stores/a/b", "/tasks", "/dashboard.json", "/nothing"):
        answer = guarded.ask(path)
        assert (answer.status, answer.error["code"]) == (401, "UNAUTHORIZED"), path
        assert answer.headers["www-authenticate"] == "Bearer"
    wrong = HttpClient(guarded.port, TOKEN + "x")
    assert wrong.ask("/status").status == wrong.post("/pause").status == 401
    for path in ("/health/live", "/health/ready", "/"):
        assert guarded.ask(path).status != 401, path
    right = HttpClient(guarded.port, TOKEN)
    assert right.post("/pause").json == {"paused": True}
    assert right.get("/status")["paused"]
    assert TOKEN not in right.ask("/status").body


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
def test_requests_have_a_lower_priority_than_processing(free: HttpClient) -> None:
    assert free.get("/status")["state"] == "RUNNING"
    (serving,) = [thread for thread in threading.enumerate() if thread.name == THREAD]
    assert serving.native_id is not None
    priorities = [os.getpriority(os.PRIO_PROCESS, thread) for thread in (serving.native_id, 0)]
    assert priorities[0] == min(priorities[1] + NICENESS, 19)


def test_what_other_hosts_may_ask_needs_the_token_and_valid_arguments(guarded: HttpClient) -> None:
    right = HttpClient(guarded.port, TOKEN)
    assert guarded.post("/host/hold", b"{}").error["code"] == "UNAUTHORIZED"
    assert right.ask("/host/hold").error["code"] == "METHOD_NOT_ALLOWED"
    assert right.post("/host/metrics", b"{}").error["code"] == "NOT_FOUND"
    for body in (b"", b"[]", b"{"):
        refused = right.post("/host/hold", body)
        assert (refused.status, refused.error["code"]) == (400, "BAD_REQUEST"), body
    for body in (b"{}", b'{"hold":1,"seconds":"2"}', b'{"hold":true,"seconds":2}', b'{"hold":1,"seconds":2,"more":3}'):
        refused = right.post("/host/hold", body)
        assert (refused.status, refused.error["code"]) == (409, "REFUSED"), body


def test_requests_have_limits(free: HttpClient) -> None:
    assert free.ask(f"/stores/{'x' * 9000}").error["code"] == "URL_TOO_LONG"
    assert free.ask("/status", Content_Length="100000").error["code"] == "BODY_TOO_LARGE"
    for query in (
        "limit=0",
        "limit=10001",
        "limit=x",
        "timeout_ms=99999",
        "reverse=perhaps",
        "what=1",
        "limit=1&limit=2",
        "limit=-1",
        "limit=%D9%A3",  # a digit, but an Arabic one
        "limit=" + "9" * 5_000,
        "partition=2147483648",
        "max_lag=-1",
        "time_to=9223372036854775808",
        "time_from=2&time_to=1",
        "prefix=a&from=b",
        "everywhere=true",
    ):
        answer = free.ask(f"/stores/counts?{query}")
        assert (answer.status, answer.error["code"]) == (400, "BAD_REQUEST"), query
    for path in ("/stores/counts/%FF", "/stores/%C3/key"):
        answer = free.ask(path)
        assert (answer.status, answer.error["code"]) == (400, "BAD_REQUEST"), path
    for key in ("x" * 8_000, "9" * 8_000, "%00", "..%2F..%2Fetc%2Fpasswd"):  # as long, or as unusual, as allowed
        answer = free.ask(f"/stores/counts/{key}?timeout_ms=50")
        assert (answer.status, answer.error["code"]) == (503, "TIMEOUT"), key  # puppets know nothing of stores
    assert free.ask("/none").error["code"] == "NOT_FOUND"
    assert free.ask("/pause").error["code"] == "METHOD_NOT_ALLOWED"


def test_pages_may_load_nothing_from_other_origins(free: HttpClient) -> None:
    answer = free.ask("/")
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    for page in (answer, free.ask("/dashboard.js"), free.ask("/dashboard.css")):
        assert page.status == 200
        assert "http://" not in page.body.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in page.body


def test_silent_threads_give_a_retriable_error(free: HttpClient) -> None:
    answer = free.ask("/stores/counts/key?timeout_ms=50")  # puppets know nothing of stores
    assert (answer.status, answer.error["code"]) == (503, "TIMEOUT")
    assert answer.headers["retry-after"] == "1"


def test_an_ending_application_is_not_ready(config: dict[str, Any], conductor: Conductor) -> None:
    streams = make(config)
    streams.start()
    (one,) = conductor.running(1)
    http = HttpClient.of(streams)
    until(lambda: http.ask("/health/live").status == 200)
    one.order("be deaf")
    assert one.hear() == {"deaf": True}
    streams._supervisor.shut_down()
    until(lambda: streams.state is State.PENDING_SHUTDOWN)
    assert http.ask("/health/ready").json == {"ready": False, "reason": "the application is PENDING_SHUTDOWN"}
    one.order("return")
    assert streams.close()
    assert streams.http_port is None


def test_an_application_without_a_stream_thread_is_not_ready(config: dict[str, Any], conductor: Conductor) -> None:
    """Its state stays RUNNING, as in Kafka Streams, but nothing processes its records."""
    with make(config) as streams:
        streams.start()
        conductor.running(1)
        until(lambda: streams.state is State.RUNNING)
        http = HttpClient.of(streams)
        assert streams.remove_stream_thread() == "me-StreamThread-1"
        assert streams.state is State.RUNNING
        assert http.ask("/health/ready").json == {"ready": False, "reason": "no stream thread runs"}
        assert http.ask("/health/live").status == 200


def test_a_paused_application_says_why_nothing_is_restored(config: dict[str, Any], conductor: Conductor) -> None:
    waiting = "1 tasks are not restored (0_1 …): 1 records remain"  # according to the puppet
    with make(config) as streams:
        streams.start()
        conductor.running(1)
        http = HttpClient.of(streams)
        until(lambda: http.ask("/health/ready").json == {"ready": False, "reason": waiting})
        streams.pause()
        paused = f"{waiting}. It is paused, and restores no task before `penstock resume`"
        assert http.ask("/health/ready").json["reason"] == paused


def test_the_labels_of_a_generated_client_id_stay_the_same() -> None:
    client = f"app-{uuid4()}"
    tags = {"client-id": f"{client}-StreamThread-1-consumer", "topic": "app-topic"}
    found = [Metric("records-lag", "consumer-fetch-manager-metrics", tags, 3.0)]
    assert '{client_id="app-StreamThread-1-consumer",topic="app-topic"}' in exposition(found, client)
    for own in ("app-spark", "me"):
        named = [Metric("records-lag", "consumer-fetch-manager-metrics", {"client-id": f"{own}-consumer"}, 3.0)]
        assert f'client_id="{own}-consumer"' in exposition(named, own)


def test_metric_names_follow_prometheus() -> None:
    assert metric_name("stream-task-metrics", "process-rate") == "kafka_stream_task_process_rate"
    found = [
        Metric("state", "stream-metrics", {"client-id": 'a"b\\c\n'}, "RUNNING"),
        Metric("process-total", "stream-task-metrics", {"task-id": "0_1"}, 3.0),
        Metric("process-total", "stream-task-metrics", {"task-id": "0_2"}, 4.0),
    ]
    assert exposition(found) == (
        "# HELP kafka_stream_state state of stream-metrics\n"
        "# TYPE kafka_stream_state gauge\n"
        'kafka_stream_state{client_id="a\\"b\\\\c\\n",value="RUNNING"} 1.0\n'
        "# HELP kafka_stream_task_process_total process-total of stream-task-metrics\n"
        "# TYPE kafka_stream_task_process_total counter\n"
        'kafka_stream_task_process_total{task_id="0_1"} 3.0\n'
        'kafka_stream_task_process_total{task_id="0_2"} 4.0\n'
    )
