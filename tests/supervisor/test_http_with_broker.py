"""The endpoints of a real application on a real broker."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from broker_stage import KEYS, PARTITIONS, Counting, produce, shared_by
from confluent_kafka import Producer
from http_client import HttpClient

from penstock import KafkaStreams, Materialized, Serdes, SessionWindows, StreamsBuilder, TimeWindows
from penstock.supervisor.exit_codes import ExitCode
from penstock.topology.context.partitioners import partition_for_key
from tests.waiting import PATIENCE_SECONDS, eventually
from tests.walls import shown_metrics

pytestmark = pytest.mark.broker
TOKEN = "let me in"


class Keyed(Counting):
    """Writes each key to the partition of Kafka's partitioner; Counting uses librdkafka's."""

    def produce(self, rounds: int) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "partitioner": "murmur2_random"})
        for key in [f"key-{number}" for _ in range(rounds) for number in range(KEYS)]:
            producer.produce(self.source, key=key, value="x")
            self.expected[key] += 1
        assert producer.flush(PATIENCE_SECONDS) == 0


@pytest.fixture
def counting(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> Counting:
    made = Keyed(
        bootstrap_servers, application_id, make_topic("in", PARTITIONS), make_topic("out", PARTITIONS), tmp_path / "one"
    )
    made.config |= {"penstock.http.port": 0, "penstock.http.token": TOKEN}
    return made


@pytest.fixture
def running(counting: Counting) -> Iterator[tuple[KafkaStreams, HttpClient]]:
    """Two stream threads that have counted three records of each key."""
    counting.produce(3)
    with counting.streams(2) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2), "two threads share the tasks")
        counting.wait_for_all_counts()
        yield streams, HttpClient.of(streams, TOKEN)


def what_is_shown_of_an_application(http: HttpClient, counting: Counting) -> None:
    eventually(lambda: http.ask("/health/ready").status == 200, "it is ready")
    assert http.get("/health/live") == {"live": True, "reason": ""}
    tasks = http.get("/tasks")
    assert [task["task_id"] for task in tasks] == [f"0_{number}" for number in range(PARTITIONS)]
    assert {task["state"] for task in tasks} == {"RUNNING"}
    assert len({task["thread"] for task in tasks}) == 2
    topology = http.get("/topology")
    assert [node["type"] for node in topology["subtopologies"][0]["nodes"]] == ["source", *["processor"] * 2, "sink"]
    assert http.ask("/topology?format=text").body == topology["text"]
    assert "Topologies:" in topology["text"]
    (store,) = http.get("/stores")
    assert (store["name"], store["kind"], len(store["tasks"])) == ("counts", "timestamped_key_value", PARTITIONS)
    assert {row["topic"] for row in http.get("/lag")} == {counting.source}


def test_status_queries_and_actions(running: tuple[KafkaStreams, HttpClient], counting: Counting) -> None:
    """One application for everything, because it takes long to start."""
    streams, http = running
    what_is_shown_of_an_application(http, counting)
    metrics_in_the_format_of_prometheus(http)
    a_key_is_found_wherever_its_task_is(http)
    ranges_come_in_the_order_of_their_keys(http)
    a_storm_of_questions_while_a_process_is_killed(streams, http)
    pause_resume_and_restart(streams, http, counting)
    a_key_that_another_partitioner_has_placed(http, counting)


def test_a_read_and_a_shutdown_do_not_wait_for_the_end_of_a_poll(counting: Counting) -> None:
    """A poll without records takes longer here than a request and a shutdown may wait."""
    counting.config |= {"poll.ms": 100_000, "penstock.worker.spare": False}
    counting.produce(1)
    with counting.streams(1) as streams:
        streams.start()
        counting.wait_for_all_counts()
        eventually(lambda: HttpClient.of(streams, TOKEN).ask("/health/ready").status == 200, "it is ready")
        http = HttpClient.of(streams, TOKEN)
        for number in range(20):
            assert http.get(f"/stores/counts/key-{number}")["rows"]
    assert streams.exit_code is ExitCode.OK


def metrics_in_the_format_of_prometheus(http: HttpClient) -> None:
    answer = http.ask("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    line = re.compile(r'[a-z][a-z0-9_]*\{([a-z_]+="[^"]*",?)*\} -?[\d.e+-]+')
    samples = [text for text in answer.body.splitlines() if not text.startswith("#")]
    assert [text for text in samples if not line.fullmatch(text)] == []
    values = {text.rpartition(" ")[0]: float(text.rpartition(" ")[2]) for text in samples}

    def total(name: str) -> float:
        return sum(value for key, value in values.items() if key.startswith(f"{name}{{"))

    assert total("kafka_stream_thread_process_total") == 3 * KEYS
    # The counters of a task move with it, to the stream thread that joins last.
    assert 0 < total("kafka_stream_task_process_total") <= 3 * KEYS
    assert total("kafka_stream_processor_node_process_total") == total("kafka_stream_task_process_total")
    assert (
        total("kafka_stream_state_estimate_num_keys") >= KEYS
    )  # an estimate: a key that was written twice may count twice
    assert total("kafka_stream_alive_stream_threads") == 2
    # Dead letter metrics appear with the first letter, those of checkpoints with a URI: tests/workers/test_walls.py.
    shown = {name for name in shown_metrics() if not name.startswith(("penstock_dead_letter_", "penstock_checkpoint_"))}
    assert shown - {key.partition("{")[0] for key in values} == set()
    # The memory of a process is measured every two seconds, for the first time just after it has started.
    eventually(lambda: min(memory(http)) > 10_000_000, lambda: memory(http))


def memory(http: HttpClient) -> list[float]:
    """Return the memory of the three processes, including the supervisor, in bytes."""
    lines = [text for text in http.ask("/metrics").body.splitlines() if text.startswith("penstock_process_rss_bytes")]
    assert len(lines) == 3
    return [float(text.rpartition(" ")[2]) for text in lines]


def a_key_is_found_wherever_its_task_is(http: HttpClient) -> None:
    answers = [http.get(f"/stores/counts/key-{number}") for number in range(KEYS)]
    assert [answer["rows"][0]["value"] for answer in answers] == [3] * KEYS
    assert len({answer["tasks"][0] for answer in answers}) == PARTITIONS  # each key from its own task
    assert answers[0]["rows"][0]["key"] == "key-0"
    assert answers[0]["rows"][0]["timestamp"] > 0
    assert http.ask("/stores/counts/nobody").error["code"] == "NO_SUCH_KEY"
    assert http.ask("/stores/none/key").error["code"] == "UNKNOWN_STORE"
    for query in (f"partition={PARTITIONS}", "partition=2147483647", "time_from=1", "time_to=1"):
        for path in ("/stores/counts", "/stores/counts/key-0", "/stores/counts/nobody"):
            answer = http.ask(f"{path}?{query}")
            assert (answer.status, answer.error["code"]) == (400, "BAD_REQUEST"), (path, query)


def a_key_that_another_partitioner_has_placed(http: HttpClient, counting: Counting) -> None:
    elsewhere = (partition_for_key(b"k1", PARTITIONS) + 1) % PARTITIONS
    produce(counting.bootstrap_servers, counting.source, "x", "x", partition=elsewhere)  # k0 and k1
    eventually(lambda: http.ask("/stores/counts/k1").status == 200, "it is found wherever it is")
    assert http.get(f"/stores/counts/k1?partition={elsewhere}")["rows"][0]["value"] == 1
    assert http.ask(f"/stores/counts/k1?partition={(elsewhere + 1) % PARTITIONS}").status == 404


def ranges_come_in_the_order_of_their_keys(http: HttpClient) -> None:

    def keys(query: str) -> list[str]:
        return [row["key"] for row in http.get(f"/stores/counts?{query}")["rows"]]

    expected = sorted(f"key-{number}" for number in range(KEYS))
    assert keys("limit=1000") == expected
    assert keys("limit=1000&reverse=true") == expected[::-1]
    assert keys("from=key-1&to=key-12") == [key for key in expected if "key-1" <= key <= "key-12"]
    assert keys("prefix=key-3") == [key for key in expected if key.startswith("key-3")]
    first = http.get("/stores/counts?limit=5")
    assert [row["key"] for row in first["rows"]] == expected[:5]
    assert (first["truncated"], first["complete"], len(first["tasks"])) == (True, True, PARTITIONS)


def pause_resume_and_restart(streams: KafkaStreams, http: HttpClient, counting: Counting) -> None:
    assert http.post("/pause").json == {"paused": True}
    assert http.get("/status")["paused"]
    assert http.post("/resume").json == {"paused": False}
    before = streams.status()[0].pid
    restarted = http.post("/threads/1/restart")
    assert restarted.status == 200, restarted
    eventually(lambda: shared_by(streams, 2) and streams.status()[0].pid != before, "another process has the tasks")
    counting.produce(1)
    counting.wait_for_all_counts()
    assert http.post("/threads/9/restart").error["code"] == "REFUSED"


def a_storm_of_questions_while_a_process_is_killed(streams: KafkaStreams, http: HttpClient) -> None:
    """Every response is correct, or says to retry."""
    kinds: set[str] = set()

    def ask(number: int, timeout_ms: int = 2_000) -> None:
        answer = http.ask(f"/stores/counts/key-{number % KEYS}?timeout_ms={timeout_ms}")
        if answer.status == 200:
            kinds.add("right")
            assert answer.json["rows"][0]["value"] == 3
        else:
            assert answer.status == 503, answer
            assert answer.error["retry_after_seconds"] >= 1
            assert answer.headers["retry-after"]
            kinds.add(answer.error["code"])

    with ThreadPoolExecutor(8) as askers:
        list(askers.map(ask, range(100)))
        os.kill(streams.status()[0].pid, signal.SIGKILL)
        list(askers.map(ask, range(300)))
        eventually(lambda: shared_by(streams, 2), "the tasks are back")
        kinds.clear()
        list(askers.map(partial(ask, timeout_ms=30_000), range(KEYS)))
    assert kinds == {"right"}


@pytest.fixture
def lookup(make_topic: Callable[..., str]) -> str:
    """The topic of a global table."""
    return make_topic("lookup")


@pytest.fixture
def windows(counting: Counting, lookup: str) -> Any:
    """Counts by windows and by sessions; keys that are numbers, and unusual texts; a table and a global one."""
    builder = StreamsBuilder()
    text, number = Serdes.string(), Serdes.int64()
    stream = builder.stream(counting.source, key_serde=text, value_serde=text)
    stream.group_by_key().windowed_by(TimeWindows(1000)).count(store="windows")
    stream.group_by_key().windowed_by(SessionWindows(500)).count(store="sessions")
    for declare, store in ((builder.table, "numbers"), (builder.global_table, "everywhere")):
        kept = Materialized(store, key_serde=number, value_serde=Serdes.json())
        topic = counting.sink if store == "numbers" else lookup
        declare(topic, key_serde=number, value_serde=Serdes.json(), store=kept)
    return builder.build()


def test_windows_sessions_and_other_keys(counting: Counting, lookup: str, windows: Any) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": counting.bootstrap_servers, "partitioner": "murmur2_random"})
    odd = "a/b\nü"
    for time_ms in (5_000, 5_300, 7_900):
        producer.produce(counting.source, "x", odd, timestamp=time_ms)
    for topic in (counting.sink, lookup):
        producer.produce(topic, '{"n": [1, null]}', (7).to_bytes(8, "big"), timestamp=1)
    assert producer.flush(PATIENCE_SECONDS) == 0
    with KafkaStreams(windows, counting.config) as streams:
        streams.start()
        http = HttpClient.of(streams, TOKEN)
        key = quote(odd, safe="")
        eventually(lambda: len(http.ask(f"/stores/sessions/{key}").json.get("rows", ())) == 2, "all is counted")
        found = http.get(f"/stores/windows/{key}")["rows"]
        assert [(row["window"]["start"], row["window"]["end"], row["value"]) for row in found] == [
            (5_000, 6_000, 2),
            (7_000, 8_000, 1),
        ]
        assert [row["value"] for row in http.get(f"/stores/windows/{key}?time_from=6000")["rows"]] == [1]
        assert len(http.get("/stores/windows?time_to=6000")["rows"]) == 1
        sessions = http.get("/stores/sessions?reverse=true")["rows"]
        assert [(row["window"]["start"], row["window"]["end"]) for row in sessions] == [(7_900, 7_900), (5_000, 5_300)]
        for store in ("numbers", "everywhere"):
            eventually(lambda store=store: http.ask(f"/stores/{store}/7").status == 200, "the table is read")  # type: ignore[misc]
            assert http.get(f"/stores/{store}/7")["rows"][0]["value"] == {"n": [1, None]}
            assert len(http.get(f"/stores/{store}?limit=2")["rows"]) == 1
        wrong = http.ask("/stores/numbers/seven")
        assert (wrong.status, wrong.error["code"]) == (400, "BAD_REQUEST")
        assert "expected a whole number" in wrong.error["message"]
        assert "for key-value stores" in http.ask("/stores/windows?prefix=a").error["message"]
