"""The flights through real processes and a real Kafka: the demo as a user runs it, and crashes in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from examples.flights import dataset, loader, topics
from examples.flights.progress import Progress, ProgressReader
from examples.flights.verify import verify
from penstock import KafkaStreams
from penstock.dev.dev_broker import DevBroker
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parent.parent
LOOK_SECONDS = 0.05
#: Shares of the flights at which a worker is killed. Several, because a kill right after a commit proves nothing.
KILL_AT_SHARES = (0.2, 0.4, 0.6)
#: The number of flights that must have been forwarded without a commit when a worker is killed.
UNCOMMITTED_MIN = 3_000
pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder for the demo's broker and application, as after a fresh clone."""
    home = tmp_path_factory.mktemp("state")
    yield home
    DevBroker("demo", home / "penstock" / "brokers" / "demo").stop()


def start_demo(home: Path, *options: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "XDG_STATE_HOME": str(home), "COLUMNS": "200"}
    environment.pop("KAFKA_BOOTSTRAP_SERVERS", None)
    command = [sys.executable, "-m", "examples.flights.demo", *options]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_ctrl_c_stops_the_demo_cleanly_and_the_next_run_gives_the_results_of_plain_python(home: Path) -> None:
    stale = [home / "penstock" / folder / "stale" for folder in ("brokers/demo", "demo/state", "demo/spark")]
    for file in stale:
        file.parent.mkdir(parents=True)
        file.touch()
    with start_demo(home, "--fresh") as demo:
        assert demo.stdout is not None
        shown = ""
        for line in demo.stdout:
            shown += line
            if "to RUNNING" in line:
                demo.send_signal(signal.SIGINT)
                break
        shown += demo.communicate(timeout=PATIENCE_SECONDS)[0]
    assert demo.returncode == 130, shown
    assert not any(file.exists() for file in stale)
    assert "Traceback" not in shown
    assert "State transition from PENDING_SHUTDOWN to NOT_RUNNING" in shown

    with start_demo(home, "--verify") as demo:  # it continues with the state of the first run
        shown, _ = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == 0, shown
    assert "The data set is loaded already" in shown
    assert "JFK-LAX" in shown
    assert [line for line in shown.splitlines() if ": equal (" in line] == [
        f"{topics.DELAYS}: equal (59704 rows)",
        f"{topics.ROUTES}: equal (224 rows)",
        f"{topics.MANUFACTURERS}: equal (37 rows)",
        f"{topics.TEMPERATURES}: equal (6 rows)",
    ]
    assert shown.count("to DEAD") == 2
    assert "State transition from PENDING_SHUTDOWN to NOT_RUNNING" in shown


@pytest.mark.long
def test_killed_workers_lose_and_duplicate_no_flight(tmp_path: Path) -> None:
    with DevBroker(
        "crash", tmp_path / "broker"
    ) as broker:  # a separate broker, because the data set's topics have fixed names
        address = broker.bootstrap_servers
        loader.load(address)
        finished = run_with_crashes(address, tmp_path / "state")
        sent = finished.available["flights-crash-by-route-repartition"]
        assert sent > dataset.ROWS[topics.FLIGHTS], "nothing was sent a second time: these crashes prove nothing"
        assert [str(verdict) for verdict in verify(address) if not verdict.equal] == []


def run_with_crashes(address: str, state: Path) -> Progress:
    config = {
        "application.id": "flights-crash",
        "bootstrap.servers": address,
        "num.stream.threads": 2,
        "commit.interval.ms": 2_000,  # long enough for many records to be sent again
        "state.dir": str(state),
        "windowstore.changelog.additional.retention.ms": 1_577_880_000_000,
    }
    inputs = (topics.FLIGHTS, topics.WEATHER, topics.PLANES)
    with (
        KafkaStreams("examples.flights.topology:build", config) as streams,
        ProgressReader(address, "flights-crash", inputs) as reader,
    ):
        streams.start()
        for number, share in enumerate(KILL_AT_SHARES):
            before = wait_for(reader, partial(is_worth_a_crash, share=share))
            assert not before.finished, "nothing was left to do when the worker was killed"
            victim = streams.status()[number % 2].pid
            os.kill(victim, signal.SIGKILL)
        finished = wait_for(reader, lambda progress: progress.finished)
        assert victim not in [thread.pid for thread in streams.status()]
        return finished


def is_worth_a_crash(progress: Progress, share: float) -> bool:
    committed = progress.committed.get(topics.FLIGHTS, 0)
    sent = progress.available.get("flights-crash-by-route-repartition", 0)
    enough = committed > share * dataset.ROWS[topics.FLIGHTS] and sent - committed > UNCOMMITTED_MIN
    return enough or progress.finished


def wait_for(reader: ProgressReader, reached: Callable[[Progress], bool]) -> Progress:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        progress = reader.read()
        if reached(progress):
            return progress
        assert time.monotonic() < deadline, f"stuck at {progress}"
        time.sleep(LOOK_SECONDS)  # no event outside the processes could wake us
