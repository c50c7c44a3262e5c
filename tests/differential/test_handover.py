"""An application moves from the local engine to Spark and back; its tables equal those of a plain recomputation."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic

from examples.flights.progress import ProgressReader
from penstock import (
    KafkaStreams,
    Materialized,
    Serdes,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    StreamsError,
    TopologyError,
)
from penstock.pipeline import SparkStreams
from penstock.pipeline.checkpoint.checkpoint import CheckpointError
from penstock.pipeline.handover.backfill import Backfill
from penstock.pipeline.handover.handover import HandedOver, Handover
from penstock.pipeline.handover.spark_side import Moved
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.offline.application_reset import ApplicationReset
from penstock.supervisor.source.topology_gate import admit
from tests.differential import handover_app as app
from tests.read_to_end import read_to_end
from tests.topics import create_topics
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]  # a minute each on a quiet machine
TOPOLOGY = "tests.differential.handover_app:topology"
PARTITIONS = 2
#: An hour ago: topics and changelogs of windows delete records older than their retention.
START_MS = (time.time_ns() // 1_000_000 - 3_600_000) // 60_000 * 60_000
QUARTER = 150  # records, a second of event time apart
BURST = 40  # records of one key before the next key: a session
LARGE = "x" * 600  # Spark keeps large values apart
KEYS = 7


class Data:
    """The input, in quarters, and the results of plain Python for all of it."""

    def __init__(self, servers: str, mark: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random"})
        self._mark = mark
        self._names: dict[str, str] = {}
        self._partition: dict[str, int] = {}
        self._newest: Counter[int] = Counter()
        self.tables: dict[str, dict[str, Any]] = {name: {} for name in app.OUTPUTS}
        self._sessions: dict[str, tuple[int, int, int]] = {}
        self._count = 0

    def produce_quarter(self, names: dict[str, str | None]) -> None:
        """Produce names (None: the key is deleted), then words, and count them."""
        now = START_MS + 1000 * self._count
        for key, name in names.items():
            self._producer.produce(f"{self._mark}names", name, key, timestamp=now - 1)
            self._names.pop(key, None) if name is None else self._names.update({key: name})
        self._producer.flush()
        for number in range(self._count, self._count + QUARTER):
            key, word, at = f"k{number // BURST % KEYS}", f"w{number * number % 5}", START_MS + 1000 * number
            self._producer.produce(
                f"{self._mark}words", word, key, timestamp=at, on_delivery=lambda _, message: self._delivered(message)
            )
            self._expect(key, word, at)
        self._producer.flush()
        self._count += QUARTER

    def _delivered(self, message: Any) -> None:
        self._partition[message.key().decode()] = message.partition()
        self._newest[message.partition()] = max(self._newest[message.partition()], message.timestamp()[1])

    def _expect(self, key: str, word: str, at: int) -> None:
        counts, windows = self.tables["counts"], self.tables["windows"]
        counts[word] = counts.get(word, 0) + 1
        window = f"{key}@{at // 60_000 * 60_000}"
        windows[window] = windows.get(window, 0) + 1
        self.tables["named"][key] = f"{word} of {self._names.get(key)}"
        start, end, count = self._sessions.get(key, (at, at, 0))
        if at - end > 30_000:
            start, count = at, 0
        else:
            self.tables["sessions"].pop(f"{key}@{start}-{end}", None)
        self._sessions[key] = start, at, count + 1
        self.tables["sessions"][f"{key}@{start}-{at}"] = count + 1

    def expected(self) -> dict[str, dict[str, Any]]:
        """Return the expected tables for all produced records."""
        windows = self.tables["windows"]
        ends = {window: int(window.split("@")[1]) + 60_000 for window in windows}
        newest = {window: self._newest[self._partition[window.split("@")[0]]] for window in windows}
        closed = {window: count for window, count in windows.items() if ends[window] <= newest[window]}
        return {**self.tables, "finals": closed}


def read_table(servers: str, topic: str, text: bool) -> dict[str, Any]:
    """Return the newest value of each key of a topic."""
    table: dict[str, Any] = {}
    for message in read_to_end(servers, topic):
        value, key = message.value(), (message.key() or b"").decode()
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value.decode() if text else struct.unpack(">q", value)[0]
    return table


def run_locally(config: StreamsConfig, mark: str) -> None:
    """Run the local engine until all input is committed."""
    ended = threading.Event()
    inputs = [f"{mark}{name}" for name in app.INPUTS]
    with (
        KafkaStreams(TOPOLOGY, config) as streams,
        ProgressReader(config["bootstrap.servers"], config["application.id"], inputs) as reader,
    ):
        streams.set_state_listener(lambda new, _: ended.set() if new.has_completed_shutdown else None)
        streams.start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not reader.read().finished:
            assert not ended.wait(0.2), streams.failure_reason
            assert time.monotonic() < deadline, reader.read()
        streams.close(leave_group=True)  # otherwise a static member remains until its session times out


class Application:
    """One application of this test: its topics, configuration and checkpoint."""

    def __init__(self, spark: Any, servers: str, application_id: str, mark: str, directory: Path) -> None:
        self.spark = spark
        self.mark = mark
        self.checkpoint = str(directory / "checkpoint")
        self.state = directory / "state" / application_id
        self.config = StreamsConfig(
            {
                "application.id": application_id,
                "bootstrap.servers": servers,
                "state.dir": str(directory / "state"),
                "commit.interval.ms": 500,
                "num.stream.threads": 1,
            }
        )
        self.data = Data(servers, mark)

    def hand_over(self, engine: str, progress: Callable[..., None] = lambda *_: None) -> HandedOver:
        with Handover(TOPOLOGY, self.config, self.spark, checkpoint=self.checkpoint, progress=progress) as handover:
            return handover.to_spark() if engine == "spark" else handover.to_local()

    def hand_over_by_command(self, engine: str) -> Any:
        """Run the command in a separate process, whose Spark has run no query; return its output."""
        command = [sys.executable, "-m", "penstock.cli", "handover", TOPOLOGY, "--to", engine, "--json"]
        options = ["--master", "local[2]", "--checkpoint", self.checkpoint]
        given = ("application.id", "bootstrap.servers", "state.dir")
        own = [word for key in given for word in ("-c", f"{key}={self.config[key]}")]
        command += [*options, *own]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return orjson.loads(done.stdout)

    def run_on_spark(self, checkpoint: str | None = None) -> int:
        at = checkpoint or self.checkpoint
        return SparkStreams(TOPOLOGY, self.config, self.spark, checkpoint=at).process_available()

    def tables(self) -> dict[str, dict[str, Any]]:
        servers = self.config["bootstrap.servers"]
        return {name: read_table(servers, f"{self.mark}{name}", name == "named") for name in app.OUTPUTS}


@pytest.fixture
def application(
    spark: Any, admin: Any, bootstrap_servers: str, application_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Application:
    mark = f"{application_id}-test-"  # the fixture deletes what begins with the application.id
    create_topics(admin, *(NewTopic(f"{mark}{name}", PARTITIONS, 1) for name in (*app.INPUTS, *app.OUTPUTS)))
    monkeypatch.setenv(app.VARIABLE, mark)
    return Application(spark, bootstrap_servers, application_id, mark, tmp_path)


class BrokenOffError(Exception):
    """Ends a handover in the middle, as a SIGKILL would: no code catches it."""


def break_off(_what: str, done: int, _total: int) -> None:
    if done:
        raise BrokenOffError


def test_an_application_runs_locally_then_on_spark_then_locally_again(application: Application) -> None:
    data = application.data
    data.produce_quarter({f"k{number}": f"n{number}{LARGE if number % 2 else ''}" for number in range(KEYS)})
    data.produce_quarter({"k3": f"m3{LARGE}"})
    run_locally(application.config, application.mark)

    with pytest.raises(BrokenOffError):
        application.hand_over("spark", break_off)
    assert not (application.state / "handed-over.json").exists(), "the local engine still has the application"
    to_spark = application.hand_over("spark")
    assert to_spark.stores["counts"] == Moved(len(data.tables["counts"]))
    with pytest.raises(CheckpointError, match="has a state already"):
        application.hand_over("spark")
    with pytest.raises(TopologyError, match="was handed over to Spark"):
        admit(app.topology().build(), application.config)  # what each stream thread does before it joins the group
    assert run_on_another_host(application) == (ExitCode.TOPOLOGY, "was handed over to Spark, says the group")
    with pytest.raises(CheckpointError, match="with another checkpoint, according to the group"):
        application.run_on_spark(checkpoint=f"{application.checkpoint}-other")

    data.produce_quarter({"k5": None, "k2": f"m2{LARGE}", "k1": "m1"})
    assert application.run_on_spark() > QUARTER
    with pytest.raises(BrokenOffError):
        application.hand_over("local", break_off)
    assert application.run_on_spark() == 0, "Spark still has the application"
    to_local = application.hand_over_by_command("local")
    assert to_local["stores"]["names"]["keys"] == KEYS - 1
    assert "0_0" in to_local["deleted_tasks"]
    with pytest.raises(CheckpointError, match="was handed over to the local engine"):
        application.run_on_spark()
    with pytest.raises(CheckpointError, match="was handed over to the local engine already"):
        application.hand_over("local")
    with pytest.raises(CheckpointError, match="is the local engine's: the group"):
        application.run_on_spark(checkpoint=f"{application.checkpoint}-other")

    data.produce_quarter({})
    run_locally(application.config, application.mark)
    assert application.tables() == data.expected()


def run_on_another_host(application: Application) -> tuple[int | None, str]:
    """Run the local engine with its own state directory; return its exit code and the known part of its reason."""
    config = application.config.with_overrides({"state.dir": str(application.state / "other")}, "test")
    ended = threading.Event()
    with KafkaStreams(TOPOLOGY, config) as streams:
        streams.set_state_listener(lambda new, _: ended.set() if new.has_completed_shutdown else None)
        streams.start()
        assert ended.wait(PATIENCE_SECONDS)
        known = "was handed over to Spark, says the group"
        return streams.exit_code, known if known in (streams.failure_reason or "") else str(streams.failure_reason)


def broken_off(*_: Any) -> None:
    raise BrokenOffError


@pytest.mark.long
def test_a_handover_and_its_return_without_new_records_survive_interruptions_at_the_end(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    application.data.produce_quarter({"k0": "n0"})
    run_locally(application.config, application.mark)
    with monkeypatch.context() as patch:
        patch.setattr(
            ApplicationReset, "move", broken_off
        )  # Spark has everything, but the group's offsets do not show it
        with pytest.raises(BrokenOffError):
            application.hand_over("spark")
    admit(app.topology().build(), application.config)
    with pytest.raises(CheckpointError, match="is the local engine's: the group"):
        application.run_on_spark()
    there = application.hand_over("spark")
    with monkeypatch.context() as patch:
        patch.setattr(Handover, "_end", broken_off)  # the changelogs have everything, and so do the group's offsets
        with pytest.raises(BrokenOffError):
            application.hand_over("local")
    with pytest.raises(CheckpointError, match="is the local engine's: the group"):
        application.run_on_spark()
    assert "an earlier handover was interrupted" in application.hand_over("local").note
    again = application.hand_over("spark")
    assert (again.stores, again.offsets) == (there.stores, there.offsets)
    application.data.produce_quarter({})
    application.run_on_spark()
    assert application.tables() == application.data.expected()


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_the_local_engine_continues_after_a_backfill_from_files_and_topics(
    application: Application, tmp_path: Path, kind: str
) -> None:
    data = application.data
    data.produce_quarter({"k0": "n0"})
    data.produce_quarter({"k1": "n1"})
    path = tmp_path / ("history" if kind == "parquet" else "history.jsonl.gz")
    (dump if kind == "parquet" else dump_lines)(application, f"{application.mark}words", path)
    files = f"{kind}:{path}"
    with Backfill(TOPOLOGY, application.config, application.spark, checkpoint=application.checkpoint) as backfill:
        with pytest.raises(StreamsError, match=r"There is no history in .* at .*-nowhere"):
            backfill.run(files=f"{files}-nowhere")
        done = backfill.run(None, START_MS + 1000 * QUARTER, files)
    words = done.handed_over.offsets[f"{application.mark}words"]
    assert sum(words.values()) == QUARTER, "the second quarter is left to the local engine"
    with (
        Backfill(TOPOLOGY, application.config, application.spark, checkpoint=application.checkpoint) as backfill,
        pytest.raises(CheckpointError, match="was handed over to the local engine"),
    ):
        backfill.run()
    run_locally(application.config, application.mark)
    assert application.tables() == data.expected()


def dump(application: Application, topic: str, path: Path) -> None:
    """Write a topic's records to Parquet files, in a different order."""
    options = {"kafka.bootstrap.servers": application.config["bootstrap.servers"], "subscribe": topic}
    records = application.spark.read.format("kafka").options(**options).load()
    records.repartition(3).sortWithinPartitions("offset", ascending=False).write.parquet(str(path))


def dump_lines(application: Application, topic: str, path: Path) -> None:
    """Write a topic's records to a file as lines of JSON, in a different order."""
    command = [sys.executable, "-m", "penstock.cli", "topic", "consume", topic, "--json"]
    servers = f"bootstrap.servers={application.config['bootstrap.servers']}"
    serdes = ("--key-serde", "string", "--value-serde", "string")
    lines = subprocess.check_output([*command, "-c", servers, *serdes], text=True).splitlines()
    assert len(lines) == 2 * QUARTER
    with gzip.open(path, "wt") as file:
        file.writelines(f"{line}\n" for line in reversed(lines))


def test_an_application_that_cannot_be_handed_over_is_refused_before_anything_starts() -> None:
    config = StreamsConfig({"application.id": "a", "bootstrap.servers": "localhost:1"})
    strings: dict[str, Any] = app.STRINGS
    with pytest.raises(TopologyError, match="the store tally has no changelog"):
        Handover(unlogged(strings), config)
    with pytest.raises(TopologyError, match="the store history is versioned"):
        Handover(versioned(strings), config)


def unlogged(strings: dict[str, Any]) -> StreamsBuilder:
    builder = StreamsBuilder()
    store = Materialized("tally", logging=False)
    builder.stream("in", **strings).group_by_key().count(store=store).to_stream().to("out", value_serde=Serdes.int64())
    return builder


def versioned(strings: dict[str, Any]) -> StreamsBuilder:
    builder = StreamsBuilder()
    supplier = Stores.persistent_versioned_key_value_store("history", timedelta(hours=1))
    builder.table("in", store=Materialized(supplier), **strings).to_stream().to("out", **strings)
    return builder
